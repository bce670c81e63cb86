"""Lossless compression of K and V: rows of one type, such as a chunk of a layer's keys, to a frame of bytes and back.

The format, and what it makes of real K and V, is in docs/kv-tiers.md.

Rows that are equal to an earlier one are stored once. The others are taken apart into planes: the high bytes of F16,
the low ones; of Q8_0 the scales and the quants. Each plane has the predictor that leaves least, and a Huffman code, or
stays as it is. Rows are encoded in units, each of which is decoded alone: a cold store has units of one row.
"""

from __future__ import annotations

import math
import struct
import zlib
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from h2o_llama import _core
from h2o_llama._internal import check
from h2o_llama.errors import H2OError

Predictor: TypeAlias = Literal["auto", "raw", "delta", "xor", "pair", "pair_delta"]

PREDICTORS: tuple[str, ...] = ("auto", *_core.codec_predictors())
TYPES: tuple[str, ...] = tuple(_core.codec_types())

_OWNER = "codec"
_DTYPES: dict[str, np.dtype[Any]] = {
    "f16": np.dtype(np.float16),
    "bf16": np.dtype(np.uint16),
    "f32": np.dtype(np.float32),
}
_MAX_BYTES = 1 << 32

_MAGIC = b"H2KV"
_VERSION = 2
# magic, version, type, bytes of the code, rows, bytes of a row, rows of a unit, stored rows
_HEADER = struct.Struct("<4sBBHIIII")


@dataclass(frozen=True)
class Plane:
    """One plane of a frame: its predictor, and whether it has a Huffman code or is stored as it is."""

    predictor: str
    is_coded: bool


@dataclass(frozen=True)
class Frame:
    """What a frame says of itself.

    Attributes
    ----------
    type : str
        One of `TYPES`.
    n_rows, row_bytes, unit_rows : int
        The rows that it holds, and how many of them are decoded together.
    stored_rows : int
        How many of them are not equal to an earlier one, or n_rows where that saves nothing.
    planes : tuple of Plane
        The highest bytes first.
    stored_bytes : int
        Length of the frame.
    """

    type: str
    n_rows: int
    row_bytes: int
    unit_rows: int
    stored_rows: int
    planes: tuple[Plane, ...]
    stored_bytes: int

    @property
    def raw_bytes(self) -> int:
        return self.n_rows * self.row_bytes

    @property
    def ratio(self) -> float:
        """Bytes of the rows over those of the frame. Rows that are stored as they are: a little less than 1."""
        return self.raw_bytes / self.stored_bytes

    @property
    def is_coded(self) -> bool:
        """Whether anything became shorter: a plane, or equal rows."""
        return self.stored_rows < self.n_rows or any(plane.is_coded for plane in self.planes)


def encode(
    array: NDArray[Any],
    *,
    type: str | None = None,
    predictor: Predictor = "auto",
    unit_rows: int | None = None,
    strict: bool = False,
) -> bytes:
    """Compress rows.

    Parameters
    ----------
    array : float16, float32, uint16 or uint8 [n_tokens, ...]
        A row for each token, in the order of the text.
    type : str, optional
        What the rows consist of, one of `TYPES`. By default "f16", "f32" or, of uint8, "u8": bytes of which nothing is
        known. uint16 holds "bf16", uint8 ggml's blocks, such as "q8_0".
    predictor : str
        Of all planes, one of `PREDICTORS`; "auto": for each what leaves least.
    unit_rows : int, optional
        Rows that are decoded together, at most: few for fast access to single rows, by default as many as have 64 KiB.
    strict : bool
        Decode the frame and compare.

    Returns
    -------
    bytes
        The frame, for `decode`. What does not become smaller is stored as it is: a frame is never longer than the rows
        by more than 40 bytes, and 8 for each unit.

    Raises
    ------
    ValueError
        If an argument has the wrong type, shape or name.
    H2OError
        With strict, if the frame does not give the same bytes.

    Examples
    --------
    >>> rows = np.tile(np.arange(64, dtype=np.float16), (100, 1))
    >>> frame = encode(rows)
    >>> inspect(frame).stored_rows, np.array_equal(decode(frame), rows)
    (1, True)
    """
    rows, name = _rows(array, type)
    code, unit, n_stored, numbers, ends, units = _core.codec_encode(
        rows,
        type=name,
        predictor=check.choice(_OWNER, "predictor", predictor, PREDICTORS),
        unit_rows=0 if unit_rows is None else check.integer(_OWNER, "unit_rows", unit_rows, 1),
    )
    header = _HEADER.pack(_MAGIC, _VERSION, TYPES.index(name), len(code), *rows.shape, unit, n_stored)
    head = header + code + numbers.astype("<u4").tobytes() + ends.astype("<u4").tobytes()
    frame = head + zlib.crc32(head).to_bytes(4, "little") + units
    if check.flag(_OWNER, "strict", strict) and decode(frame).tobytes() != rows.tobytes():
        raise H2OError("[codec] the frame does not give the same bytes: please report this")
    return frame


def decode(frame: bytes, start: int = 0, stop: int | None = None, *, max_bytes: int = _MAX_BYTES) -> NDArray[Any]:
    """Rows of a frame, exactly.

    Parameters
    ----------
    frame : bytes
        Of `encode`.
    start, stop : int
        Which rows, by default all. Units without one of them are not decoded.
    max_bytes : int
        The most that they may have: a small frame can hold many equal ones.

    Returns
    -------
    float16, float32, uint16 ("bf16") or uint8 (all other types) [stop - start, n]
        What `encode` was given, with the axes after the first made one.

    Raises
    ------
    ValueError
        If frame is not bytes, or does not have these rows.
    H2OError
        If the frame is damaged, or holds more than max_bytes.
    """
    parts = _read(frame)
    stop = check.integer(_OWNER, "stop", parts.n_rows if stop is None else stop, 0, parts.n_rows)
    start = check.integer(_OWNER, "start", start, 0, stop)
    n_bytes = (stop - start) * parts.row_bytes
    if n_bytes > check.integer(_OWNER, "max_bytes", max_bytes, 0, 2**63 - 1):
        raise H2OError(f"[codec] the frame holds {n_bytes} bytes, more than max_bytes = {max_bytes}")
    rows = _core.codec_decode(
        parts.encoded,
        type=parts.type,
        n_rows=parts.n_rows,
        row_bytes=parts.row_bytes,
        units_at=parts.units_at,
        start=start,
        stop=stop,
    )
    typed: NDArray[Any] = rows.view(_DTYPES.get(parts.type, np.dtype(np.uint8)))
    return typed


def inspect(frame: bytes) -> Frame:
    """What a frame says of itself. Errors as those of `decode`."""
    parts = _read(frame)
    code, unit_rows, stored_rows = parts.encoded[:3]
    planes = []
    at = 0
    while at + 2 <= len(code) and code[at] < len(PREDICTORS) - 1:
        planes.append(Plane(PREDICTORS[1 + code[at]], code[at + 1] > 0))
        at += 2 + code[at + 1]
    if at != len(code):
        raise H2OError("[codec] damaged: its planes are encoded in no known way")
    return Frame(parts.type, parts.n_rows, parts.row_bytes, unit_rows, stored_rows, tuple(planes), len(frame))


class _Parts(NamedTuple):
    """A frame taken apart; the core checks what it is given of it."""

    type: str
    n_rows: int
    row_bytes: int
    units_at: int
    encoded: tuple[bytes, int, int, NDArray[np.uint32], NDArray[np.uint32], bytes]


def _read(frame: object) -> _Parts:
    if not isinstance(frame, bytes):
        raise check.bad_argument(_OWNER, "frame", "bytes", frame)
    if len(frame) < _HEADER.size or not frame.startswith(_MAGIC):
        raise H2OError(f"[codec] this is no frame: expected {_HEADER.size} bytes or more that begin with H2KV")
    _, version, type, n_code, n_rows, row_bytes, unit_rows, n_stored = _HEADER.unpack_from(frame)
    if version != _VERSION:
        raise H2OError(f"[codec] the frame has version {version}, expected {_VERSION}")
    n_numbers = n_rows if n_stored < n_rows else 0
    n_units = math.ceil(n_stored / max(unit_rows, 1))
    numbers_at = _HEADER.size + n_code
    ends_at = numbers_at + 4 * n_numbers
    head = ends_at + 4 * n_units
    if head + 4 > len(frame) or zlib.crc32(frame[:head]).to_bytes(4, "little") != frame[head : head + 4]:
        raise H2OError("[codec] the frame is damaged: its checksum is wrong")
    if type >= len(TYPES) or unit_rows == 0 or n_stored > n_rows:
        raise H2OError("[codec] the frame is damaged: its header contradicts itself")
    numbers = np.frombuffer(frame, "<u4", n_numbers, numbers_at).astype(np.uint32)
    ends = np.frombuffer(frame, "<u4", n_units, ends_at).astype(np.uint32)
    code = frame[_HEADER.size : numbers_at]
    return _Parts(TYPES[type], n_rows, row_bytes, head + 4, (code, unit_rows, n_stored, numbers, ends, frame))


def _rows(array: object, type: str | None) -> tuple[NDArray[np.uint8], str]:
    """Rows as bytes, uint8 [n_tokens, row_bytes], and their type's name."""
    if not isinstance(array, np.ndarray) or array.ndim == 0:
        raise check.bad_argument(_OWNER, "array", "a NumPy array of one axis or more", array)
    if type is None:
        found = [name for name, dtype in _DTYPES.items() if dtype == array.dtype and name != "bf16"]
        type = found[0] if found else "u8"
    name = check.choice(_OWNER, "type", type, TYPES)
    dtype = _DTYPES.get(name, np.dtype(np.uint8))
    if array.dtype != dtype:
        raise ValueError(f'[{_OWNER}] array must be {dtype} for type "{name}", got {array.dtype}')
    n_tokens, row = array.shape[0], int(np.prod(array.shape[1:], dtype=np.int64))
    rows = np.ascontiguousarray(array).reshape(n_tokens, row).view(np.uint8)
    block = _core.codec_block_bytes(name)
    if row * dtype.itemsize % block != 0:
        raise ValueError(f'[{_OWNER}] rows of type "{name}" must have a multiple of {block} bytes, got {row}')
    return rows.reshape(n_tokens, row * dtype.itemsize), name
