"""Write python/h2o_llama/_core.pyi from the installed extension, or with --check say how the committed one differs."""

import difflib
import os
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
STUB = ROOT / "python" / "h2o_llama" / "_core.pyi"


def ruff() -> Path:
    """The program itself: `python -m ruff` runs any file of this name next to Python, which may run it again."""
    for folder in (sysconfig.get_path("scripts"), *os.get_exec_path()):
        path = Path(folder) / "ruff"
        if path.is_file() and path.open("rb").read(2) != b"#!":
            return path
    sys.exit("stubs: ruff is missing: pip install --group dev")


def generate() -> str:
    """The stub as pybind11-stubgen and ruff make it; exits when a signature is not valid Python."""
    with tempfile.TemporaryDirectory() as folder:
        command = ["pybind11_stubgen", "h2o_llama._core", "--exit-code", f"--output-dir={folder}"]
        subprocess.run([sys.executable, "-m", *command], check=True)
        stub = Path(folder) / "h2o_llama" / "_core.pyi"
        for action in (["check", "--fix-only", "--quiet"], ["format", "--quiet"]):
            subprocess.run([ruff(), *action, f"--config={ROOT / 'pyproject.toml'}", stub], check=True)
        return stub.read_text(encoding="utf-8")


def main() -> None:
    stub = generate()
    if "--check" not in sys.argv[1:]:
        STUB.write_text(stub, encoding="utf-8")
    elif difference := list(
        difflib.unified_diff(STUB.read_text("utf-8").splitlines(), stub.splitlines(), "committed", "built")
    ):
        print("\n".join(difference))
        sys.exit("stubs: _core.pyi is out of date: run `python tools/stubs.py`")


if __name__ == "__main__":
    main()
