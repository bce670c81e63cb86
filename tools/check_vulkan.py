"""Build with Vulkan and check on a device: python tools/check_vulkan.py

Makes its own virtual environment in build/vulkan, runs upstream's operator tests for our operators that Vulkan has, and
compares whole models on the device and on the CPU. The build needs Vulkan's headers, glslc and SPIRV-Headers. Where
there is no GPU, Mesa's lavapipe does, a device in software:

    apt install mesa-vulkan-drivers libvulkan-dev glslc spirv-headers
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

from quiet import run

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / "build" / "vulkan"
KEEP_BUFFERS = ROOT / "tests" / "keep_vulkan_buffers.c"


def main() -> None:
    if len(sys.argv) != 1:
        sys.exit(__doc__)
    python = VENV / "bin" / "python"
    os.environ["CMAKE_ARGS"] = "-DGGML_VULKAN=ON -DH2O_LLAMA_BUILD_BACKEND_TESTS=ON"
    run(sys.executable, "-m", "venv", VENV)
    run(python, "-m", "pip", "install", "-C", f"build-dir={VENV / 'build'}", f"{ROOT}[test]")

    library = VENV / "keep_buffers.so"
    run(*shlex.split(os.environ.get("CC", "cc")), "-shared", "-fPIC", KEEP_BUFFERS, "-o", library)
    # ggml takes a device in software only if it is named
    environment = {"GGML_VK_VISIBLE_DEVICES": "0", "LD_PRELOAD": str(library)} | os.environ
    operators = ("test", "-b", "Vulkan0", "-o", "MAX_ROWS,GET_ROWS")
    for command in (
        (VENV / "build" / "bin" / "test-backend-ops", *operators),
        (python, "-m", "pytest", "-n", "0", "tests/test_vulkan.py"),
    ):
        subprocess.run(command, check=True, cwd=ROOT, env=environment)


if __name__ == "__main__":
    main()
