"""Check a Vulkan device: python tools/check_vulkan.py [build/…/bin]

In an environment with h2o-llama built with GGML_VULKAN=ON. Compares whole models on the device with the CPU. With the
folder of upstream's operator tests (H2O_LLAMA_BUILD_BACKEND_TESTS=ON), these come first, for our operators that Vulkan
has. Without a GPU, Mesa's lavapipe will do, a device in software: Debian's package mesa-vulkan-drivers.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

from quiet import run

ROOT = Path(__file__).resolve().parent.parent
DEVICE = "Vulkan0"
TYPES = "type=(f32|f16|bf16|i32|q[458]_[01]),"
"""Of the cache and of numbers: a device in software compiles shaders of some others for minutes."""
FIND = f"from h2o_llama import _core; _core.ops_max_rows(__import__('numpy').zeros((1, 1), 'f4'), 'f32', '{DEVICE}', 1)"


def main() -> None:
    if len(sys.argv) > 2:
        sys.exit(__doc__)
    operators = ("-o", "MAX_ROWS,GET_ROWS", "-p", TYPES)
    commands: list[tuple[str | Path, ...]] = [
        (sys.executable, "-c", FIND),
        *((Path(folder) / "test-backend-ops", "test", "-b", DEVICE, *operators) for folder in sys.argv[1:]),
        (sys.executable, "-m", "pytest", "-n", "0", "tests/test_vulkan.py"),
    ]
    with tempfile.TemporaryDirectory() as folder:
        source, library = ROOT / "tests" / "keep_vulkan_buffers.c", Path(folder) / "keep_vulkan_buffers.so"
        run(*shlex.split(os.environ.get("CC", "cc")), "-shared", "-fPIC", source, "-o", library)
        # ggml takes a device in software only if it is named
        environment = {"GGML_VK_VISIBLE_DEVICES": "0", "LD_PRELOAD": str(library)} | os.environ
        for command in commands:
            subprocess.run(command, check=True, cwd=ROOT, env=environment)


if __name__ == "__main__":
    main()
