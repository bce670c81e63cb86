"""H2O's CUDA files, compiled for the CPU and loaded as a backend of ggml: tests/support/cuda says how they run.

With H2O_TEST_CUDA_BACKEND=CUDA0 the tests run on that device instead.
"""

import ctypes
import hashlib
import os
import re
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from h2o_llama import _core  # loads the libraries that are linked

_SOFTWARE = "CUDA-in-software"
BACKEND = os.environ.get("H2O_TEST_CUDA_BACKEND", _SOFTWARE)
IS_SOFTWARE = BACKEND == _SOFTWARE

# In which threads of a block run between barriers, and blocks after each other. Results must not depend on it.
ORDERS = {"ascending": 0, "descending": 1, "shuffled": 2}

_ROOT = Path(__file__).resolve().parents[2]
_HERE = _ROOT / "tests" / "support" / "cuda"
_BUILD = _ROOT / "build" / "cuda-in-software"
_UPSTREAM = _ROOT / "vendor" / "llama.cpp" / "ggml"
_FLAGS = (
    *("-std=c++17", "-O2", "-g1", "-fPIC", "-fno-strict-aliasing"),
    "-U_FORTIFY_SOURCE",  # fibres jump from stack to stack
    *("-Wall", "-Wno-unknown-pragmas", "-Wno-sign-compare", "-Wno-unused-function", "-Werror"),
)
# Set by tools/check_kernels.py, which also loads their libraries. At -O2 GCC 12's two together break the fibres.
_SANITIZERS = os.environ.get("H2O_TEST_CUDA_SANITIZERS", "")


@cache
def load() -> ctypes.CDLL:
    """The backend, not yet registered: compiled when first asked for, and again when a source has changed."""
    assert _core is not None
    sources = [*sorted((_ROOT / "src" / "ggml").glob("*/cuda/*.cu")), *sorted(_HERE.rglob("*.cpp"))]
    headers = [*(_ROOT / "src" / "ggml").rglob("*.cuh"), *_HERE.rglob("*.h"), *_HERE.rglob("*.cuh")]
    flags = [*_FLAGS, *(["-O1", f"-fsanitize={_SANITIZERS}", "-fno-sanitize-recover=all"] if _SANITIZERS else [])]
    state = hashlib.sha256(repr(flags).encode())
    for path in sorted({*sources, *headers}):
        state.update(path.read_bytes())
    library = _BUILD / f"{state.hexdigest()[:16]}.so"
    if not library.exists():
        _compile(sources, flags, library)
    return ctypes.CDLL(str(library))


def _compile(sources: list[Path], flags: list[str], library: Path) -> None:
    """Several processes may do so at once: each has names of its own."""
    _BUILD.mkdir(parents=True, exist_ok=True)
    include = [_HERE / "emulator", _ROOT / "src", _UPSTREAM / "include", _UPSTREAM / "src"]
    command = [os.environ.get("CXX", "g++"), *flags, *(f"-I{path}" for path in include)]
    mine = library.with_suffix(f".{os.getpid()}")

    def compiled(source: Path) -> Path:
        output = mine.with_suffix(f"{mine.suffix}.{source.stem}.o")
        _run([*command, "-x", "c++", "-c", str(source), "-o", str(output)])
        return output

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        objects = list(pool.map(compiled, sources))
    _run([*command, "-shared", *map(str, objects), *_loaded_libraries(), "-o", str(mine)])
    mine.rename(library)
    for path in objects:
        path.unlink()


def _run(command: list[str]) -> None:
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, f"{' '.join(command)}\n{result.stderr}"


def _loaded_libraries() -> list[str]:
    """Paths of ggml's libraries in this process."""
    maps = Path("/proc/self/maps").read_text(encoding="utf-8")
    paths = sorted(set(re.findall(r"/\S*libh2o-ggml(?:-base)?\.so", maps)))
    assert len(paths) == 2, f"expected libh2o-ggml and libh2o-ggml-base to be loaded, got {paths}"
    return paths


@contextmanager
def registered() -> Iterator[None]:
    """Within this the backend exists, a GPU to llama.cpp."""
    if not IS_SOFTWARE:
        yield
        return
    load().cuda_in_software_register()
    try:
        yield
    finally:
        load().cuda_in_software_unregister()


@contextmanager
def running(order: str) -> Iterator[None]:
    """Threads run in this order within this, then in ascending order again."""
    set_order = load().cuda_in_software_set_order if IS_SOFTWARE else lambda order: None
    set_order(ORDERS[order])
    try:
        yield
    finally:
        set_order(ORDERS["ascending"])
