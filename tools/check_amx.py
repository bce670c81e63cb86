"""Test the AMX kernel of attention on a CPU without AMX: python tools/check_amx.py [pytest's arguments]

Builds ggml's base library, which holds the kernels, with AMX's tiles in software, in build/amx, and puts it in the
installed one's place. Needs AVX-512, the package with its extra "test", and pybind11.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from quiet import run

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build" / "amx"
LIBRARY = BUILD / "bin" / "libh2o-ggml-base.so"
EMULATION = ROOT / "tests" / "amx_emulation.h"


def main() -> None:
    flags = [f"-DPython_EXECUTABLE={sys.executable}", "-DCMAKE_BUILD_TYPE=Release", "-DGGML_NATIVE=OFF"]
    emulation = f'-DCMAKE_CXX_FLAGS=-DH2O_EMULATE_AMX=\\"{EMULATION}\\"'
    run("cmake", "-S", ROOT, "-B", BUILD, "-G", "Ninja", *flags, emulation)
    run("cmake", "--build", BUILD, "--target", "ggml-base")

    env = os.environ | {"LD_PRELOAD": str(LIBRARY)}
    best = "from h2o_llama import _core; print(_core.ops_isas()[0])"
    used = subprocess.run([sys.executable, "-c", best], env=env, text=True, stdout=subprocess.PIPE, check=True).stdout
    if used.strip() != "amx":
        sys.exit(f"check_amx: the kernel for {used.strip()} is in use, not the one for AMX")

    tests = sys.argv[1:] or [str(path) for path in sorted((ROOT / "tests").glob("test_attention_*.py"))]
    sys.exit(subprocess.run([sys.executable, "-m", "pytest", "-k", "amx", *tests], env=env, cwd=ROOT).returncode)


if __name__ == "__main__":
    main()
