"""The core under AddressSanitizer and UndefinedBehaviorSanitizer: python tools/check_sanitizers.py [states [seed]]

Builds the libraries and tests/c_api so, in build/sanitizers, without code for this very CPU, and runs them: input
that must be refused, and damaged states (1,500). Then the CUDA kernels in software, with the package that is
installed. Needs pybind11, and GCC or Clang; for the kernels, GCC.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from check_kernels import without_others_kernels
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
        "-DH2O_LLAMA_BUILD_BACKEND_TESTS=ON",
        *without_others_kernels(),
    ]
    run("cmake", "-S", ROOT, "-B", BUILD, "-G", "Ninja", *options)
    run("cmake", "--build", BUILD, "--target", "test-h2o")

    env = os.environ | {"UBSAN_OPTIONS": "print_stacktrace=1"}
    result = subprocess.run([str(BUILD / "bin" / "test-h2o"), str(MODEL), *arguments], env=env)
    if result.returncode != 0:
        sys.exit(f"check_sanitizers: test-h2o: exit status {result.returncode}")
    check_cuda_kernels()


def check_cuda_kernels() -> None:
    """Their tests, in a Python that has AddressSanitizer from the start. Leaks of Python are not looked for.

    libstdc++ is there from the start too: AddressSanitizer looks for its __cxa_throw only once.
    """
    runtimes = [
        subprocess.run(["g++", f"-print-file-name={name}"], check=True, capture_output=True, text=True).stdout.strip()
        for name in ("libasan.so", "libstdc++.so.6")
    ]
    env = os.environ | {
        "CXX": "g++",
        "H2O_TEST_CUDA_SANITIZERS": "address,undefined",
        "LD_PRELOAD": ":".join(runtimes),
        "ASAN_OPTIONS": "detect_leaks=0",
    }
    files = [f"tests/test_{name}.py" for name in ("attention_op", "top_keys_op", "cuda_kernels")]
    tests = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-m", "", *files, "-k"]
    if subprocess.call([*tests, "cuda and (ways or some_ or infinite_)"], cwd=ROOT, env=env):
        sys.exit("check_sanitizers: the CUDA kernels' tests fail")


if __name__ == "__main__":
    main()
