"""GGUF files taken apart, so that tests can damage one thing and put them together again.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from gguf import GGUFReader

ALIGNMENT = 32

UINT8, INT8, UINT16, INT16, UINT32, INT32, FLOAT32, BOOL, STRING, ARRAY, UINT64, INT64, FLOAT64 = range(13)


def pack(fmt: str, *values: int | float) -> bytes:
    return struct.pack("<" + fmt, *values)


def pack_string(text: bytes) -> bytes:
    return pack("Q", len(text)) + text


def pack_strings(texts: list[bytes]) -> bytes:
    """The value of an array of strings."""
    return pack("IQ", STRING, len(texts)) + b"".join(map(pack_string, texts))


def unpack_strings(value: bytes) -> list[bytes]:
    """An array of strings, of its packed value."""
    texts, at = list[bytes](), struct.calcsize("<IQ")
    while at < len(value):
        (n,) = struct.unpack_from("<Q", value, at)
        texts.append(value[at + 8 : at + 8 + n])
        at += 8 + n
    return texts


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
        reader = GGUFReader(path)
        values = [entry for entry in reader.fields.values() if not entry.name.startswith("GGUF.")]
        file = cls(b"GGUF", int(reader.fields["GGUF.version"].contents()), len(reader.tensors), len(values))
        for entry in values:
            _, name, kind, *value = entry.parts
            file.metadata[name.tobytes()] = (int(kind[0]), b"".join(part.tobytes() for part in value))
        for tensor in reader.tensors:
            _, name, _, dims, kind, offset = tensor.field.parts
            file.tensors[name.tobytes()] = Tensor(name.tobytes(), dims.tolist(), int(kind[0]), int(offset[0]))
        file.data = path.read_bytes()[reader.data_offset :]
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
