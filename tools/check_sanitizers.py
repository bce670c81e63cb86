"""The core under AddressSanitizer and UndefinedBehaviorSanitizer: python tools/check_sanitizers.py [states [seed]]

Builds the libraries and tests/c_api so, in build/sanitizers, without what is not needed there (OpenMP, code for this
very CPU), and runs them: the codec, what is to be refused, and so many damaged states (1,500). Needs pybind11, and GCC
or Clang.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from quiet import run

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build" / "sanitizers"
MODEL = ROOT / "python" / "h2o_llama" / "data" / "demo-qwen3-2m-f16.gguf"

# NDEBUG as in a release: ggml's own assertions end the process on the first number that is not finite.
FLAGS = "-O1 -g1 -DNDEBUG -fsanitize=address,undefined -fno-sanitize-recover=all"


def main() -> None:
    arguments = sys.argv[1:] or ["1500"]
    options = [
        f"-DPython_EXECUTABLE={sys.executable}",
        "-DCMAKE_BUILD_TYPE=Release",
        f"-DCMAKE_C_FLAGS_RELEASE={FLAGS}",
        f"-DCMAKE_CXX_FLAGS_RELEASE={FLAGS}",
        "-DGGML_NATIVE=OFF",
        "-DGGML_OPENMP=OFF",
        "-DH2O_LLAMA_BUILD_BACKEND_TESTS=ON",
    ]
    run("cmake", "-S", ROOT, "-B", BUILD, "-G", "Ninja", *options)
    run("cmake", "--build", BUILD, "--target", "test-codec", "test-h2o-context", "test-h2o-errors", "test-h2o-state")

    env = os.environ | {"UBSAN_OPTIONS": "print_stacktrace=1"}
    commands = (
        ["test-codec"],
        ["test-h2o-context", str(MODEL)],
        ["test-h2o-errors", str(MODEL), str(BUILD)],
        ["test-h2o-state", str(MODEL), *arguments],
    )
    for command in commands:
        result = subprocess.run([str(BUILD / "bin" / command[0]), *command[1:]], env=env)
        if result.returncode != 0:
            sys.exit(f"check_sanitizers: {' '.join(command)}: exit status {result.returncode}")


if __name__ == "__main__":
    main()
