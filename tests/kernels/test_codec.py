"""The cold store's codec: exact for all values, types and units, nearly as small as an ideal code; damage is found."""

import itertools
from typing import Any

import numpy as np
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from h2o_llama import H2OError
from h2o_llama._core import EncodedRows

RNG = np.random.default_rng(5)

BLOCK_BYTES = {"i8": 1, "f16": 2, "bf16": 2, "f32": 4, "q8_0": 34, "q4_0": 18, "q4_1": 20, "q5_0": 22, "q5_1": 24}

FRAME_BYTES = 24
"""The most that a unit takes in addition to its rows."""


@pytest.fixture(autouse=True)
def _same_numbers_in_any_order_of_tests() -> None:
    RNG.bit_generator.state = np.random.default_rng(5).bit_generator.state


def as_bytes(array: NDArray[Any]) -> NDArray[np.uint8]:
    return np.ascontiguousarray(array).reshape(len(array), -1).view(np.uint8)


def channels(n_tokens: int, n: int) -> NDArray[np.float16]:
    """Like K: channels of very different size, some of them with a sign."""
    scale = np.exp2(RNG.uniform(-6, 3, n))
    return (scale * (RNG.standard_normal((n_tokens, n)) + RNG.choice([0, 0, 3, -3], n))).astype(np.float16)


def assert_exact(rows: NDArray[np.uint8], type_: str, unit_rows: int) -> EncodedRows:
    """All rows and some of them come back, from frames within the bound."""
    encoded = EncodedRows(rows, type=type_, unit_rows=unit_rows)
    n = len(rows)
    for start, stop in ((0, n), (0, 0), (n // 3, n // 2), (n // 2, n), (n // 2, min(n // 2 + 1, n))):
        assert encoded.decode(start, stop, encoded.frames).tobytes() == rows[start:stop].tobytes()
    assert len(encoded.frames) <= rows.nbytes + FRAME_BYTES * -(-n // unit_rows)
    return encoded


def test_all_half_values() -> None:
    """Every NaN with its payload, every subnormal, both zeros."""
    values = np.arange(65536, dtype=np.uint16)
    for type_, order in itertools.product(("f16", "bf16"), (values, RNG.permutation(values))):
        assert_exact(as_bytes(order.reshape(256, 256)), type_, 3)


def test_empty_and_odd_sizes() -> None:
    for shape, low in itertools.product([(0, 4), (3, 0), (1, 1), (500, 1), (3, 9000), (2, 60_000)], (1, 200, 256)):
        assert_exact(RNG.integers(0, low, shape).astype(np.uint8), "i8", 2)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(st.data())
def test_drawn_blocks(data: st.DataObject) -> None:
    type_ = data.draw(st.sampled_from(list(BLOCK_BYTES)))
    n_rows, n_blocks = data.draw(st.integers(0, 40)), data.draw(st.integers(0, 12))
    high = data.draw(st.sampled_from([1, 2, 3, 30, 256]))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    rows = rng.integers(0, high, (n_rows, n_blocks * BLOCK_BYTES[type_])).astype(np.uint8)
    rows = rows[rng.integers(0, max(n_rows // data.draw(st.integers(1, 4)), 1), n_rows)] if n_rows else rows
    assert_exact(rows, type_, data.draw(st.integers(1, 9)))


def test_predictors_are_used() -> None:
    """Where rows are a step or some flags from those before, little is left."""
    start = RNG.integers(0, 256, 96)
    steps = start + RNG.integers(0, 2, (256, 96)).cumsum(axis=0)
    flags = np.bitwise_xor.accumulate((RNG.random((256, 96)) < 0.1) * 0x5A, axis=0) ^ start
    for rows in (steps, flags):
        assert len(assert_exact(rows.astype(np.uint8), "i8", 64).frames) < 0.3 * rows.size


def test_takes_nearly_what_an_ideal_code_takes() -> None:
    """The entropy of the high bytes, the low ones, and a few bytes for each unit."""
    n, width = 2048, 256
    values = RNG.standard_normal((n, width)).astype(np.float16)
    counts = np.bincount(values.view(np.uint16).ravel() >> 8)
    counts = counts[counts > 0]
    ideal = -(counts * np.log2(counts / counts.sum())).sum() / 8 + n * width
    for unit_rows in (2, 100):
        found = assert_exact(as_bytes(values), "f16", unit_rows)
        assert 0 < len(found.frames) - ideal < 0.01 * ideal + FRAME_BYTES * (n / unit_rows)


def test_damage_is_found() -> None:
    """Of every byte, but for bits of a frame's header that change no row; and it does not matter to other units."""
    rows = as_bytes(channels(40, 32))
    encoded = EncodedRows(rows, type="f16", unit_rows=4)
    frames = encoded.frames
    n_found = 0
    for i in range(len(frames)):
        damaged = bytearray(frames)
        damaged[i] ^= 1 << i % 8
        try:
            assert encoded.decode(0, 40, bytes(damaged)).tobytes() == rows.tobytes(), i
        except H2OError:
            n_found += 1
    assert n_found >= len(frames) - 2 * 10
    assert encoded.decode(0, 36, bytes(damaged)).tobytes() == rows[:36].tobytes()
    for other in (bytes(len(frames)), frames[1:] + b"\0"):
        with pytest.raises(H2OError, match="zstd"):
            encoded.decode(0, 40, other)


def test_the_python_package_zstandard_works_beside_our_copy() -> None:
    """Two versions in one process."""
    data = RNG.integers(0, 5, 50_000).astype(np.uint8)
    for _ in range(3):
        assert_exact(data.reshape(50, 1000), "i8", 10)
        packed = zstandard.ZstdCompressor(level=3).compress(data.tobytes())
        assert zstandard.ZstdDecompressor().decompress(packed) == data.tobytes()
