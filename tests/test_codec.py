"""The codec: exact for all values, shapes, predictors and units, for an oracle too; what it refuses."""

from __future__ import annotations

import itertools
from functools import partial
from typing import Any

import numpy as np
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from compare import assert_refused, case
from h2o_llama import H2OError, codec
from kv_rows import BLOCK_BYTES, typed
from oracle import codec as oracle
from oracle.xxh64 import xxh64

RNG = np.random.default_rng(5)


@pytest.fixture(autouse=True)
def _same_numbers_in_any_order_of_tests() -> None:
    RNG.bit_generator.state = np.random.default_rng(5).bit_generator.state


def channels(n_tokens: int, n: int) -> NDArray[np.float32]:
    """Like K: channels of very different size, some of them with a sign."""
    scale = np.exp2(RNG.uniform(-6, 3, n))
    return (scale * (RNG.standard_normal((n_tokens, n)) + RNG.choice([0, 0, 3, -3], n))).astype(np.float32)


def quantised(values: NDArray[np.float32]) -> NDArray[np.uint8]:
    """As Q8_0: blocks of 32, an F16 scale and quants."""
    blocks = values.reshape(len(values), -1, 32)
    scale = (np.abs(blocks).max(axis=2, keepdims=True) / 127).astype(np.float16)
    quants = np.rint(blocks / scale.astype(np.float32)).clip(-127, 127).astype(np.int8)
    return np.concatenate([scale.view(np.uint8), quants.view(np.uint8)], axis=2).reshape(len(values), -1)


def bound(frame: codec.Frame) -> int:
    """Bytes of a frame of which nothing became smaller."""
    n_units = -(-frame.n_rows // frame.unit_rows)
    return frame.raw_bytes + oracle.HEADER.size + 4 + 2 * len(frame.planes) + 8 * n_units


def assert_exact(array: NDArray[Any], **options: Any) -> codec.Frame:
    """By the package and by the oracle, all of it and some rows, and within the bound."""
    frame = codec.encode(array, **options)
    found = codec.decode(frame)
    assert found.dtype == array.dtype
    assert found.tobytes() == array.tobytes()
    assert oracle.decode(frame).tobytes() == array.tobytes()
    n = len(array)
    for start, stop in ((0, 0), (n // 3, n // 2), (n // 2, n), (n // 2, min(n // 2 + 1, n))):
        assert codec.decode(frame, start, stop).tobytes() == array[start:stop].tobytes()
    info = codec.inspect(frame)
    assert len(frame) <= bound(info)
    return info


# --- exact


def test_all_half_values() -> None:
    """Every NaN with its payload, every subnormal, both zeros."""
    values = np.arange(65536, dtype=np.uint16)
    for type_, order in itertools.product(("f16", "bf16"), (values, RNG.permutation(values))):
        rows = order.reshape(256, 256)
        assert_exact(rows.view(np.float16) if type_ == "f16" else rows, type=type_)


def test_nan_payloads_of_float32() -> None:
    bits = np.concatenate([RNG.integers(0x7F800001, 0x80000000, 500), RNG.integers(0xFF800001, 2**32, 500)])
    assert_exact(bits.astype(np.uint32).view(np.float32).reshape(50, 20))


@pytest.mark.parametrize("type_", codec.TYPES)
def test_every_type_predictor_and_unit(type_: str) -> None:
    """Bytes of few values, of few rows, and noise."""
    n_bytes = 6 * BLOCK_BYTES[type_]
    few = RNG.integers(0, 4, (40, n_bytes))
    constant = np.zeros((40, n_bytes))
    constant[:, ::2] = 7
    repeated = np.tile(RNG.integers(0, 256, (5, n_bytes)), (8, 1)) + (np.arange(40)[:, None] == 20)
    noise = RNG.integers(0, 256, (40, n_bytes))
    for data in (few, constant, repeated, noise):
        rows = typed(data.astype(np.uint8), type_)
        for predictor, unit_rows in itertools.product(codec.PREDICTORS, (None, 1, 7)):
            with case(predictor=predictor, unit_rows=unit_rows):
                assert_exact(rows, predictor=predictor, unit_rows=unit_rows, type=type_, strict=True)


@pytest.mark.parametrize("predictor", codec.PREDICTORS)
def test_empty_and_odd_sizes(predictor: Any) -> None:
    """Rows of more than 64 KiB stay as they are."""
    shapes = [(0, 4), (3, 0), (0, 0), (1, 1), (7,), (1, 500), (500, 1), (2, 3), (5, 3, 9), (3, 9000), (2, 33000)]
    for shape, low in itertools.product(shapes, (1, 200, 65536)):
        array = RNG.integers(0, low, shape).astype(np.uint16)
        assert_exact(array.view(np.float16), predictor=predictor)
        assert_exact(array.view(np.uint8) if array.size else array.astype(np.uint8), predictor=predictor)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(st.data())
def test_drawn_blocks(data: st.DataObject) -> None:
    type_ = data.draw(st.sampled_from(codec.TYPES))
    n_rows, n_blocks = data.draw(st.integers(0, 40)), data.draw(st.integers(0, 12))
    high = data.draw(st.sampled_from([1, 2, 3, 30, 256]))
    seed = data.draw(st.integers(0, 2**32))
    rng = np.random.default_rng(seed)
    rows = rng.integers(0, high, (n_rows, n_blocks * BLOCK_BYTES[type_])).astype(np.uint8)
    rows = rows[rng.integers(0, max(n_rows // data.draw(st.integers(1, 4)), 1), n_rows)] if n_rows else rows
    assert_exact(
        typed(rows, type_),
        type=type_,
        predictor=data.draw(st.sampled_from(codec.PREDICTORS)),  # type: ignore[arg-type]
        unit_rows=data.draw(st.sampled_from([None, 1, 2, 9])),
    )


def test_arrays_that_are_not_contiguous() -> None:
    array = channels(30, 48).astype(np.float16)
    for view in (array[::2], array[:, ::3], array.T, array[::-1]):
        assert codec.decode(codec.encode(view)).tobytes() == view.tobytes()


# --- small


def test_random_bytes_grow_by_headers_and_no_more() -> None:
    for n, unit_rows in itertools.product((1, 2, 31, 1000, 100_000), (None, 1)):
        frame = codec.encode(RNG.integers(0, 256, (n, 8)).astype(np.uint8), unit_rows=unit_rows)
        assert len(frame) == bound(codec.inspect(frame))
        assert not codec.inspect(frame).is_coded


def test_the_choice_is_close_to_the_best_predictor() -> None:
    """Channels like K's; a step of the same size everywhere; flags; pairs; a picture of few values."""
    n, width = 256, 96
    drift = np.cumsum(RNG.integers(-1, 2, (n, width)), axis=0)
    blocks = {
        "channels": channels(n, width).astype(np.float16),
        "drift": drift.astype(np.uint8),
        "steps": (RNG.integers(0, 256, width) + 3 * np.arange(n)[:, None]).astype(np.uint8),
        "flags": np.bitwise_xor.accumulate((RNG.random((n, width)) < 0.1) * 0x5A, axis=0).astype(np.uint8)
        ^ RNG.integers(0, 256, width, np.uint8),
        "pairs": np.repeat(RNG.integers(0, 256, (n, width // 2)), 2, axis=1).astype(np.uint8),
        "moving pairs": (np.repeat(RNG.integers(0, 256, (n, width // 2)), 2, axis=1) + [0, 50] * (width // 2)).astype(
            np.uint8
        ),
        "few": RNG.integers(0, 5, (n, width)).astype(np.uint8),
    }
    meant = {"steps": "delta", "flags": "xor", "pairs": "pair", "few": "raw"}
    for name, rows in blocks.items():
        sizes = {p: len(codec.encode(rows, predictor=p)) for p in codec.PREDICTORS}  # type: ignore[arg-type]
        found = sizes.pop("auto")
        assert found <= 1.02 * min(sizes.values()), (name, found, sizes)
        if name in meant:
            assert sizes[meant[name]] <= 1.01 * min(sizes.values()), (name, sizes)
            assert meant[name] == "raw" or sizes[meant[name]] < 0.97 * sizes["raw"], (name, sizes)


def test_takes_nearly_what_an_ideal_code_takes() -> None:
    """The entropy of the high bytes, the low ones, and a few bytes for each unit."""
    n, width = 2048, 256
    values = RNG.standard_normal((n, width)).astype(np.float16)
    counts = np.bincount(values.view(np.uint16).ravel() >> 8)
    counts = counts[counts > 0]
    ideal = -(counts * np.log2(counts / counts.sum())).sum() / 8 + n * width
    for unit_rows in (None, 1):
        found = assert_exact(values, unit_rows=unit_rows)
        per_unit = found.stored_bytes - ideal
        assert 0 < per_unit < 0.01 * ideal + 10 * (n // found.unit_rows)


def test_equal_rows_are_stored_once() -> None:
    rows = RNG.standard_normal((20, 64)).astype(np.float16)
    order = RNG.integers(0, 20, 200)
    for unit_rows in (None, 1):
        found = assert_exact(rows[order], unit_rows=unit_rows)
        assert found.stored_rows == len(set(order))
        assert found.stored_bytes < found.stored_rows * 136 + 200 * 4 + 100
        assert assert_exact(rows, unit_rows=unit_rows).stored_rows == 20


def test_planes_are_those_of_the_type() -> None:
    found = assert_exact(quantised(channels(64, 64)), type="q8_0")
    assert [p.is_coded for p in found.planes] == [True, False, True]
    (one,) = assert_exact(RNG.integers(0, 3, (64, 64)).astype(np.uint8)).planes
    assert one == codec.Plane("raw", is_coded=True)


def test_only_units_with_a_wanted_row_are_decoded() -> None:
    """Damage in another one does not matter."""
    values = channels(20, 64).astype(np.float16)
    frame = bytearray(codec.encode(values, unit_rows=4))
    frame[-1] ^= 1
    assert codec.decode(bytes(frame), 0, 16).tobytes() == values[:16].tobytes()
    with pytest.raises(H2OError, match="checksum"):
        codec.decode(bytes(frame), 15, 17)


# --- refused


def encoded(n_tokens: int = 40) -> bytes:
    rows = channels(n_tokens, 32).astype(np.float16)
    rows[30:] = rows[: n_tokens - 30]
    return codec.encode(rows)


def test_xxh64_is_the_real_one() -> None:
    """Values of xxHash's own test suite and command line."""
    assert xxh64(b"") == 0xEF46DB3751D8E999
    assert xxh64(b"a") == 0xD24EC4F1A98C6E5B
    assert xxh64(b"Nobody inspects the spammish repetition") == 0xFBCEA83C8A378BF1


def test_every_flipped_bit_and_every_truncation_is_found() -> None:
    frame = encoded()
    for i in range(len(frame)):
        damaged = bytearray(frame)
        damaged[i] ^= 1 << i % 8
        with pytest.raises(H2OError, match=r"\[codec\]"):
            codec.decode(bytes(damaged))
        with pytest.raises(H2OError, match=r"\[codec\]"):
            codec.decode(frame[:i])
    with pytest.raises(H2OError, match="not there"):
        codec.decode(frame + b"\0")


def test_headers_of_other_frames_are_found() -> None:
    a, b = encoded(40), encoded(41)
    for n in (24, 20, 16):
        with pytest.raises(H2OError):
            codec.decode(a[:n] + b[n:])


def test_damage_under_a_right_checksum() -> None:
    frame = encoded()
    n_code = int.from_bytes(frame[6:8], "little")
    numbers = oracle.HEADER.size + n_code
    cases = [
        ("type", 5, b"\x09", "contradicts itself"),
        ("rows, one less", 8, b"\x27\0\0\0", "damaged"),
        ("half a value", 12, b"\x41\0\0\0", "multiple of 2 bytes"),
        ("no row bytes", 12, b"\0\0\0\0", "damaged"),
        ("units of other rows", 16, b"\x09\0\0\0", "not there"),
        ("units of too many rows", 16, b"\xff\xff\xff\xff", "too many"),
        ("predictor", 24, b"\x07", "no such predictor"),
        ("a code that is none", 26, b"\xff\xff\xff", "a Huffman code that is none"),
        ("equal to a later row", numbers + 20, b"\x09", "not there"),
        ("fewer equal rows", numbers + 4 * 30, b"\x1e", "not there"),
        ("end", numbers + 4 * 40, b"\1\0\0\0", "not there"),
    ]
    for what, at, value, message in cases:
        damaged = oracle.with_checksum(frame[:at] + value + frame[at + len(value) :])
        with case(what=what), pytest.raises((H2OError, ValueError), match=message):
            codec.decode(damaged)
    with pytest.raises(H2OError, match="version 3, expected 2"):
        codec.decode(frame[:4] + b"\3" + frame[5:])


def test_a_small_frame_of_many_bytes_is_refused() -> None:
    frame = codec.encode(np.zeros((640, 64), np.uint8))
    assert len(frame) < 3000
    assert codec.decode(frame, max_bytes=40960).shape == (640, 64)
    with pytest.raises(H2OError, match="holds 40960 bytes, more than max_bytes = 40959"):
        codec.decode(frame, max_bytes=40959)


def test_bad_arguments() -> None:
    rows: Any = np.zeros((4, 8), np.float16)
    encode: Any = codec.encode
    decode: Any = codec.decode
    assert_refused(
        [
            *((partial(encode, bad), "array must be a NumPy array") for bad in ([[1.0]], np.float16(1), None)),
            *(
                (partial(encode, rows.astype(t)), "array must be uint8")
                for t in (np.float64, np.int64, np.uint16, ">f2")
            ),
            (partial(encode, rows, type="bf16"), 'array must be uint16 for type "bf16", got float16'),
            (partial(encode, rows.astype(np.uint8), type="q8_0"), "must have a multiple of 34 bytes, got 8"),
            (partial(encode, rows, predictor=3), "predictor must be one of 'auto'"),
            (partial(encode, rows, type="q3"), "type must be one of 'u8'"),
            (partial(decode, bytearray(40)), "frame must be bytes"),
            (partial(encode, rows, unit_rows=0), "unit_rows must be an integer of at least 1"),
            (partial(decode, encoded(), max_bytes=-1), "max_bytes must be"),
            (partial(decode, encoded(), 0, 41), "stop must be an integer from 0 to 40"),
            (partial(decode, encoded(), 3, 2), "start must be an integer from 0 to 2"),
        ]
    )


def test_the_python_package_zstandard_works_beside_our_copy() -> None:
    """Two versions in one process."""
    data = RNG.integers(0, 5, 50_000).astype(np.uint8)
    for _ in range(3):
        assert_exact(data.reshape(50, 1000))
        packed = zstandard.ZstdCompressor(level=3).compress(data.tobytes())
        assert zstandard.ZstdDecompressor().decompress(packed) == data.tobytes()
