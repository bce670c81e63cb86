"""Lossless compression of K and V: rows of one type, such as a chunk of a layer's keys, to a frame of bytes and back.

The format, and what it makes of real K and V, is in docs/kv-tiers.md.

Rows that are equal to an earlier one are stored once. The others are taken apart into planes: the high bytes of F16,
the low ones; of Q8_0 the scales and the quants. Each plane has the predictor that promises to be smallest, and each
stream of bytes that it leaves is coded by zstd, LZ4 or RLE, or stays as it is. A frame is never more than
`HEADER_BYTES` longer than the rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from h2o_llama import _check, _core
from h2o_llama.errors import H2OError

Codec: TypeAlias = Literal["auto", "zstd", "lz4", "rle", "raw"]
Predictor: TypeAlias = Literal["auto", "raw", "delta", "xor", "pair", "pair_delta", "context"]

HEADER_BYTES: int = _core.CODEC_HEADER_BYTES
CODECS: tuple[str, ...] = tuple(_core.codec_names())
PREDICTORS: tuple[str, ...] = tuple(_core.codec_predictors())
TYPES: tuple[str, ...] = tuple(_core.codec_types())

_OWNER = "codec"
_DTYPES: dict[str, np.dtype[Any]] = {
    "f16": np.dtype(np.float16),
    "bf16": np.dtype(np.uint16),
    "f32": np.dtype(np.float32),
}
_MAX_BYTES = 1 << 32


@dataclass(frozen=True)
class Plane:
    """One plane of a frame.

    Attributes
    ----------
    predictor : str
        One of `PREDICTORS`.
    raw_bytes, stored_bytes : int
        Of all rows; with its headers, without rows that are equal to others.
    codecs : tuple of str
        How each of its streams is coded: "context" leaves several, the others one.
    """

    predictor: str
    raw_bytes: int
    stored_bytes: int
    codecs: tuple[str, ...]


@dataclass(frozen=True)
class Frame:
    """What a frame says of itself.

    Attributes
    ----------
    type : str
        One of `TYPES`.
    n_rows, row_bytes : int
        The rows that it holds.
    kept_rows : int
        How many of them are not equal to an earlier one, or n_rows where that saves nothing.
    planes : tuple of Plane
        Empty if the rows are stored as they are.
    stored_bytes : int
        Length of the frame.
    """

    type: str
    n_rows: int
    row_bytes: int
    kept_rows: int
    planes: tuple[Plane, ...]
    stored_bytes: int

    @property
    def raw_bytes(self) -> int:
        return self.n_rows * self.row_bytes

    @property
    def ratio(self) -> float:
        """Bytes of the rows over those of the frame. Rows that are stored as they are: a little less than 1."""
        return self.raw_bytes / self.stored_bytes


@dataclass(frozen=True)
class WorkStats:
    """What a pool has done of one kind of work.

    Attributes
    ----------
    done, failed, skipped : int
        Blocks that it has done; those of them that ended with an error; those that it did not take.
    p50_us, p95_us, p99_us : float
        Percentiles of the microseconds that one took, of the last 4,096, without waiting.
    """

    done: int
    failed: int
    skipped: int
    p50_us: float
    p95_us: float
    p99_us: float


@dataclass(frozen=True)
class PoolStats:
    """What a pool has done.

    Attributes
    ----------
    encode, decode : WorkStats
    queue_length, queue_peak : int
        Blocks that wait now; the most that ever waited.
    """

    encode: WorkStats
    decode: WorkStats
    queue_length: int
    queue_peak: int


def encode(
    array: NDArray[Any],
    codec: Codec = "auto",
    *,
    type: str | None = None,
    predictor: Predictor = "auto",
    equal_rows: bool = True,
    strict: bool = False,
) -> bytes:
    """Compress rows.

    Parameters
    ----------
    array : float16, float32, uint16 or uint8 [n_tokens, ...]
        A row for each token, in the order of the text.
    codec : str
        How bytes become fewer: "zstd"; "lz4", which is larger and decodes faster; "rle", only where all bytes of a
        stream are equal; "raw", not at all; or "auto": "rle" where it can be, else "zstd". What does not become
        smaller stays as it is.
    type : str, optional
        What the rows consist of, one of `TYPES`. By default "f16", "f32" or, of uint8, "u8": bytes of which nothing is
        known. uint16 holds "bf16", uint8 ggml's blocks, such as "q8_0".
    predictor : str
        Of all planes, one of `PREDICTORS`; "auto": for each what promises to be smallest.
    equal_rows : bool
        Store rows that are equal to an earlier one only once.
    strict : bool
        Decode the frame and compare.

    Returns
    -------
    bytes
        The frame, for `decode`.

    Raises
    ------
    ValueError
        If an argument has the wrong type, shape or name.
    H2OError
        With strict, if the frame does not give the same bytes.
    """
    rows, options = _block(_OWNER, array, codec, type, predictor, equal_rows)
    frame = _core.codec_encode(rows, **options)
    if _check.flag(_OWNER, "strict", strict):
        found, _ = _core.codec_decode(frame, max_bytes=rows.size)
        if not np.array_equal(found, rows):
            raise H2OError("[codec] the frame does not give the same bytes: please report this")
    return frame


def decode(frame: bytes, *, max_bytes: int = _MAX_BYTES) -> NDArray[Any]:
    """The rows of a frame, exactly.

    Parameters
    ----------
    frame : bytes
        Of `encode`.
    max_bytes : int
        The most that the rows may have: a small frame can hold many equal ones.

    Returns
    -------
    float16, float32, uint16 ("bf16") or uint8 (all other types) [n_tokens, n]
        What `encode` was given, with the axes after the first made one.

    Raises
    ------
    ValueError
        If frame is not bytes.
    H2OError
        If the frame is damaged, or holds more than max_bytes.
    """
    frame = _frame(_OWNER, frame)
    return _typed(*_core.codec_decode(frame, max_bytes=_check.integer(_OWNER, "max_bytes", max_bytes, 0, 2**63 - 1)))


def inspect(frame: bytes) -> Frame:
    """What a frame says of itself. Errors as those of `decode`."""
    info = _core.codec_inspect(_frame(_OWNER, frame))
    planes = tuple(Plane(p.predictor, p.raw_bytes, p.stored_bytes, tuple(p.codecs)) for p in info.planes)
    return Frame(info.type, info.n_rows, info.row_bytes, info.n_kept, planes, len(frame))


@dataclass(frozen=True)
class Rows:
    """Rows that a `RowCode` has encoded.

    Attributes
    ----------
    data : bytes
        One after another.
    ends : uint32 [n_tokens]
        Where each of them ends there.
    """

    data: bytes
    ends: NDArray[np.uint32]


class RowCode:
    """Encodes rows so that each can be decoded by itself, in less than a microsecond: what a cold store holds.

    It is made from some rows, and takes fewest bytes for others like them; none come out changed. A few groups of
    channels have a Huffman code (1952) each. Planes of bytes that this does not make smaller stay as they are.

    Parameters
    ----------
    array : float16, float32, uint16 or uint8 [n_tokens, ...]
        Rows, of which the first 1,024 are looked at.
    type : str, optional
        As for `encode`.

    Raises
    ------
    ValueError
        If an argument has the wrong type, shape or name.
    H2OError
        From `decode`, if what it is given is damaged.
    """

    def __init__(self, array: NDArray[Any], *, type: str | None = None) -> None:
        rows, self._type = _rows("codec.RowCode", array, type)
        self._code = _core.CodecRowCode(rows, type=self._type)

    def encode(self, array: NDArray[Any]) -> Rows:
        """Rows of the same type and length."""
        rows, _ = _rows("codec.RowCode", array, self._type)
        return Rows(*self._code.encode(rows))

    def decode(self, rows: Rows, start: int = 0, stop: int | None = None) -> NDArray[Any]:
        """Rows [start, stop), by default all, with the axes after the first made one."""
        if not isinstance(rows, Rows):
            raise _check.bad_argument("codec.RowCode", "rows", "what encode returned", rows)
        n = len(rows.ends)
        stop = _check.integer("codec.RowCode", "stop", n if stop is None else stop, 0, n)
        start = _check.integer("codec.RowCode", "start", start, 0, stop)
        return _typed(self._code.decode(rows.data, rows.ends, start, stop - start), self._type)


class Encoding:
    """A frame that a pool makes."""

    def __init__(self, task: _core.CodecTask) -> None:
        self._task = task

    @property
    def is_done(self) -> bool:
        return self._task.is_done

    def result(self) -> bytes:
        """Wait for the frame. Errors as those of `encode`."""
        frame = self._task.result()
        assert isinstance(frame, bytes)
        return frame


class Decoding:
    """Rows that a pool decodes."""

    def __init__(self, task: _core.CodecTask) -> None:
        self._task = task

    @property
    def is_done(self) -> bool:
        return self._task.is_done

    def result(self) -> NDArray[Any]:
        """Wait for the rows, as `decode` returns them. Errors as those of `decode`."""
        return _typed(*self._task.result())


class Pool:
    """Threads that encode and decode beside the computation.

    Blocks wait in a queue of limited length. Where it is full, a block is not taken: the caller does without, or does
    it itself. A pool is closed by `close()` or at the end of a `with` block, when all that it took is done.

    Parameters
    ----------
    threads : int
        How many.
    max_queue : int
        Most blocks that wait.

    Raises
    ------
    ValueError
        If a number is less than 1; from `encode` and `decode`, after `close()`.
    """

    def __init__(self, threads: int = 1, max_queue: int = 8) -> None:
        self._pool = _core.CodecPool(
            threads=_check.integer("codec.Pool", "threads", threads, 1, 512),
            max_queue=_check.integer("codec.Pool", "max_queue", max_queue, 1),
        )

    def encode(
        self,
        array: NDArray[Any],
        codec: Codec = "auto",
        *,
        type: str | None = None,
        predictor: Predictor = "auto",
        equal_rows: bool = True,
    ) -> Encoding | None:
        """Begin to compress a copy of these rows, see `h2o_llama.codec.encode`. None: the queue is full."""
        rows, options = _block("codec.Pool", array, codec, type, predictor, equal_rows)
        task = self._pool.encode(rows, **options)
        return None if task is None else Encoding(task)

    def decode(self, frame: bytes, *, max_bytes: int = _MAX_BYTES) -> Decoding | None:
        """Begin to decode a frame, see `h2o_llama.codec.decode`. None: the queue is full."""
        frame = _frame("codec.Pool", frame)
        task = self._pool.decode(frame, max_bytes=_check.integer("codec.Pool", "max_bytes", max_bytes, 0, 2**63 - 1))
        return None if task is None else Decoding(task)

    @property
    def stats(self) -> PoolStats:
        """What it has done so far, also after `close()`."""
        pool = self._pool
        encode, decode = (
            WorkStats(s.n_done, s.n_failed, s.n_skipped, s.p50_us, s.p95_us, s.p99_us)
            for s in (pool.encode_stats(), pool.decode_stats())
        )
        return PoolStats(encode, decode, pool.queue_length, pool.queue_peak)

    def close(self) -> None:
        """End the threads, when all that was taken is done."""
        self._pool.close()

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def _block(
    owner: str, array: object, codec: object, type: str | None, predictor: object, equal_rows: object
) -> tuple[NDArray[np.uint8], dict[str, Any]]:
    """Rows as bytes, uint8 [n_tokens, row_bytes], and the core's options."""
    rows, name = _rows(owner, array, type)
    return rows, {
        "type": name,
        "codec": _check.choice(owner, "codec", codec, CODECS),
        "predictor": _check.choice(owner, "predictor", predictor, PREDICTORS),
        "equal_rows": _check.flag(owner, "equal_rows", equal_rows),
    }


def _rows(owner: str, array: object, type: str | None) -> tuple[NDArray[np.uint8], str]:
    """Rows as bytes, uint8 [n_tokens, row_bytes], and their type's name."""
    if not isinstance(array, np.ndarray) or array.ndim == 0:
        raise _check.bad_argument(owner, "array", "a NumPy array of one axis or more", array)
    if type is None:
        found = [name for name, dtype in _DTYPES.items() if dtype == array.dtype and name != "bf16"]
        type = found[0] if found else "u8"
    name = _check.choice(owner, "type", type, TYPES)
    dtype = _DTYPES.get(name, np.dtype(np.uint8))
    if array.dtype != dtype:
        raise ValueError(f'[{owner}] array must be {dtype} for type "{name}", got {array.dtype}')
    n_tokens, row = array.shape[0], int(np.prod(array.shape[1:], dtype=np.int64))
    rows = np.ascontiguousarray(array).reshape(n_tokens, row).view(np.uint8)
    block = _core.codec_block_bytes(name)
    if row * dtype.itemsize % block != 0:
        raise ValueError(f'[{owner}] rows of type "{name}" must have a multiple of {block} bytes, got {row}')
    return rows.reshape(n_tokens, row * dtype.itemsize), name


def _frame(owner: str, frame: object) -> bytes:
    if not isinstance(frame, bytes):
        raise _check.bad_argument(owner, "frame", "bytes", frame)
    return frame


def _typed(rows: NDArray[np.uint8], type: str) -> NDArray[Any]:
    typed: NDArray[Any] = rows.view(_DTYPES.get(type, np.dtype(np.uint8)))
    return typed
