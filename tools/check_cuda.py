"""Configure with GGML_CUDA=ON and compile, for sm_80 and sm_90, the CUDA files that this project adds or patches.

Needs no GPU: the toolkit is tools/requirements-cuda.txt, installed by pip. Nothing is linked.
"""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path

import cmake
import ninja

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build" / "cuda"
ARCHITECTURES = "80-real;90-real"


def make_toolkit(folder: Path) -> Path:
    """Lay out pip's CUDA packages as CMake expects a toolkit: libraries also by their names without version."""
    spec = importlib.util.find_spec("nvidia")
    locations = spec.submodule_search_locations if spec else None
    found = [
        path for location in locations or [] for path in Path(location).glob("cu[0-9]*") if (path / "bin").is_dir()
    ]
    if len(found) != 1:
        sys.exit("check_cuda: run `pip install -r tools/requirements-cuda.txt` first")
    (source,) = found
    (folder / "bin").mkdir(parents=True, exist_ok=True)  # not a link: nvcc looks for bin/../lib64
    (folder / "lib64").mkdir(exist_ok=True)
    links = {folder / name: source / name for name in ("include", "nvvm")}
    links |= {folder / "bin" / program.name: program for program in (source / "bin").iterdir()}
    for library in (source / "lib").glob("lib*"):
        links[folder / "lib64" / library.name] = library
        links[folder / "lib64" / re.sub(r"\.so\..*", ".so", library.name)] = library
    for link, target in links.items():
        link.unlink(missing_ok=True)
        link.symlink_to(target)
    # The driver's library comes with a driver; CMake only wants to know where it is.
    (folder / "lib64" / "libcuda.so").touch()
    return folder


def sources() -> set[Path]:
    """The .cu files of src/ggml, and those that patches/ change (for a .cuh: the .cu of that name)."""
    ours = set((ROOT / "src" / "ggml").glob("*/cuda/*.cu"))
    patches = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "patches").glob("*.patch"))
    patched = re.findall(r"^\+\+\+ b/(ggml/src/ggml-cuda/\S+\.cu)h?$", patches, re.MULTILINE)
    return ours | {ROOT / "vendor" / "llama.cpp" / name for name in patched}


def main() -> None:
    toolkit = make_toolkit(BUILD / "toolkit")
    wanted = sources()
    subprocess.run(
        [
            Path(cmake.CMAKE_BIN_DIR) / "cmake",
            *("-S", ROOT, "-B", BUILD, "-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={Path(ninja.BIN_DIR) / 'ninja'}"),
            *("-DGGML_CUDA=ON", f"-DCUDAToolkit_ROOT={toolkit}", f"-DCMAKE_CUDA_COMPILER={toolkit / 'bin' / 'nvcc'}"),
            *(f"-DCMAKE_CUDA_ARCHITECTURES={ARCHITECTURES}", f"-DPython_EXECUTABLE={sys.executable}"),
        ],
        check=True,
    )
    commands = json.loads((BUILD / "compile_commands.json").read_text(encoding="utf-8"))
    outputs = {Path(command["file"]): (BUILD / command["output"]).relative_to(BUILD) for command in commands}
    if missing := wanted - set(outputs):
        sys.exit(f"check_cuda: not in the build: {', '.join(map(str, sorted(missing)))}")
    subprocess.run(
        [Path(ninja.BIN_DIR) / "ninja", "-C", BUILD, "-j2", *(outputs[path] for path in sorted(wanted))], check=True
    )
    print(f"check_cuda: {len(wanted)} files compiled for {ARCHITECTURES}: {', '.join(sorted(p.name for p in wanted))}")


if __name__ == "__main__":
    main()
