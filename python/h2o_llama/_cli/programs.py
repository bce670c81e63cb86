"""llama.cpp's programs that come with the package."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import NoReturn

from h2o_llama import H2OError, _core


def program(owner: str, name: str, remedy: str) -> Path:
    """A program in the extension module's folder, which an editable installation keeps elsewhere.

    Raises H2OError, with the remedy, if this build lacks it.
    """
    path = Path(_core.__file__).parent / "lib" / (f"{name}.exe" if os.name == "nt" else name)
    if not path.is_file():
        raise H2OError(f"[{owner}] there is no {path}: {remedy}")
    return path


def become(path: Path, arguments: list[str]) -> NoReturn:
    """Run the program in the place of this process, so that signals reach it."""
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(path, [path.name, *arguments])
