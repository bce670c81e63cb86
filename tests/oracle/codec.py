"""Frames of K and V, taken apart and decoded byte by byte as docs/kv-tiers.md describes them."""

from __future__ import annotations

import struct
from dataclasses import dataclass

import numpy as np
import zstandard
from numpy.typing import NDArray

from .xxh64 import xxh64

HEADER = struct.Struct("<4s4B3IQQ")
STREAM = struct.Struct("<BII")
RAW, RLE, LZ4, ZSTD = range(4)
PLAIN, DELTA, XOR, PAIR, PAIR_DELTA, CONTEXT = range(6)

Bytes = NDArray[np.uint8]

# type -> bytes of a block, and of each plane: first byte, bytes, whether they are signed integers
BLOCKS: dict[int, tuple[int, list[tuple[int, int, bool]]]] = {
    0: (1, [(0, 1, False)]),
    1: (2, [(1, 1, False), (0, 1, False)]),
    2: (2, [(1, 1, False), (0, 1, False)]),
    3: (4, [(3, 1, False), (2, 1, False), (1, 1, False), (0, 1, False)]),
    4: (34, [(1, 1, False), (0, 1, False), (2, 32, True)]),
    5: (18, [(1, 1, False), (0, 1, False), (2, 16, False)]),
    6: (20, [(1, 1, False), (0, 1, False), (3, 1, False), (2, 1, False), (4, 16, False)]),
    7: (22, [(1, 1, False), (0, 1, False), (2, 4, False), (6, 16, False)]),
    8: (24, [(1, 1, False), (0, 1, False), (3, 1, False), (2, 1, False), (4, 4, False), (8, 16, False)]),
}


@dataclass
class Header:
    type: int
    n_planes: int
    n_rows: int
    row_bytes: int
    n_kept: int


def read_header(frame: bytes) -> Header:
    magic, version, type_, n_planes, zero, n_rows, row_bytes, n_kept, size, digest = HEADER.unpack_from(frame)
    assert (magic, version, zero, size) == (b"H2KV", 1, 0, len(frame))
    assert digest == checksum(frame)
    return Header(type_, n_planes, n_rows, row_bytes, n_kept)


def checksum(frame: bytes) -> int:
    """Of what follows the header, seeded with that of the header before it."""
    return xxh64(frame[HEADER.size :], xxh64(frame[: HEADER.size - 8]))


def decode(frame: bytes) -> Bytes:
    """The rows, uint8 [n_rows, row_bytes]."""
    header = read_header(frame)
    at = HEADER.size
    if header.n_planes == 0:
        return np.frombuffer(frame, np.uint8, offset=at).reshape(header.n_rows, header.row_bytes)
    numbers = list(range(header.n_rows))
    if header.n_kept < header.n_rows:
        numbers, at = _equal_rows(frame, at, header)
    block_bytes, planes = BLOCKS[header.type]
    n_blocks = header.row_bytes // block_bytes
    blocks = np.zeros((header.n_kept, n_blocks, block_bytes), np.uint8)
    for first, n_bytes, is_integer in planes:
        plane, at = _plane(frame, at, header.n_kept, n_blocks * n_bytes)
        if is_integer:
            plane = np.where(plane >= 128, plane ^ 127, plane)
        blocks[:, :, first : first + n_bytes] = plane.reshape(header.n_kept, n_blocks, n_bytes)
    assert at == len(frame)
    return blocks.reshape(header.n_kept, header.row_bytes)[numbers]


def _equal_rows(frame: bytes, at: int, header: Header) -> tuple[list[int], int]:
    bits = np.unpackbits(
        np.frombuffer(frame, np.uint8, (header.n_rows + 7) // 8, at), count=header.n_rows, bitorder="little"
    )
    at += (header.n_rows + 7) // 8
    size = 4 if header.n_kept > 65536 else 2
    numbers = []
    n_new = 0
    for is_equal in bits:
        if is_equal:
            numbers.append(int.from_bytes(frame[at : at + size], "little"))
            at += size
        else:
            numbers.append(n_new)
            n_new += 1
    assert n_new == header.n_kept
    return numbers, at


def _plane(frame: bytes, at: int, n_rows: int, width: int) -> tuple[Bytes, int]:
    predictor, n_streams = frame[at], frame[at + 1]
    thresholds = list(frame[at + 2 : at + 1 + n_streams])
    at += 1 + n_streams
    streams = []
    for _ in range(n_streams):
        code, n_raw, n = STREAM.unpack_from(frame, at)
        at += STREAM.size
        streams.append(_stream(code, frame[at : at + n], n_raw))
        at += n
    if predictor == CONTEXT:
        return _from_contexts(streams, thresholds, n_rows, width), at
    (stream,) = streams
    plane = np.frombuffer(stream, np.uint8).reshape(n_rows, width).copy()
    if predictor in (DELTA, PAIR_DELTA):
        plane = np.cumsum(plane, axis=0, dtype=np.uint8)
    if predictor in (PAIR, PAIR_DELTA):
        n_pairs = width // 2
        plane[:, 1 : 2 * n_pairs : 2] += plane[:, 0 : 2 * n_pairs : 2]
    if predictor == XOR:
        plane = np.bitwise_xor.accumulate(plane, axis=0)
    return plane, at


def _from_contexts(streams: list[bytes], thresholds: list[int], n_rows: int, width: int) -> Bytes:
    plane = np.zeros((n_rows, width), np.uint8)
    before = np.zeros(width, np.uint8)
    ends = [[0, len(stream)] for stream in streams]
    for row in plane:
        for i in range(width):
            context = sum(int(before[i]) & 127 >= t for t in thresholds)
            end = ends[context]
            if i < width // 2:
                symbol = streams[context][end[0]]
                end[0] += 1
            else:
                end[1] -= 1
                symbol = streams[context][end[1]]
            row[i] = symbol ^ (int(before[i]) & 128)
        before = row
    assert all(left == right for left, right in ends)
    return plane


def _stream(code: int, data: bytes, n_raw: int) -> bytes:
    if code == RAW:
        out = data
    elif code == RLE:
        out = data * n_raw
    elif code == LZ4:
        out = _lz4_block(data)
    else:
        assert code == ZSTD
        parameters = zstandard.FORMAT_ZSTD1_MAGICLESS
        out = zstandard.ZstdDecompressor(format=parameters).decompress(data, max_output_size=n_raw)
    assert len(out) == n_raw
    return out


def _lz4_block(data: bytes) -> bytes:
    """LZ4's block format: literals, then a match, and so on; the last has no match."""
    out = bytearray()
    at = 0

    def length(start: int) -> int:
        nonlocal at
        n = start
        while start == 15:
            n += data[at]
            at += 1
            if data[at - 1] != 255:
                break
        return n

    while True:
        token = data[at]
        at += 1
        n = length(token >> 4)
        out += data[at : at + n]
        at += n
        if at == len(data):
            return bytes(out)
        offset = int.from_bytes(data[at : at + 2], "little")
        at += 2
        for _ in range(length(token & 15) + 4):
            out.append(out[-offset])
