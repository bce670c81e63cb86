"""Files of snapshots: some JSON, and sections of bytes, each checked.

    magic, version      12 bytes
    header              a block of JSON: "origin", and the sections' sizes
    each section        blocks of at most 8 MiB of byte planes

A block is its size, 4 bytes, and one Zstandard frame, which has the size of its content and a checksum.
Byte planes: all first bytes of the block's numbers, then all second ones, ... The high bytes of floating-point numbers
have little in them, the low ones are noise: apart, F16 shrinks by 18 %, mixed by 11 %. All numbers are little-endian.
"""

import io
import json
import os
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import zstandard

from h2o_llama._internal import check
from h2o_llama._internal.atomic import replacing
from h2o_llama.errors import DamagedFileError

_OWNER = "Snapshot"

MAGIC = b"h2o-snap"
VERSION = 2
"""Of this format. Another pinned llama.cpp whose states differ needs another one."""

_NUMBER = struct.Struct("<I")

_BLOCK = 8 << 20
_LEVEL = 1
_MAX_HEADER = 1 << 20
_MOST_SMALL = 64 << 20
_MOST_RATIO = 50
"""A file may decompress to this many bytes, or to this many times its own size. K and V shrink by a fifth."""


class Section(NamedTuple):
    """Bytes, and how many of them make a number: 1, 2 or 4."""

    content: bytes
    width: int


def write(path: str | os.PathLike[str], origin: Mapping[str, Any], sections: Mapping[str, Section]) -> None:
    """Write a file, which replaces one of that name when it is complete. Raises as `Snapshot.save`."""
    target = _check_path(path)
    if target.exists() and not target.is_file():
        raise ValueError(f"[{_OWNER}.save] {target} is a folder or a special file, expected the name of a file")
    try:
        with replacing(target) as file:
            _write(file, origin, sections)
    except OSError as error:
        message = f"[{_OWNER}.save] {target} cannot be written ({error.strerror}); an existing file has not changed"
        raise OSError(error.errno, message) from error


def _write(file: BinaryIO, origin: Mapping[str, Any], sections: Mapping[str, Section]) -> None:
    sizes = {name: {"bytes": len(section.content), "planes": section.width} for name, section in sections.items()}
    header = json.dumps({"origin": origin, "sections": sizes}).encode()
    compressor = zstandard.ZstdCompressor(level=_LEVEL, write_checksum=True)

    def write_block(content: bytes) -> None:
        block = compressor.compress(content)
        file.write(_NUMBER.pack(len(block)))
        file.write(block)

    file.write(MAGIC + _NUMBER.pack(VERSION))
    write_block(header)
    for content, width in sections.values():
        for start, stop in _blocks(len(content)):
            write_block(_to_planes(memoryview(content)[start:stop], width))


def read(path: str | os.PathLike[str], names: tuple[str, ...]) -> tuple[Any, list[bytes]]:
    """The origin, as JSON, and the contents of these sections. Raises as `Snapshot.load`."""
    source = _check_path(path)
    if not source.exists():
        raise FileNotFoundError(f"[{_OWNER}.load] there is no file {source}")
    if not source.is_file():
        raise ValueError(f"[{_OWNER}.load] {source} is a folder or a special file, expected a snapshot")
    with source.open("rb") as file:
        header = _header(file)
        sizes = [_size(file, name, header.get("sections")) for name in names]
        n_bytes, n_stored = sum(n for n, _ in sizes), source.stat().st_size
        if n_bytes > max(_MOST_SMALL, _MOST_RATIO * n_stored):
            raise damaged(source, f"its {n_stored:,} bytes are said to become {n_bytes:,}")
        contents = [_content(file, name, *size) for name, size in zip(names, sizes, strict=True)]
        if file.read(1):
            raise damaged(source, "it continues after its end")
    return header.get("origin"), contents


def damaged(path: str | os.PathLike[str], what: str) -> DamagedFileError:
    """The error that says so."""
    return DamagedFileError(
        f"[{_OWNER}.load] {os.fspath(path)} is damaged: {what}. Use another copy, or read the text again"
    )


def _take(file: BinaryIO, n: int) -> bytes:
    data = file.read(n)
    if len(data) < n:
        raise damaged(file.name, f"it ends after {file.tell()} bytes, in the middle")
    return data


def _header(file: BinaryIO) -> dict[str, Any]:
    magic = file.read(len(MAGIC))
    if magic != MAGIC:
        begin = f"it begins with {magic!r}, expected {MAGIC!r}" if magic else "it is empty"
        raise DamagedFileError(f"[{_OWNER}.load] {file.name} is not a snapshot of h2o-llama: {begin}")
    (version,) = _NUMBER.unpack(_take(file, _NUMBER.size))
    if version != VERSION:
        told = "update h2o-llama" if version > VERSION else "read the text again"
        raise DamagedFileError(
            f"[{_OWNER}.load] {file.name} is of format version {version}, this h2o-llama reads version {VERSION}: "
            f"{told}"
        )
    data = _block(file, "its header", range(_MAX_HEADER))
    try:
        header = json.loads(data)
    except (ValueError, RecursionError):
        header = None
    if not isinstance(header, dict):
        raise damaged(file.name, "its header cannot be read")
    return header


def _size(file: BinaryIO, name: str, sections: Any) -> tuple[int, int]:
    """Bytes and planes of a section, as the header's `sections` have them."""
    try:
        n_bytes, width = sections[name]["bytes"], sections[name]["planes"]
    except (TypeError, KeyError):
        n_bytes = width = None
    if type(n_bytes) is not int or n_bytes < 0 or type(width) is not int or width not in (1, 2, 4):
        raise damaged(file.name, f"its header does not say what section {name!r} is")
    return n_bytes, width


def _content(file: BinaryIO, name: str, n_bytes: int, width: int) -> bytes:
    content = io.BytesIO()
    for start, stop in _blocks(n_bytes):
        block = _block(file, f"section {name!r}", range(stop - start, stop - start + 1))
        content.write(_from_planes(block, width))
    return content.getvalue()


def _block(file: BinaryIO, where: str, sizes: range) -> bytes:
    """The content of the next block; `sizes` are the possible ones."""
    (n_stored,) = _NUMBER.unpack(_take(file, _NUMBER.size))
    if n_stored > 2 * _BLOCK:
        raise damaged(file.name, f"a block of {where} is said to have {n_stored} bytes")
    data = _take(file, n_stored)
    try:
        if (n := zstandard.frame_content_size(data)) not in sizes:  # before memory is asked for
            raise zstandard.ZstdError(f"it has {n} bytes, expected {sizes.stop - 1}")
        return zstandard.ZstdDecompressor().decompress(data, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise damaged(file.name, f"{where} is damaged near byte {file.tell()} ({error})") from None


def _check_path(path: object) -> Path:
    name = os.fspath(path) if isinstance(path, str | os.PathLike) else None
    if not isinstance(name, str) or "\0" in name:
        raise check.bad_argument(_OWNER, "path", "the path of a file", path)
    return Path(os.path.expanduser(name))


def _blocks(n: int) -> Iterator[tuple[int, int]]:
    return ((start, min(n, start + _BLOCK)) for start in range(0, n, _BLOCK))


def _to_planes(data: bytes | memoryview, width: int) -> bytes:
    n = len(data) // width * width
    planes: bytes = np.frombuffer(data[:n], np.uint8).reshape(-1, width).T.tobytes()
    return planes + bytes(data[n:])


def _from_planes(data: bytes, width: int) -> bytes:
    n = len(data) // width * width
    numbers: bytes = np.frombuffer(data[:n], np.uint8).reshape(width, -1).T.tobytes()
    return numbers + data[n:]
