"""A GGUF file, of a model or an adapter, as far as Python can tell."""

from __future__ import annotations

from pathlib import Path

from h2o_llama.errors import DamagedFileError


def check_gguf_file(prefix: str, path: Path, hint: str = "") -> None:
    """Whether there is a file with something in it. Messages begin with the prefix; the hint is for a missing file.

    Raises FileNotFoundError, PermissionError, ValueError for a folder or a special file, DamagedFileError for an empty
    file.
    """
    if not path.exists():
        raise FileNotFoundError(f"{prefix} there is no file {path}{hint}")
    if not path.is_file():
        raise ValueError(f"{prefix} {path} is a folder or a special file, expected a GGUF file")
    if path.stat().st_size == 0:
        raise DamagedFileError(f"{prefix} {path} is empty, expected a GGUF file")
    with path.open("rb"):  # PermissionError, rather than "no valid GGUF"
        pass
