"""Run tests as on a CPU with AVX2 and nothing newer: python tools/check_avx2.py [pytest's arguments]

With --run, the arguments after it are another command to run so.

Builds ggml's CPU backend for plain AVX2 beside the installed one, in build/avx2, and puts it in its place: results
differ in their last bits from those of AVX-512 or AMX, and must pass too. By default H2O's tests are run. Needs the
package with its extra "test", and pybind11.
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path

from quiet import run

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build" / "avx2"
LIBRARY = BUILD / "bin" / "libh2o-ggml-cpu.so"
INSTRUCTIONS = ("SSE42", "AVX", "AVX2", "BMI2", "FMA", "F16C")
TESTS = ("test_attention_*.py", "test_top_keys_op.py", "test_h2o_*.py", "test_llama_api.py", "test_ops.py")

# The backend in use, and H2O's kernel.
WHICH = """
from h2o_llama import _core
maps = open("/proc/self/maps").read().split()
print(*{path for path in maps if "libh2o-ggml-cpu" in path}, _core.ops_isas()[0])
"""


def main() -> None:
    if sys.platform != "linux" or platform.machine() != "x86_64":
        sys.exit("check_avx2: this is for Linux on x86-64")
    # CMake would take the first Python of PATH, which may have no pybind11
    flags = [
        f"-DPython_EXECUTABLE={sys.executable}",
        "-DGGML_NATIVE=OFF",
        *(f"-DGGML_{name}=ON" for name in INSTRUCTIONS),
    ]
    run("cmake", "-S", ROOT, "-B", BUILD, "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release", *flags)
    run("cmake", "--build", BUILD, "--target", "ggml-cpu")

    env = os.environ | {"LD_PRELOAD": str(LIBRARY), "H2O_ISA": "avx2"}
    used = subprocess.run([sys.executable, "-c", WHICH], env=env, text=True, stdout=subprocess.PIPE, check=True).stdout
    if used.split() != [str(LIBRARY), "avx2"]:
        sys.exit(f"check_avx2: {used.strip()} is in use, not {LIBRARY} with the AVX2 kernel")

    command = sys.argv[2:]
    if sys.argv[1:2] != ["--run"]:
        tests = sys.argv[1:] or [str(path) for pattern in TESTS for path in sorted((ROOT / "tests").glob(pattern))]
        command = [sys.executable, "-m", "pytest", *tests]
    sys.exit(subprocess.run(command, env=env, cwd=ROOT).returncode)


if __name__ == "__main__":
    main()
