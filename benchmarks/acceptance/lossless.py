"""How small the cold store's codec makes K and V, and how fast it is."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from h2o_llama._core import EncodedRows
from h2o_llama.errors import H2OError
from h2o_llama.llama import Llama

GROUP = 2_048
"""Tokens that are encoded together: the seeds' groups of chunks."""

_UNIT_BYTES = 65_536
_REPETITIONS = 3


class Measured(NamedTuple):
    """K or V of a layer: bytes of the rows and of what became of them, and seconds on one core."""

    layer: int
    raw: int
    stored: int
    encode_s: float
    decode_s: float


def measure(llm: Llama) -> list[Measured]:
    """Encode, decode and compare K and V of all layers, of a cache in F16."""
    return [_measure(layer, values) for layer in llm.kv.layers for values in (llm.kv.keys(layer), llm.kv.values(layer))]


def ratio(rows: Sequence[Measured]) -> float:
    """Of all of them together."""
    return sum(row.raw for row in rows) / sum(row.stored for row in rows)


def _measure(layer: int, values: NDArray[np.float32]) -> Measured:
    """values: [n_head_kv, n_tokens, head_dim]."""
    rows = np.ascontiguousarray(values.transpose(1, 0, 2)).reshape(values.shape[1], -1)
    data: NDArray[Any] = rows.astype(np.float16).view(np.uint8)
    stored, encode_s, decode_s = 0, 0.0, 0.0
    for start in range(0, len(data), GROUP):
        group = data[start : start + GROUP]
        encode_times, decode_times = [], []
        for _ in range(_REPETITIONS):
            begin = time.perf_counter()
            encoded = EncodedRows(group, type="f16", unit_rows=max(1, _UNIT_BYTES // data.shape[1]))
            middle = time.perf_counter()
            found = encoded.decode(0, len(group))
            encode_times.append(middle - begin)
            decode_times.append(time.perf_counter() - middle)
        if found.tobytes() != group.tobytes():
            raise H2OError("[codec] rows came back changed: please report this")
        stored += len(encoded.frames)
        encode_s += min(encode_times)
        decode_s += min(decode_times)
    return Measured(layer, data.nbytes, stored, encode_s, decode_s)
