"""Compile the CUDA files that this project adds or patches, for sm_80, sm_90 and sm_120, and say what our kernels take.

That is registers, static shared memory, and bytes that are spilled: a kernel that spills is an error. Needs no GPU:
the toolkit is tools/requirements-cuda.txt, installed by pip. Nothing is linked.
"""

import importlib.util
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import cmake
import ninja

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build" / "cuda"
ARCHITECTURES = "80-real;90-real;120-real"

# What ptxas says of a kernel, with -v.
_KERNEL = re.compile(
    r"Compiling entry function '(?P<name>\w+)' for '(?P<architecture>\w+)'.*?"
    r"(?P<spilled>\d+) bytes spill stores, (?P<read>\d+) bytes spill loads.*?"
    r"Used (?P<registers>\d+) registers(?P<rest>[^\n]*)",
    re.DOTALL,
)


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


def patched_sources() -> set[Path]:
    """The .cu files that patches/ change (for a .cuh: the .cu of that name)."""
    patches = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "patches").glob("*.patch"))
    patched = re.findall(r"^\+\+\+ b/(ggml/src/ggml-cuda/\S+\.cu)h?$", patches, re.MULTILINE)
    return {ROOT / "vendor" / "llama.cpp" / name for name in patched}


def demangled(name: str) -> str:
    """A kernel's name and template arguments, if the compiler's tools are there."""
    if shutil.which("c++filt") is None:
        return name
    text = subprocess.run(["c++filt", name], capture_output=True, text=True, check=True).stdout.strip()
    return text.split("(")[0].removeprefix("void ")


def report(log: str) -> bool:
    """Print a line for each kernel in what the compiler said; whether none spills."""
    lines, good = [], True
    for kernel in _KERNEL.finditer(log):
        shared = re.search(r"(\d+) bytes smem", kernel["rest"])
        spilled = int(kernel["spilled"]) + int(kernel["read"])
        good = good and spilled == 0
        lines.append(
            f"{kernel['architecture']:7} {demangled(kernel['name']):60} {int(kernel['registers']):4} registers, "
            f"{shared[1] if shared else 0:>5} bytes of static shared memory, {spilled} bytes spilled"
        )
    print("\n".join(sorted(lines)))
    return good and len(lines) > 0


def main() -> None:
    toolkit = make_toolkit(BUILD / "toolkit")
    ours, patched = set((ROOT / "src" / "ggml").glob("*/cuda/*.cu")), patched_sources()
    wanted = ours | patched
    subprocess.run(
        [
            Path(cmake.CMAKE_BIN_DIR) / "cmake",
            *("-S", ROOT, "-B", BUILD, "-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={Path(ninja.BIN_DIR) / 'ninja'}"),
            *("-DGGML_CUDA=ON", f"-DCUDAToolkit_ROOT={toolkit}", f"-DCMAKE_CUDA_COMPILER={toolkit / 'bin' / 'nvcc'}"),
            *(f"-DCMAKE_CUDA_ARCHITECTURES={ARCHITECTURES}", "-DCMAKE_CUDA_FLAGS=-Xptxas=-v"),
            f"-DPython_EXECUTABLE={sys.executable}",
        ],
        check=True,
    )
    commands = json.loads((BUILD / "compile_commands.json").read_text(encoding="utf-8"))
    outputs = {Path(command["file"]): (BUILD / command["output"]).relative_to(BUILD) for command in commands}
    if missing := wanted - set(outputs):
        sys.exit(f"check_cuda: not in the build: {', '.join(map(str, sorted(missing)))}")
    build: list[str | Path] = [Path(ninja.BIN_DIR) / "ninja", "-C", BUILD, "-j2"]
    for path in ours:  # the compiler says what kernels take when it compiles them
        (BUILD / outputs[path]).unlink(missing_ok=True)
    result = subprocess.run([*build, *(outputs[path] for path in sorted(ours))], capture_output=True, text=True)
    if result.returncode != 0:
        sys.exit(f"check_cuda: our files do not compile\n{result.stdout[-4000:]}")
    if not report(result.stdout):
        sys.exit("check_cuda: a kernel spills registers, or the compiler named none")
    subprocess.run([*build, *(outputs[path] for path in sorted(patched))], check=True, stdout=subprocess.DEVNULL)
    print(f"check_cuda: {len(wanted)} files compiled for {ARCHITECTURES}: {', '.join(sorted(p.name for p in wanted))}")


if __name__ == "__main__":
    main()
