"""Frames of K and V, taken apart and decoded byte by byte as docs/kv-tiers.md describes them."""

from __future__ import annotations

import struct
import zlib

import numpy as np
from numpy.typing import NDArray

from . import huffman
from .xxh64 import xxh64

HEADER = struct.Struct("<4sBBHIIII")
RAW, DELTA, XOR, PAIR, PAIR_DELTA = range(5)

Bytes = NDArray[np.uint8]

# type -> bytes of a ggml block, and of each plane: first byte, bytes
BLOCKS: dict[int, tuple[int, list[tuple[int, int]]]] = {
    0: (1, [(0, 1)]),
    1: (2, [(1, 1), (0, 1)]),
    2: (2, [(1, 1), (0, 1)]),
    3: (4, [(3, 1), (2, 1), (1, 1), (0, 1)]),
    4: (34, [(1, 1), (0, 1), (2, 32)]),
    5: (18, [(1, 1), (0, 1), (2, 16)]),
    6: (20, [(1, 1), (0, 1), (3, 1), (2, 1), (4, 16)]),
    7: (22, [(1, 1), (0, 1), (2, 4), (6, 16)]),
    8: (24, [(1, 1), (0, 1), (3, 1), (2, 1), (4, 4), (8, 16)]),
}


def head_bytes(frame: bytes) -> int:
    """Bytes before the checksum of the head."""
    _, _, _, n_code, n_rows, _, unit_rows, n_stored = HEADER.unpack_from(frame)
    n_numbers = n_rows if n_stored < n_rows else 0
    return HEADER.size + n_code + 4 * (n_numbers + -(-n_stored // unit_rows))


def with_checksum(frame: bytes) -> bytes:
    """The frame with a right checksum of its head."""
    n = head_bytes(frame)
    return frame[:n] + zlib.crc32(frame[:n]).to_bytes(4, "little") + frame[n + 4 :]


def decode(frame: bytes) -> Bytes:
    """The rows, uint8 [n_rows, row_bytes]."""
    magic, version, type_, n_code, n_rows, row_bytes, unit_rows, n_stored = HEADER.unpack_from(frame)
    assert (magic, version) == (b"H2KV", 2)
    assert with_checksum(frame) == frame
    planes = _planes(frame[HEADER.size : HEADER.size + n_code])
    at = HEADER.size + n_code
    numbers = np.arange(n_rows)
    if n_stored < n_rows:
        numbers = np.frombuffer(frame, "<u4", n_rows, at)
        at += 4 * n_rows
    ends = np.frombuffer(frame, "<u4", -(-n_stored // unit_rows), at)
    units = frame[head_bytes(frame) + 4 :]
    assert len(units) == (ends[-1] if len(ends) else 0)
    rows = [
        _unit(units[int(begin) : int(end)], type_, planes, min(unit_rows, n_stored - i * unit_rows), row_bytes)
        for i, (begin, end) in enumerate(zip([0, *ends], ends, strict=False))
    ]
    return np.concatenate([np.zeros((0, row_bytes), np.uint8), *rows])[numbers]


def _planes(code: bytes) -> list[tuple[int, bytes]]:
    """Of each its predictor and what says its Huffman code."""
    planes = []
    at = 0
    while at < len(code):
        end = at + 2 + code[at + 1]
        planes.append((code[at], code[at + 2 : end]))
        at = end
    return planes


def _unit(unit: bytes, type_: int, planes: list[tuple[int, bytes]], n_rows: int, row_bytes: int) -> Bytes:
    data = unit[4:]
    assert int.from_bytes(unit[:4], "little") == xxh64(data, len(data)) & 0xFFFFFFFF
    if len(data) == n_rows * row_bytes:
        return np.frombuffer(data, np.uint8).reshape(n_rows, row_bytes)
    block_bytes, fields = BLOCKS[type_]
    n_blocks = row_bytes // block_bytes
    sizes = [n_rows * n_blocks * n for _, n in fields]
    coded = [i for i, (_, weights) in enumerate(planes) if weights]
    stored = list(sizes)
    for k, i in enumerate(coded[:-1]):
        stored[i] = int.from_bytes(data[2 * k : 2 * k + 2], "little")
    at = 2 * (len(coded) - 1)
    stored[coded[-1]] = len(data) - at - sum(n for i, n in enumerate(stored) if i != coded[-1])

    blocks = np.zeros((n_rows, n_blocks, block_bytes), np.uint8)
    for (first, n_bytes), (predictor, weights), n, size in zip(fields, planes, stored, sizes, strict=True):
        stream = data[at : at + n]
        at += n
        plane = np.frombuffer(huffman.decode(weights, stream, size) if n < size else stream, np.uint8)
        plane = plane.reshape(n_rows, -1)
        if weights:
            plane = _unpredicted(plane, predictor)
        blocks[:, :, first : first + n_bytes] = plane.reshape(n_rows, n_blocks, n_bytes)
    assert at == len(data)
    return blocks.reshape(n_rows, row_bytes)


def _unpredicted(left: Bytes, predictor: int) -> Bytes:
    plane = left.copy()
    if predictor in (DELTA, PAIR_DELTA):
        plane = np.cumsum(plane, axis=0, dtype=np.uint8)
    if predictor in (PAIR, PAIR_DELTA):
        n_pairs = plane.shape[1] // 2
        plane[:, 1 : 2 * n_pairs : 2] += plane[:, 0 : 2 * n_pairs : 2]
    if predictor == XOR:
        plane = np.bitwise_xor.accumulate(plane, axis=0)
    return plane
