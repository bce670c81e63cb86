"""Run tests as on another CPU, or under sanitizers. Needs the package with its extra "test", and pybind11.

    python tools/check_kernels.py avx2|amx [pytest's arguments]
    python tools/check_kernels.py sanitizers [states [seed]]

avx2 and amx build libraries of ggml's in build/avx2 or build/amx, and put them in the installed ones' place; Linux on
x86-64. avx2: the CPU backend for plain AVX2, as results differ in their last bits from newer instructions', and must
pass too; by default all of H2O's tests are run. amx: also the base library, which holds the kernels, with AMX's tiles
and upstream's buffers for them in software, on any CPU with AVX2; by default the tests that have failed with AMX only,
besides attention's and products'.

sanitizers builds the libraries and tests/core/c_api with AddressSanitizer and UndefinedBehaviorSanitizer, in
build/sanitizers, without code for this very CPU, and runs them: input that must be refused, and damaged states (1,500).
Then the CUDA kernels in software, with the package that is installed; for these the compiler must be GCC.
"""

import os
import platform
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MODEL = ROOT / "python" / "h2o_llama" / "data" / "demo-qwen3-2m-f16.gguf"
INSTRUCTIONS = ("SSE42", "AVX", "AVX2", "BMI2", "FMA", "F16C")
AVX2 = [f"-DGGML_{name}=ON" for name in INSTRUCTIONS]
# targets, how they are built, variables, tests, pytest's options
KERNELS = {
    "avx2": (
        ("ggml-cpu",),
        AVX2,
        {"H2O_ISA": "avx2"},
        ("test_h2o_*.py", "test_steps.py", "test_ops.py"),  # the operators' tests try each instruction set
        [],
    ),
    "amx": (
        ("ggml-base", "ggml-cpu"),
        [*AVX2, "-DH2O_EMULATE_AMX=ON"],
        {},
        ("test_attention_*.py", "test_products.py", "test_rope.py", "test_h2o_[eo]*.py", "test_lora.py"),
        ["-k", "amx or rope or index or lora"],
    ),
}

# NDEBUG as in a release: ggml's own assertions end the process on the first number that is not finite.
SANITIZED = "-O1 -g1 -DNDEBUG -fsanitize=address,undefined -fno-sanitize-recover=all"

# The libraries in use, and H2O's best kernel.
WHICH = """
from h2o_llama import _core
maps = open("/proc/self/maps").read().split()
print(_core.ops_isas()[0], *{path for path in maps if "/libh2o-" in path})
"""


def build(folder: Path, targets: tuple[str, ...], *options: str) -> None:
    """Build targets in a folder. The output is shown only if that fails."""
    # CMake would take the first Python of PATH, which may have no pybind11
    common = [f"-DPython_EXECUTABLE={sys.executable}", "-DCMAKE_BUILD_TYPE=Release", "-DGGML_NATIVE=OFF"]
    configure = ["cmake", "-S", str(ROOT), "-B", str(folder), "-G", "Ninja", *common, *without_others_kernels()]
    for command in ([*configure, *options], ["cmake", "--build", str(folder), "--target", *targets]):
        result = subprocess.run(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        if result.returncode != 0:
            sys.exit(f"check_kernels: {' '.join(command)}: exit status {result.returncode}\n{result.stdout}")


def without_others_kernels() -> list[str]:
    """CMake's options for a build without kernels that this CPU cannot run, and which take long to compile."""
    flags = {"AVX512": "avx512vl", "AVX_VNNI": "avx_vnni", "AMX": "amx_tile"}
    path = Path("/proc/cpuinfo")
    has = path.read_text().split() if path.exists() else [*flags.values()]
    return [f"-DH2O_LLAMA_{name}=OFF" for name, flag in flags.items() if flag not in has]


def check_as_on(kernel: str, arguments: list[str]) -> int:
    """The exit status of tests with another CPU's libraries."""
    targets, flags, variables, patterns, options = KERNELS[kernel]
    folder = ROOT / "build" / kernel
    build(folder, targets, *flags)
    libraries = [str(folder / "bin" / f"libh2o-{target}.so") for target in targets]
    env = os.environ | {"LD_PRELOAD": ":".join(libraries)} | variables
    used = subprocess.run([sys.executable, "-c", WHICH], env=env, text=True, stdout=subprocess.PIPE, check=True).stdout
    if used.split()[0] != kernel or not {*libraries} <= {*used.split()}:
        sys.exit(f"check_kernels: {used.strip()} is in use, not {' '.join(libraries)} with the kernel {kernel}")
    tests = arguments or [str(path) for pattern in patterns for path in sorted((ROOT / "tests").rglob(pattern))]
    return subprocess.run([sys.executable, "-m", "pytest", *options, *tests], env=env, cwd=ROOT).returncode


def check_sanitized(arguments: list[str]) -> int:
    """The exit status of the core's tests and of the CUDA kernels' under sanitizers."""
    folder = ROOT / "build" / "sanitizers"
    flags = [f"-DCMAKE_{language}_FLAGS_RELEASE={SANITIZED}" for language in ("C", "CXX")]
    build(folder, ("test-h2o",), *flags, "-DH2O_LLAMA_BUILD_BACKEND_TESTS=ON")
    env = os.environ | {"UBSAN_OPTIONS": "print_stacktrace=1"}
    core = subprocess.call([str(folder / "bin" / "test-h2o"), str(MODEL), *(arguments or ["1500"])], env=env)
    # In a Python that has AddressSanitizer from the start, and libstdc++: AddressSanitizer looks for its __cxa_throw
    # only once. Leaks of Python are not looked for.
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
    files = [f"tests/kernels/test_{name}.py" for name in ("attention_op", "top_keys_op", "cuda_kernels")]
    tests = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-m", "", *files, "-k"]
    return core or subprocess.call([*tests, "cuda and (ways or some_ or infinite_)"], cwd=ROOT, env=env)


def main() -> None:
    way, *arguments = sys.argv[1:] or [""]
    if way == "sanitizers":
        sys.exit(check_sanitized(arguments))
    if way not in KERNELS or sys.platform != "linux" or platform.machine() != "x86_64":
        sys.exit(__doc__)
    sys.exit(check_as_on(way, arguments))


if __name__ == "__main__":
    main()
