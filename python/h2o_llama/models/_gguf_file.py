"""Checks of a GGUF file, of a model or an adapter, by Python alone."""

from __future__ import annotations

from pathlib import Path
from typing import BinaryIO

from h2o_llama.errors import DamagedFileError

_SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
"""Bytes of a value of metadata, by the number of its type."""

_STRING, _ARRAY = 8, 9
_MOST = 1 << 24
"""Of values, tensors or strings: llama.cpp would not read more in any useful time."""


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


def tensor_starts(file: BinaryIO) -> list[int]:
    """Where in an open GGUF file its tensors begin; empty for any other file, or a damaged head."""
    try:
        return _Head(file).starts
    except EOFError:
        return []


class _Head:
    """The metadata and tensor infos: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md. Raises EOFError."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        file.seek(0)
        if file.read(4) != b"GGUF" or self._number(4) < 2:
            raise EOFError
        n_tensors, n_values = self._count(), self._count()
        alignment = 32
        for _ in range(n_values):
            key, kind = self._string(), self._number(4)
            if key == b"general.alignment" and kind == 4:
                alignment = self._number(4)
            else:
                self._skip(kind)
        offsets = [self._offset() for _ in range(n_tensors)]
        end = file.tell()
        data = end + -end % max(1, alignment)
        self.starts = [data + offset for offset in offsets]

    def _number(self, size: int) -> int:
        content = self._file.read(size)
        if len(content) < size:
            raise EOFError
        return int.from_bytes(content, "little")

    def _count(self) -> int:
        n = self._number(8)
        if n > _MOST:
            raise EOFError
        return n

    def _string(self) -> bytes:
        return self._file.read(self._count())

    def _skip(self, kind: int) -> None:
        if kind == _ARRAY:
            kind, n = self._number(4), self._count()
            if kind == _STRING:
                read, seek = self._file.read, self._file.seek  # a vocabulary has some hundred thousand
                for _ in range(n):
                    head = read(8)
                    length = int.from_bytes(head, "little")
                    if len(head) < 8 or length > _MOST:
                        raise EOFError
                    seek(length, 1)
            else:
                self._file.seek(n * self._size(kind), 1)
        elif kind == _STRING:
            self._file.seek(self._count(), 1)
        else:
            self._file.seek(self._size(kind), 1)

    def _size(self, kind: int) -> int:
        if kind not in _SIZES:
            raise EOFError
        return _SIZES[kind]

    def _offset(self) -> int:
        """Of the next tensor, after its name, its sizes and its type."""
        self._skip(_STRING)
        n_sizes = self._number(4)
        if n_sizes > 4:
            raise EOFError
        self._file.seek(8 * n_sizes + 4, 1)
        return self._number(8)
