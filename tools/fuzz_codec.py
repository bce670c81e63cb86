"""Damaged frames, and blocks of all kinds: python tools/fuzz_codec.py [--frames N] [--seed S] [--jobs J]

Each block is encoded with drawn options and must come back exactly, within the bound. Then its frame is damaged: bits,
truncations, parts of other frames, numbers of headers; half of the time under checksums that are right. It must be
refused, or, under right checksums, give rows of the size that it says. N is 200,000 by default.

The work is done in processes of its own. If one dies, what it was working on is named by its number.
"""

from __future__ import annotations

import random
import struct
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from h2o_llama import H2OError, codec
from jobs import work_in_jobs

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
from kv_rows import BLOCK_BYTES, DTYPES
from oracle.codec import HEADER, with_checksum

NUMBERS = (0, 1, 2, 3, 16, 17, 27, 28, 127, 255, 65535, 65536, 2**31 - 1, 2**31, 2**32 - 1)


def work(numbers: range, seed: int) -> None:
    """The frames of these numbers, each printed before it is worked on."""
    frames: list[bytes] = []
    for number in numbers:
        print(number, flush=True)
        rng = random.Random(f"{seed}/{number}")
        if not frames or rng.random() < 0.1:
            frames = [*frames[-20:], good(rng)]
            while not codec.inspect(frames[-1]).is_coded and rng.random() < 0.9:
                frames[-1] = good(rng)
        damaged = rng.choice(DAMAGES)(rng.choice(frames), rng.choice(frames), rng)
        is_right = rng.random() < 0.5
        if is_right:
            try:
                damaged = with_checksum(damaged)
            except (struct.error, ZeroDivisionError):
                continue
        try:
            info = codec.inspect(damaged)
            rows = codec.decode(damaged, max_bytes=1 << 22)
        except (H2OError, ValueError):
            continue
        assert (len(rows), rows.nbytes) == (info.n_rows, info.raw_bytes)
        assert is_right or damaged in frames, "damage was not found"


def good(rng: random.Random) -> bytes:
    """A frame of a drawn block with drawn options."""
    type_ = rng.choice(codec.TYPES)
    rows = block(rng, BLOCK_BYTES[type_])
    array = rows.view(DTYPES.get(type_, np.uint8)) if rows.size else rows.astype(DTYPES.get(type_, np.uint8))
    frame = codec.encode(
        array,
        type=type_,
        predictor=rng.choice(codec.PREDICTORS),  # type: ignore[arg-type]
        unit_rows=rng.choice([None, 1, 2, 9]),
    )
    info = codec.inspect(frame)
    n_units = -(-info.n_rows // info.unit_rows)
    assert len(frame) <= array.nbytes + HEADER.size + 4 + 2 * len(info.planes) + 8 * n_units
    assert codec.decode(frame).tobytes() == array.tobytes()
    return frame


def block(rng: random.Random, block_bytes: int) -> NDArray[np.uint8]:
    draw = np.random.default_rng(rng.getrandbits(64))
    n_rows, n = rng.randrange(rng.choice([3, 40, 150])), rng.randrange(rng.choice([3, 30])) * block_bytes
    kind = rng.randrange(4)
    if kind == 0:
        rows = draw.integers(0, rng.choice([1, 2, 5, 256]), (n_rows, n))
    elif kind == 1:
        rows = np.cumsum(draw.integers(0, 3, (n_rows, n)), axis=0)
    elif kind == 2:
        rows = (draw.standard_normal((n_rows, n)) * draw.uniform(0, 40, n)).astype(np.int64)
    else:
        rows = np.tile(draw.integers(0, 256, (1, n)), (n_rows, 1))
        rows[:, : n // 4] = draw.integers(0, 256, (n_rows, n // 4))
    rows = rows.astype(np.uint8)
    return rows[draw.integers(0, n_rows, n_rows)] if n_rows and rng.random() < 0.3 else rows


def bits(frame: bytes, _: bytes, rng: random.Random) -> bytes:
    out = bytearray(frame)
    for _i in range(rng.randint(1, 3)):
        # the front of a frame has the sizes and the code
        out[rng.randrange(min(len(out), rng.choice([28, 80, 10**9])))] ^= 1 << rng.randrange(8)
    return bytes(out)


def truncated(frame: bytes, _: bytes, rng: random.Random) -> bytes:
    n = rng.randrange(len(frame))
    return frame[:n] if rng.random() < 0.5 else frame[:n] + rng.randbytes(rng.randrange(40))


def swapped(frame: bytes, other: bytes, rng: random.Random) -> bytes:
    n = rng.choice([5, 8, 16, 24, 48, rng.randrange(len(frame))])
    return frame[:n] + other[n:]


def number(frame: bytes, _: bytes, rng: random.Random) -> bytes:
    out = bytearray(frame)
    at = rng.randrange(min(len(out), rng.choice([28, 80, 10**9])) - 3)
    (old,) = struct.unpack_from("<I", out, at)
    new = rng.choice([rng.choice(NUMBERS), (old + rng.randint(-3, 3)) % 2**32])
    struct.pack_into("<I", out, at, new)
    return bytes(out)


def removed(frame: bytes, _: bytes, rng: random.Random) -> bytes:
    at = rng.randrange(len(frame))
    return frame[:at] + frame[at + rng.randint(1, 12) :]


DAMAGES: tuple[Callable[[bytes, bytes, random.Random], bytes], ...] = (bits, truncated, swapped, number, removed)


if __name__ == "__main__":
    work_in_jobs("frames", 200_000, work)
