"""The codec: exact for all values, shapes, predictors and codes, for an oracle too; what it refuses; its pool."""

from __future__ import annotations

import itertools
import threading
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


def assert_exact(array: NDArray[Any], **options: Any) -> codec.Frame:
    """By the package and by the oracle, and within the bound."""
    frame = codec.encode(array, **options)
    found = codec.decode(frame)
    assert found.dtype == array.dtype
    assert found.tobytes() == array.tobytes()
    assert oracle.decode(frame).tobytes() == array.tobytes()
    assert len(frame) <= array.nbytes + codec.HEADER_BYTES
    return codec.inspect(frame)


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
def test_every_type_predictor_and_codec(type_: str) -> None:
    """Bytes that all codes can shrink: runs, repetitions and noise of little entropy."""
    n_bytes = 6 * BLOCK_BYTES[type_]
    noise = RNG.integers(0, 4, (40, n_bytes))
    constant = np.zeros((40, n_bytes))
    constant[:, ::2] = 7
    repeated = np.tile(RNG.integers(0, 256, (5, n_bytes)), (8, 1)) + (np.arange(40)[:, None] == 20)
    for data in (noise, constant, repeated):
        rows = typed(data.astype(np.uint8), type_)
        for predictor, name in itertools.product(codec.PREDICTORS, codec.CODECS):
            with case(predictor=predictor, codec=name):
                assert_exact(rows, codec=name, predictor=predictor, type=type_, equal_rows=False, strict=True)


@pytest.mark.parametrize("predictor", codec.PREDICTORS)
def test_empty_and_odd_sizes(predictor: Any) -> None:
    shapes = [(0, 4), (3, 0), (0, 0), (1, 1), (7,), (1, 500), (500, 1), (2, 3), (5, 3, 9), (3, 9000)]
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
        codec=data.draw(st.sampled_from(codec.CODECS)),  # type: ignore[arg-type]
        predictor=data.draw(st.sampled_from(codec.PREDICTORS)),  # type: ignore[arg-type]
        equal_rows=data.draw(st.booleans()),
    )


def test_arrays_that_are_not_contiguous() -> None:
    array = channels(30, 48).astype(np.float16)
    for view in (array[::2], array[:, ::3], array.T, array[::-1]):
        assert codec.decode(codec.encode(view)).tobytes() == view.tobytes()


# --- small


def test_random_bytes_grow_by_a_header_and_no_more() -> None:
    for n in (1, 2, 31, 1000, 100_000):
        frame = codec.encode(RNG.integers(0, 256, (n, 8)).astype(np.uint8), equal_rows=n < 1000)
        assert len(frame) == 8 * n + codec.HEADER_BYTES
        assert codec.inspect(frame).planes == ()


def test_the_choice_is_close_to_the_best_predictor_and_codec() -> None:
    """Channels like K's; a slow drift; a step of the same size everywhere; a picture of few values; noise."""
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
        "text": np.frombuffer(b"the quick brown fox jumps over it " * 800, np.uint8)[: n * width].reshape(n, width),
    }
    meant = {"channels": "context", "steps": "delta", "flags": "xor", "pairs": "pair", "few": "raw"}
    for name, rows in blocks.items():
        sizes = {p: len(codec.encode(rows, predictor=p)) for p in codec.PREDICTORS}  # type: ignore[arg-type]
        found = sizes.pop("auto")
        assert found <= 1.02 * min(sizes.values()), (name, found, sizes)
        codes = [len(codec.encode(rows, c)) for c in ("zstd", "lz4", "rle", "raw")]  # type: ignore[arg-type]
        assert found <= min(codes), (name, found, codes)
        if name in meant:
            assert sizes[meant[name]] <= 1.01 * min(sizes.values()), (name, sizes)
            assert meant[name] == "raw" or sizes[meant[name]] < 0.97 * sizes["raw"], (name, sizes)


def test_contexts_beat_differences_on_channels() -> None:
    """Their entropy is what counts: 10 bits of noise, the sign and the magnitude of the channel."""
    rows = channels(1024, 128).astype(np.float16)
    frame = codec.inspect(codec.encode(rows))
    assert frame.planes[0].predictor == "context"
    others = [
        codec.inspect(codec.encode(rows, predictor=p)).ratio for p in ("raw", "delta", "xor", "pair", "pair_delta")
    ]  # type: ignore[arg-type]
    assert frame.ratio > 1.01 * max(others)


def test_equal_rows_are_stored_once() -> None:
    rows = RNG.standard_normal((20, 64)).astype(np.float16)
    order = RNG.integers(0, 20, 200)
    found = assert_exact(rows[order])
    assert found.kept_rows == len(set(order))
    assert found.stored_bytes < found.kept_rows * 128 + 200 * 3 + 100
    assert assert_exact(rows[order], equal_rows=False).kept_rows == 200
    assert assert_exact(rows).kept_rows == 20


def test_each_code_is_really_used() -> None:
    few = RNG.integers(0, 3, (64, 64)).astype(np.uint8)
    repeated = np.tile(RNG.integers(0, 256, (1, 64)).astype(np.uint8), (64, 1))
    repeated[:, 0] = np.arange(64)
    for name, rows in (("zstd", few), ("lz4", repeated), ("rle", np.full((64, 64), 9, np.uint8))):
        (plane,) = codec.inspect(codec.encode(rows, name, predictor="raw", equal_rows=False)).planes  # type: ignore[arg-type]
        assert plane.codecs == (name,)
    (plane,) = codec.inspect(codec.encode(np.full((64, 64), 9, np.uint8), equal_rows=False)).planes
    assert plane.codecs == ("rle",)
    assert codec.inspect(codec.encode(few, "raw")).planes == ()
    assert codec.inspect(codec.encode(few, "rle")).planes == ()


def test_quants_of_q8_0_have_contexts() -> None:
    rows = quantised(channels(512, 64) * np.tile(np.repeat([1, 0.02], 8), 4).astype(np.float32))
    by_fields = assert_exact(rows[:64], type="q8_0")
    assert [p.raw_bytes for p in by_fields.planes] == [64 * 2, 64 * 2, 64 * 64]
    as_q8_0, as_bytes = (codec.inspect(codec.encode(rows, type=t)) for t in ("q8_0", "u8"))
    assert as_q8_0.planes[2].predictor == "context"
    assert as_q8_0.ratio > 1.02 * as_bytes.ratio


# --- refused


def encoded(n_tokens: int = 40) -> bytes:
    rows = channels(n_tokens, 32).astype(np.float16)
    rows[5] = rows[2]
    return codec.encode(rows)


def with_checksum(frame: bytes) -> bytes:
    return frame[:28] + oracle.checksum(frame).to_bytes(8, "little") + frame[36:]


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
    with pytest.raises(H2OError, match="should have"):
        codec.decode(frame + b"\0")


def test_headers_of_other_frames_are_found() -> None:
    a, b = encoded(40), encoded(41)
    for n in (36, 28, 20):
        with pytest.raises(H2OError):
            codec.decode(a[:n] + b[n:])


def test_damage_under_a_right_checksum() -> None:
    cases = [
        ("version", 4, b"\2", "version 2, expected 1"),
        ("type", 5, b"\x09", "no type 9"),
        ("number of planes", 6, b"\3", "contradicts itself"),
        ("raw", 6, b"\0", "another size"),
        ("zero byte", 7, b"\1", "no type"),
        ("rows", 8, b"\xff\xff\xff\xff", "damaged"),
        ("rows, one less", 8, b"\x27\0\0\0", "damaged"),
        ("half a value", 12, b"\x41\0\0\0", "contradicts itself"),
        ("no row bytes", 12, b"\0\0\0\0", "planes of no bytes"),
        ("no rows kept", 16, b"\0\0\0\0", "planes of no bytes"),
        ("more kept than rows", 16, b"\xff\0\0\0", "contradicts itself"),
        ("more equal rows", 36, b"\x24", "equal to a later one|more rows are equal"),
        ("fewer equal rows", 36, b"\0", "fewer rows are equal"),
        ("equal to which", 41, b"\xff\xff", "equal to a later one"),
        ("predictor", 43, b"\x07", "no predictor 7"),
        ("no streams", 44, b"\0", "0 streams"),
        ("streams", 44, b"\x11", "17 streams"),
    ]
    frame = encoded()
    assert oracle.read_header(frame).n_kept == 39
    for what, at, value, message in cases:
        damaged = with_checksum(frame[:at] + value + frame[at + len(value) :])
        with case(what=what), pytest.raises(H2OError, match=message):
            codec.decode(damaged)


def test_a_small_frame_of_very_many_bytes_is_refused() -> None:
    """Planes of one byte: in 80 bytes 2^54 zeros."""
    frame = codec.encode(np.zeros((64, 64), np.uint8), "rle", equal_rows=False)
    assert codec.decode(frame, max_bytes=4096).shape == (64, 64)
    with pytest.raises(H2OError, match="holds 4096 bytes, more than max_bytes = 4095"):
        codec.decode(frame, max_bytes=4095)


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
            (partial(encode, rows, codec="gzip"), "codec must be one of 'auto'"),
            (partial(encode, rows, predictor=3), "predictor must be one of 'auto'"),
            (partial(encode, rows, type="q3"), "type must be one of 'u8'"),
            (partial(decode, bytearray(40)), "frame must be bytes"),
            (partial(decode, b"", max_bytes=-1), "max_bytes must be"),
        ]
    )


def test_the_python_package_zstandard_works_beside_our_copy() -> None:
    """Two versions in one process."""
    data = RNG.integers(0, 5, 50_000).astype(np.uint8)
    for _ in range(3):
        assert_exact(data.reshape(50, 1000))
        packed = zstandard.ZstdCompressor(level=3).compress(data.tobytes())
        assert zstandard.ZstdDecompressor().decompress(packed) == data.tobytes()


# --- threads


def test_a_pool_does_the_same() -> None:
    blocks = [channels(64, 64).astype(np.float16) for _ in range(20)]
    n_threads = threading.active_count()
    with codec.Pool(threads=3, max_queue=100) as pool:
        encodings = [pool.encode(rows) for rows in blocks]
        frames = [e.result() for e in encodings if e is not None]
        assert frames == [codec.encode(rows) for rows in blocks]
        decodings = [pool.decode(frame) for frame in frames]
        for rows, decoding in zip(blocks, decodings, strict=True):
            assert decoding is not None
            found = decoding.result()
            assert found.dtype == rows.dtype
            assert (found == rows).all()
            assert decoding.is_done
            assert (decoding.result() == rows).all()
        for work in (pool.stats.encode, pool.stats.decode):
            assert (work.done, work.failed, work.skipped) == (20, 0, 0)
            assert 0 < work.p50_us <= work.p95_us <= work.p99_us
    assert pool.stats.encode.done == 20
    assert threading.active_count() == n_threads


def native_threads() -> int:
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("Threads:"))


def test_a_closed_pool_has_done_all_and_leaves_no_thread() -> None:
    before = native_threads()
    pool = codec.Pool(threads=4, max_queue=100)
    assert native_threads() == before + 4
    rows = channels(512, 256).astype(np.float16)
    encodings = [pool.encode(rows) for _ in range(12)]
    pool.close()
    assert native_threads() == before
    assert all(e is not None and e.is_done for e in encodings)
    assert (pool.stats.encode.done, pool.stats.queue_length) == (12, 0)
    pool.close()
    for call in (lambda: pool.encode(rows), lambda: pool.decode(encoded())):
        with pytest.raises(ValueError, match="pool is closed"):
            call()
    for _ in range(5):
        codec.Pool(threads=2).encode(rows)  # never closed
    assert native_threads() == before


def test_a_full_queue_skips_and_counts() -> None:
    rows = channels(4096, 512).astype(np.float16)
    with codec.Pool(threads=1, max_queue=2) as pool:
        taken = [pool.encode(rows) for _ in range(10)]
        n_taken = sum(e is not None for e in taken)
        assert 2 <= n_taken < 10
        frame = codec.encode(rows)
        assert all(e.result() == frame for e in taken if e is not None)
        stats = pool.stats
        assert (stats.encode.done, stats.encode.skipped, stats.queue_peak) == (n_taken, 10 - n_taken, 2)
        assert pool.encode(rows) is not None, "there is room again"


def test_errors_reach_the_caller() -> None:
    """The header is read where it is asked for, what the streams decode to in a thread."""
    frame = bytearray(codec.encode(channels(64, 64).astype(np.float16), predictor="raw"))
    frame[36 + 2 + 9 + 20] ^= 0xFF  # in the first stream
    damaged = with_checksum(bytes(frame))
    with codec.Pool() as pool:
        decoding = pool.decode(damaged)
        assert decoding is not None
        for _ in range(2):
            with pytest.raises(H2OError, match="damaged"):
                decoding.result()
        assert (pool.stats.decode.done, pool.stats.decode.failed) == (1, 1)
        with pytest.raises(H2OError, match="checksum"):
            pool.decode(bytes(frame))
        again = pool.decode(codec.encode(np.zeros((2, 2), np.uint8)))
        assert again is not None
        assert again.result().shape == (2, 2)
    for arguments in ({"threads": 0}, {"max_queue": 0}):
        with pytest.raises(ValueError, match="must be an integer"):
            codec.Pool(**arguments)
