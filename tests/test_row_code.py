"""Rows that are encoded one by one: exact for all values and types, decoded in any order, and damage is told."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from h2o_llama import H2OError, codec
from kv_rows import BLOCK_BYTES, typed

RNG = np.random.default_rng(5)


@pytest.fixture(autouse=True)
def _same_numbers_in_any_order_of_tests() -> None:
    RNG.bit_generator.state = np.random.default_rng(5).bit_generator.state


def assert_exact(code: codec.RowCode, array: NDArray[Any]) -> codec.Rows:
    """All rows together, each alone, and some that follow each other."""
    rows = code.encode(array)
    assert code.decode(rows).tobytes() == array.tobytes()
    assert code.decode(rows).dtype == array.dtype
    for i in range(len(array)):
        assert code.decode(rows, i, i + 1).tobytes() == array[i].tobytes()
    start, stop = len(array) // 3, len(array) // 2
    assert code.decode(rows, start, stop).tobytes() == array[start:stop].tobytes()
    return rows


def test_all_half_values() -> None:
    """By a code that knows them, and by one that has never seen most of them."""
    values = RNG.permutation(np.arange(65536, dtype=np.uint16)).reshape(512, 128).view(np.float16)
    usual = RNG.standard_normal((512, 128)).astype(np.float16)
    for sample in (values, usual, np.zeros_like(usual), usual[:0]):
        assert_exact(codec.RowCode(sample), values)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(st.data())
def test_drawn_rows(data: st.DataObject) -> None:
    """Of all types and odd sizes, by a code made from rows of another kind."""
    type_ = data.draw(st.sampled_from(codec.TYPES))
    n_blocks = data.draw(st.integers(0, 12))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))

    def drawn() -> NDArray[Any]:
        n_rows, high = data.draw(st.integers(0, 60)), data.draw(st.sampled_from([1, 2, 3, 30, 256]))
        return typed(rng.integers(0, high, (n_rows, n_blocks * BLOCK_BYTES[type_])).astype(np.uint8), type_)

    assert_exact(codec.RowCode(drawn(), type=type_), drawn())


def test_takes_nearly_what_an_ideal_code_takes() -> None:
    """Channels of two sizes: the entropy of their high bytes, their low bytes, and at most 9 bytes more for a row."""
    n, width = 4096, 256
    is_large = RNG.integers(0, 2, width) == 1
    values = (RNG.standard_normal((n, width)) * np.where(is_large, 16, 1)).astype(np.float16)
    rows = codec.RowCode(values[:1024]).encode(values)
    bits = 0.0
    for channels in (is_large, ~is_large):
        counts = np.bincount((values.view(np.uint16)[:, channels] >> 8).ravel())
        bits += -(counts[counts > 0] * np.log2(counts[counts > 0] / counts.sum())).sum()
    ideal = bits / 8 + n * width
    assert ideal + 6 * n < len(rows.data) < 1.01 * ideal + 9 * n


def test_rows_that_a_code_does_not_shorten_grow_by_their_header() -> None:
    noise = RNG.integers(0, 256, (300, 100)).astype(np.uint8)
    assert len(codec.RowCode(noise).encode(noise).data) == 300 * 106


def test_damage_is_told() -> None:
    """A bit anywhere, a row that is shorter or longer, another row in its place; the rows beside it remain readable."""
    values = RNG.standard_normal((20, 64)).astype(np.float16)
    code = codec.RowCode(values)
    rows = code.encode(values)
    begin, end = int(rows.ends[8]), int(rows.ends[9])
    for at in range(begin, end):
        data = bytearray(rows.data)
        data[at] ^= 1 << int(RNG.integers(8))
        damaged = codec.Rows(bytes(data), rows.ends)
        with pytest.raises(H2OError, match=r"the row is damaged: its checksum is wrong"):
            code.decode(damaged, 9, 10)
        assert code.decode(damaged, 0, 9).tobytes() == values[:9].tobytes()
    for moved in (-1, 1, begin - end):
        ends = rows.ends.astype(np.int64)
        ends[9] += moved
        with pytest.raises(H2OError, match="damaged"):
            code.decode(codec.Rows(rows.data, ends.astype(np.uint32)), 9, 10)
    for ends in (rows.ends[::-1].copy(), rows.ends + 1):
        with pytest.raises(H2OError, match=r"does not end in these bytes|damaged"):
            code.decode(codec.Rows(rows.data, ends), 10, 20)


@pytest.mark.parametrize(
    ("array", "type_", "told"),
    [
        (np.zeros((3, 5), np.float64), None, "array must be uint8"),
        (np.zeros((3, 5), np.uint8), "q8_0", 'rows of type "q8_0" must have a multiple of 34 bytes, got 5'),
        (np.zeros((3, 5), np.uint8), "f8", "type must be one of"),
    ],
)
def test_bad_rows(array: NDArray[Any], type_: str | None, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        codec.RowCode(array, type=type_)


def test_bad_arguments() -> None:
    code = codec.RowCode(np.zeros((4, 8), np.float16))
    with pytest.raises(ValueError, match="the rows must have 16 bytes"):
        code.encode(np.zeros((4, 9), np.float16))
    with pytest.raises(ValueError, match="array must be float16"):
        code.encode(np.zeros((4, 8), np.float32))
    rows = code.encode(np.zeros((4, 8), np.float16))
    for start, stop, told in (
        (0, 5, "stop must be an integer from 0 to 4"),
        (3, 2, "start must be an integer from 0 to 2"),
    ):
        with pytest.raises(ValueError, match=told):
            code.decode(rows, start, stop)
