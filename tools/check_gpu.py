"""Check H2O on an NVIDIA GPU, in two steps: machines with one are paid by the minute, and often have no network.

    python tools/check_gpu.py pack [ARCHITECTURE]

builds everything on a machine without a GPU and packs it with its Python: build/gpu/h2o-gpu.tar.xz. An architecture is
90 for Hopper (the default), 80 for an A100, 89 for Ada. The toolkit comes from pip (tools/requirements-cuda.txt).
Another pack compiles what changed. Where the GPU is:

    tar xf h2o-gpu.tar.xz && h2o-gpu/run [PART...]

runs tools/check_gpu.py run there: all parts, or the named ones (see `parts`). It needs NVIDIA's driver, and the
CUDA libraries cudart and cublas of the version in tools/requirements-cuda.txt, wherever they are. Each part has a limit
of time, and its output is in h2o-gpu/PART.log. It fails if one does.
"""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build" / "gpu"
PACK = BUILD / "h2o-gpu"
REQUIREMENTS = ROOT / "tools" / "requirements-cuda.txt"
# Packages of the extra "test" that the tests of these parts import.
TESTS = ("allpairspy", "gguf", "hypothesis", "patch-ng", "pytest", "pytest-timeout", "pytest-xdist")
LAUNCH = """#!/bin/sh
here=$(cd "$(dirname "$0")" && pwd)
export LD_LIBRARY_PATH="$here/python/lib" PYTHONHOME="$here/python" PYTHONPATH="$here/site" PYTHONDONTWRITEBYTECODE=1
exec "$here/python/bin/python3" "$here/tools/check_gpu.py" run "$@"
"""
# Layers of Qwen3-0.6B's shape, and next to no vocabulary: a few of them tell what a token costs per layer.
SPEED = """
import runpy, sys
from pathlib import Path
import models

models.N_CTX_TRAIN = 131072
model = models.ModelSpec("speed", "qwen3", 1024, 128, (16,) * 4, (8,) * 4, 3072, 1e6, weight_type="q8_0")
models.write_model(model, Path("speed.gguf"))
sys.argv = ["h2o-llama", "bench", "speed.gguf", *sys.argv[1:]]
runpy.run_module("h2o_llama", run_name="__main__")
"""


# --- pack


def pack(architecture: str) -> None:
    """Build the package and all that its tests need, and pack them with this Python."""
    venv = BUILD / "venv"
    subprocess.run([sys.executable, "-m", "venv", venv], check=True)
    python = venv / "bin" / "python"
    pip = [python, "-m", "pip", "--disable-pip-version-check"]
    subprocess.run([*pip, "install", "--quiet", "cmake", "ninja", "-r", REQUIREMENTS], check=True)
    make = "import sys; from pathlib import Path; import check_cuda; check_cuda.make_toolkit(Path(sys.argv[1]))"
    toolkit = BUILD / "toolkit"
    subprocess.run([python, "-c", make, toolkit], check=True, cwd=ROOT / "tools")

    shutil.rmtree(PACK, ignore_errors=True)
    settings = [
        f"build-dir={BUILD / 'build'}",
        "cmake.define.GGML_CUDA=ON",
        f"cmake.define.CUDAToolkit_ROOT={toolkit}",
        f"cmake.define.CMAKE_CUDA_COMPILER={toolkit / 'bin' / 'nvcc'}",
        f"cmake.define.CMAKE_CUDA_ARCHITECTURES={architecture}-real",
        "cmake.define.GGML_NATIVE=OFF",  # the CPU there is another one
    ]
    flags = [word for setting in settings for word in ("-C", setting)]
    subprocess.run([*pip, "install", *flags, "--target", PACK / "site", ROOT, *TESTS], check=True)
    libraries = PACK / "site" / "h2o_llama" / "lib"
    subprocess.run(["strip", "--strip-unneeded", libraries / "libh2o-ggml-cuda.so"], check=True)

    copy_python()
    for name in ("tests", "tools", "pyproject.toml"):
        source = ROOT / name
        shutil.copytree(source, PACK / name) if source.is_dir() else shutil.copy(source, PACK)
    launch = PACK / "run"
    launch.write_text(LAUNCH, encoding="utf-8")
    launch.chmod(0o755)
    archive = PACK.with_suffix(".tar.xz")
    with tarfile.open(archive, "w:xz") as tar:
        tar.add(PACK, PACK.name, filter=lambda file: None if "__pycache__" in file.name else file)
    print(f"check_gpu: {archive}, {archive.stat().st_size / 2**20:.0f} MiB")


def copy_python() -> None:
    """The interpreter, its library, and the system's libraries that both load, but for glibc's."""
    home = PACK / "python"
    name = f"python{sys.version_info.major}.{sys.version_info.minor}"
    (home / "bin").mkdir(parents=True)
    shutil.copy(Path(sys.base_prefix) / "bin" / name, home / "bin" / "python3")
    unused = ("test", "tests", "idlelib", "*tkinter*", "ensurepip", "site-packages", "dist-packages", "config-*")
    shutil.copytree(
        sysconfig.get_path("stdlib"),
        home / "lib" / name,
        ignore=shutil.ignore_patterns("__pycache__", *unused),
    )
    modules = [str(path) for path in (home / "lib" / name / "lib-dynload").glob("*.so")]
    loaded = subprocess.run(["ldd", str(home / "bin" / "python3"), *modules], text=True, stdout=subprocess.PIPE)
    for library in {*re.findall(r"=> (/\S+)", loaded.stdout)}:
        if not re.match(r"lib(c|m|dl|rt|util|pthread|resolv|nsl)\.so", Path(library).name):
            shutil.copy(library, home / "lib")


# --- run


def parts(python: str) -> dict[str, tuple[int, dict[str, str], list[str]]]:
    """Of each part its limit in seconds, variables, and command."""
    pytest = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", ""]
    on_device = {"H2O_TEST_CUDA_BACKEND": "CUDA0"}
    kernels = [*pytest, *map("tests/kernels/test_{}.py".format, ("attention_op", "top_keys_op", "cuda_kernels")), "-n"]
    some = ["0", "-k", "cuda and (ways or top_keys or extremes)"]
    sanitizer = ["compute-sanitizer", "--error-exitcode", "1", "--tool"]
    lengths = ["--gpu-layers", "99", "--n-prompt", "4096,16384,65536,131072", "--depth", "16384,131072"]
    # only these: others need packages that are not there
    has_oracle = re.compile(r"def test_\w*oracle")
    oracle = [str(path) for path in sorted((ROOT / "tests").rglob("test_*.py")) if has_oracle.search(path.read_text())]
    h2o = ["--h2o-set", "decode=memory", "--h2o-set", "scorer=sum", "--h2o-set", "lookup_budget=0", "--evict"]
    return {
        "kernels": (200, on_device, [*kernels, "8", "-k", "cuda"]),
        "oracle": (100, {"H2O_TEST_GPU_LAYERS": "99"}, [*pytest, *oracle, "-k", "oracle", "-n", "8"]),
        "memcheck": (60, on_device, [*sanitizer, "memcheck", *kernels, *some]),
        "racecheck": (60, on_device, [*sanitizer, "racecheck", *kernels, *some]),
        "speed": (200, {"PYTHONPATH": f"{ROOT}/site:{ROOT}/tests/support"}, [python, "-c", SPEED, *lengths, *h2o]),
    }


def found(name: str) -> Path:
    """A library of this machine: known to the linker, or anywhere."""
    known = subprocess.run(["ldconfig", "-p"], text=True, stdout=subprocess.PIPE).stdout
    if match := re.search(rf"=> (\S+/{re.escape(name)}\S*)", known):
        return Path(match[1])
    places = ["/", "(", "-path", "/proc", "-o", "-path", "/sys", ")", "-prune", "-o"]
    search = ["find", *places, "-name", f"{name}*", "-print", "-quit"]
    path = subprocess.run(search, text=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout.strip()
    if not path:
        sys.exit(f"check_gpu: {name} is nowhere on this machine")
    return Path(path)


def run(names: list[str]) -> None:
    """Run parts where the GPU is, one after the other, whether or not those before have failed."""
    all_parts = parts(sys.executable)
    if unknown := {*names} - {*all_parts}:
        sys.exit(f"check_gpu: no such part: {', '.join(sorted(unknown))}; there are {', '.join(all_parts)}")
    version = re.search(r"^nvidia-cuda-runtime==(\d+)", REQUIREMENTS.read_text(encoding="utf-8"), re.MULTILINE)
    assert version
    driver = found("libcuda.so.1")
    cuda = [found(f"lib{name}.so.{version[1]}").parent for name in ("cudart", "cublas")]
    folders = [*cuda, driver.parent, ROOT / "site" / "h2o_llama" / "lib", ROOT / "python" / "lib"]
    # The libraries were linked without the driver's.
    environment = os.environ | {"LD_LIBRARY_PATH": ":".join(map(str, folders)), "LD_PRELOAD": str(driver)}
    # Without one, some parts would pass on the CPU.
    devices = "from h2o_llama import _core; print(*_core.layer_devices([]))"
    seen = subprocess.run([sys.executable, "-c", devices], env=environment, text=True, stdout=subprocess.PIPE).stdout
    if "CUDA0" not in seen.split():
        sys.exit(f"check_gpu: h2o_llama finds no GPU here, only: {seen.strip() or 'none'}")
    failed = []
    for name in names or all_parts:
        limit, variables, command = all_parts[name]
        start, log = time.monotonic(), ROOT / f"{name}.log"
        with log.open("w", encoding="utf-8") as file:
            arguments = ["timeout", str(limit), *command]
            result = subprocess.run(arguments, cwd=ROOT, env=environment | variables, stdout=file, stderr=file)
        lines = log.read_text(encoding="utf-8").splitlines()
        print(*lines[-25:], sep="\n")
        print(f"=== {name}: exit status {result.returncode}, {time.monotonic() - start:.0f} s", flush=True)
        if result.returncode != 0:
            failed.append(name)
    sys.exit(f"check_gpu: {', '.join(failed)} failed" if failed else 0)


def main() -> None:
    match sys.argv[1:]:
        case ["pack", *architecture] if len(architecture) <= 1:
            pack(*architecture or ["90"])
        case ["run", *names]:
            run(names)
        case _:
            sys.exit(__doc__)


if __name__ == "__main__":
    main()
