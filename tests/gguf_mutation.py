"""GGUF files taken apart, so that tests can damage one thing and put them together again.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

ALIGNMENT = 32

# Value types, and the struct formats of types of fixed size.
UINT8, INT8, UINT16, INT16, UINT32, INT32, FLOAT32, BOOL, STRING, ARRAY, UINT64, INT64, FLOAT64 = range(13)
FORMATS = {
    UINT8: "B",
    INT8: "b",
    UINT16: "H",
    INT16: "h",
    UINT32: "I",
    INT32: "i",
    FLOAT32: "f",
    BOOL: "B",
    UINT64: "Q",
    INT64: "q",
    FLOAT64: "d",
}


def pack(fmt: str, *values: int | float) -> bytes:
    return struct.pack("<" + fmt, *values)


def pack_string(text: bytes) -> bytes:
    return pack("Q", len(text)) + text


def pack_strings(texts: list[bytes]) -> bytes:
    """The value of an array of strings."""
    return pack("IQ", STRING, len(texts)) + b"".join(map(pack_string, texts))


def unpack_strings(value: bytes) -> list[bytes]:
    """An array of strings, of its packed value."""
    reader = _Reader(value)
    assert reader.number("I") == STRING
    return [reader.string() for _ in range(reader.number("Q"))]


@dataclass
class Tensor:
    name: bytes
    dims: list[int]
    type: int
    offset: int

    def pack(self) -> bytes:
        return pack_string(self.name) + pack(
            f"I{len(self.dims)}QIQ", len(self.dims), *self.dims, self.type, self.offset
        )


@dataclass
class GGUFFile:
    """Everything in a file; `n_kv` and `n_tensors` are what the header says."""

    magic: bytes
    version: int
    n_tensors: int
    n_kv: int
    # key -> (type, packed value)
    metadata: dict[bytes, tuple[int, bytes]] = field(default_factory=dict)
    tensors: dict[bytes, Tensor] = field(default_factory=dict)
    data: bytes = b""

    @classmethod
    def read(cls, path: Path) -> GGUFFile:
        reader = _Reader(path.read_bytes())
        file = cls(reader.take(4), reader.number("I"), reader.number("Q"), reader.number("Q"))
        for _ in range(file.n_kv):
            key = reader.string()
            kind = reader.number("I")
            begin = reader.at
            reader.skip_value(kind)
            file.metadata[key] = (kind, reader.data[begin : reader.at])
        for _ in range(file.n_tensors):
            name = reader.string()
            dims = [reader.number("Q") for _ in range(reader.number("I"))]
            file.tensors[name] = Tensor(name, dims, reader.number("I"), reader.number("Q"))
        file.data = reader.data[_padded(reader.at) :]
        return file

    def header(self) -> bytes:
        parts = [self.magic, pack("IQQ", self.version, self.n_tensors, self.n_kv)]
        for key, (kind, value) in self.metadata.items():
            parts += [pack_string(key), pack("I", kind), value]
        parts += [tensor.pack() for tensor in self.tensors.values()]
        return b"".join(parts)

    def write(self, path: Path) -> None:
        header = self.header()
        path.write_bytes(header.ljust(_padded(len(header)), b"\0") + self.data)

    def set(self, key: str, kind: int, value: bytes) -> None:
        """Add or replace a key."""
        self.metadata[key.encode()] = (kind, value)
        self.n_kv = len(self.metadata)

    def set_u32(self, key: str, value: int) -> None:
        self.set(key, UINT32, pack("I", value))

    def remove(self, key: str) -> None:
        del self.metadata[key.encode()]
        self.n_kv = len(self.metadata)


def mutated(source: Path, target: Path, mutate: Callable[[GGUFFile], None]) -> Path:
    """A copy of `source` in which `mutate` has changed something."""
    file = GGUFFile.read(source)
    mutate(file)
    file.write(target)
    return target


def _padded(n: int) -> int:
    return -(-n // ALIGNMENT) * ALIGNMENT


class _Reader:
    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def take(self, n: int) -> bytes:
        self.at += n
        return self.data[self.at - n : self.at]

    def number(self, fmt: str) -> int:
        (value,) = struct.unpack("<" + fmt, self.take(struct.calcsize("<" + fmt)))
        return int(value)

    def string(self) -> bytes:
        return self.take(self.number("Q"))

    def skip_value(self, kind: int) -> None:
        if kind == STRING:
            self.string()
        elif kind == ARRAY:
            element, n = self.number("I"), self.number("Q")
            for _ in range(n):
                self.skip_value(element)
        else:
            self.take(struct.calcsize("<" + FORMATS[kind]))
