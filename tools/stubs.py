"""Write python/h2o_llama/_core.pyi from the installed extension, or with --check say how the committed one differs."""

from __future__ import annotations

import argparse
import difflib
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
STUB = ROOT / "python" / "h2o_llama" / "_core.pyi"


def generate() -> str:
    """The stub as pybind11-stubgen and ruff make it; exits when a signature is not valid Python."""
    with tempfile.TemporaryDirectory() as folder:
        command = ["pybind11_stubgen", "h2o_llama._core", "--exit-code", f"--output-dir={folder}"]
        subprocess.run([sys.executable, "-m", *command], check=True)
        stub = Path(folder) / "h2o_llama" / "_core.pyi"
        for action in (["check", "--fix-only", "--quiet"], ["format", "--quiet"]):
            subprocess.run(
                [sys.executable, "-m", "ruff", *action, f"--config={ROOT / 'pyproject.toml'}", stub], check=True
            )
        return stub.read_text(encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="change nothing, fail when the committed stub differs")
    options = parser.parse_args()
    stub = generate()
    if not options.check:
        STUB.write_text(stub, encoding="utf-8")
    elif difference := list(
        difflib.unified_diff(STUB.read_text("utf-8").splitlines(), stub.splitlines(), "committed", "built")
    ):
        print("\n".join(difference))
        sys.exit("stubs: _core.pyi is out of date: run `python tools/stubs.py`")


if __name__ == "__main__":
    main()
