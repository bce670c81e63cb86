"""Run tests as on another CPU: python tools/check_kernels.py avx2|amx [pytest's arguments]

    python tools/check_kernels.py avx2 --run COMMAND...

Builds libraries of ggml's in build/avx2 or build/amx, and puts them in the installed ones' place. avx2: the CPU backend
for plain AVX2, as results differ in their last bits from newer instructions', and must pass too; by default all
of H2O's tests are run. amx: also the base library, which holds the kernels, with AMX's tiles and upstream's buffers for
them in software, on any CPU with AVX2; by default the tests that have failed with AMX only, besides attention's and
products'. Needs the package with its extra "test", and pybind11. Linux on x86-64.
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path

from quiet import run

ROOT = Path(__file__).resolve().parent.parent
INSTRUCTIONS = ("SSE42", "AVX", "AVX2", "BMI2", "FMA", "F16C")
AVX2 = [f"-DGGML_{name}=ON" for name in INSTRUCTIONS]
# targets, how they are built, variables, tests, pytest's options
KERNELS = {
    "avx2": (
        ("ggml-cpu",),
        AVX2,
        {"H2O_ISA": "avx2"},
        ("test_h2o_*.py", "test_llama_api.py", "test_ops.py"),  # the operators' tests try each instruction set
        [],
    ),
    "amx": (
        ("ggml-base", "ggml-cpu"),
        [*AVX2, "-DH2O_EMULATE_AMX=ON"],
        {},
        ("test_attention_*.py", "test_products.py", "test_rope.py", "test_h2o_[eos]*.py", "test_lora.py"),
        ["-k", "amx or rope or index or lora"],
    ),
}

# The libraries in use, and H2O's best kernel.
WHICH = """
from h2o_llama import _core
maps = open("/proc/self/maps").read().split()
print(_core.ops_isas()[0], *{path for path in maps if "/libh2o-" in path})
"""


def without_others_kernels() -> list[str]:
    """CMake's options for a build without kernels that this CPU cannot run, and which take long to compile."""
    flags = {"AVX512": "avx512vl", "AVX512_BF16": "avx512_bf16", "AVX_VNNI": "avx_vnni", "AMX": "amx_tile"}
    path = Path("/proc/cpuinfo")
    has = path.read_text().split() if path.exists() else [*flags.values()]
    return [f"-DH2O_LLAMA_{name}=OFF" for name, flag in flags.items() if flag not in has]


def main() -> None:
    kernel, *arguments = sys.argv[1:] or [""]
    if kernel not in KERNELS or sys.platform != "linux" or platform.machine() != "x86_64":
        sys.exit(__doc__)
    targets, flags, variables, patterns, options = KERNELS[kernel]
    build = ROOT / "build" / kernel
    libraries = [str(build / "bin" / f"libh2o-{target}.so") for target in targets]
    # CMake would take the first Python of PATH, which may have no pybind11
    common = [f"-DPython_EXECUTABLE={sys.executable}", "-DCMAKE_BUILD_TYPE=Release", "-DGGML_NATIVE=OFF"]
    run("cmake", "-S", ROOT, "-B", build, "-G", "Ninja", *common, *without_others_kernels(), *flags)
    run("cmake", "--build", build, "--target", *targets)

    env = os.environ | {"LD_PRELOAD": ":".join(libraries)} | variables
    used = subprocess.run([sys.executable, "-c", WHICH], env=env, text=True, stdout=subprocess.PIPE, check=True).stdout
    if used.split()[0] != kernel or not {*libraries} <= {*used.split()}:
        sys.exit(f"check_kernels: {used.strip()} is in use, not {' '.join(libraries)} with the kernel {kernel}")

    command = arguments[1:]
    if arguments[:1] != ["--run"]:
        tests = arguments or [str(path) for pattern in patterns for path in sorted((ROOT / "tests").glob(pattern))]
        command = [sys.executable, "-m", "pytest", *options, *tests]
    sys.exit(subprocess.run(command, env=env, cwd=ROOT).returncode)


if __name__ == "__main__":
    main()
