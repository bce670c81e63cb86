"""The documents of a batch."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

SUFFIXES = (".txt", ".md", ".rst")
"""Of the files that are documents, in any case."""


@dataclass(frozen=True)
class Document:
    """A text that questions are about.

    Parameters
    ----------
    name : str
        What answers call it.
    text : str
        Text.
    sha256 : str
        Of its bytes, as hexadecimal digits.
    """

    name: str
    text: str
    sha256: str

    @classmethod
    def of_text(cls, name: str, text: str) -> Document:
        """A text that comes from no file."""
        # half of a surrogate pair is not a character
        content = text.encode(errors="replace")
        return cls(name, content.decode(), hashlib.sha256(content).hexdigest())


def find_documents(folder: str | os.PathLike[str]) -> dict[str, Path]:
    """The text files in a folder and the folders in it, by their names: paths in the folder, sorted.

    Files and folders whose names begin with a dot are left out.

    Raises
    ------
    ValueError
        If it is not a folder, or has no text files.
    """
    root = Path(folder)
    if not root.is_dir():
        raise ValueError(f"[batch] documents must be a folder, got {root}")
    files = [
        path
        for path in root.rglob("*")
        if path.suffix.lower() in SUFFIXES
        and not any(part.startswith(".") for part in path.relative_to(root).parts)
        and path.is_file()
    ]
    if not files:
        raise ValueError(f"[batch] {root} has no text files: their names end with {', '.join(SUFFIXES)}")
    return dict(sorted((_name(path.relative_to(root)), path) for path in files))


def _name(path: Path) -> str:
    """On Linux a file's name may be any bytes: invalid UTF-8 is written as \\xff."""
    return os.fsencode(path.as_posix()).decode(errors="backslashreplace")


def read_document(name: str, path: str | os.PathLike[str]) -> Document:
    """Read a file.

    Raises
    ------
    OSError
        If it cannot be read.
    ValueError
        If it is not UTF-8.
    """
    content = Path(path).read_bytes()
    digest = hashlib.sha256(content).hexdigest()
    try:
        return Document(name, content.decode("utf-8-sig"), digest)
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8: byte {content[error.start]:#04x} at {error.start}") from error
