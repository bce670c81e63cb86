"""Retrieval by an index of keys: which positions before its chunk a tile of queries attends to besides the memory set.

The index holds keys rounded to 4 bits. The logit of a position for a query and KV head is the product of its key in the
index and the sum of the query over the head's group, rounded to 8 bits with one scale. A tile takes the positions
with the largest logits for its queries: the words of `ggml_h2o_top_keys`.
"""

import math

import numpy as np

from .rounding import Array


def rounded_queries(q: Array, n_head_kv: int) -> Array:
    """float64 [n_head_kv, n_q, d]: float32 q [n_head, n_q, d] summed over each group, in 8 bits.

    NaN where a sum is not finite, or all are 0: such a query has no say.
    """
    with np.errstate(all="ignore"):
        sums = np.add.accumulate(q.reshape(n_head_kv, -1, *q.shape[1:]), axis=1)[:, -1]
        peak = np.abs(sums).max(axis=-1, keepdims=True)
        rounded = np.rint(sums / peak * np.float32(127)) * (peak.astype(np.float64) / 127)
        return np.where(np.isfinite(sums).all(axis=-1, keepdims=True), rounded, np.nan)


def rounded_keys(blocks: Array) -> tuple[Array, Array]:
    """Scales, and numbers from -8 to 7, of the bytes of blocks in Q4_0 [.., 18] or in Q8_0 [.., 34]."""
    scales = np.ascontiguousarray(blocks[..., :2]).view(np.float16)[..., 0].astype(np.float64)
    if blocks.shape[-1] == 18:
        return scales, np.concatenate([blocks[..., 2:] & 15, blocks[..., 2:] >> 4], axis=-1).astype(np.float64) - 8
    numbers = blocks[..., 2:].view(np.int8).astype(np.float64)
    low, high = numbers.min(axis=-1), numbers.max(axis=-1)
    top = np.where(high > -low, high, low)[..., None]
    return scales * top[..., 0] / -8, np.minimum(np.floor(8.5 - 8 * numbers / np.where(top == 0, 1, top)), 15) - 8


def index_logits(q: Array, k: Array) -> Array:
    """float64 [n_head_kv, n_q, n_k] of float32 q [n_head, n_q, d], bytes of k [n_head_kv, n_k, ..] in Q4_0 or Q8_0."""
    scales, numbers = rounded_keys(k.reshape(*k.shape[:2], q.shape[2] // 32, -1))
    x = rounded_queries(q, len(k))
    x = x.reshape(*x.shape[:2], -1, 32)
    with np.errstate(all="ignore"):
        return sum((x[:, :, b] @ numbers[:, :, b].swapaxes(1, 2) * scales[:, None, :, b]) for b in range(x.shape[2]))  # type: ignore[return-value]


def offsets(logits: Array) -> Array:
    """[n_q] of logits [n_q, n_k]: the 90th percentile over up to 256 rows, the same distance apart."""
    n_k = logits.shape[-1]
    n = min(n_k, 256)
    if n == 0:
        return np.zeros(logits.shape[:-1])
    sample = -np.sort(-logits[..., np.arange(n) * (n_k // n)], axis=-1)  # NaN comes last
    found = sample[..., (n + 9) // 10 - 1]
    return np.where(np.isfinite(found), found, 0)


def tile_scores(logits: Array) -> Array:
    """[n_k] of a tile's logits [n_q, n_k]: the highest of each row, less offsets. NaN says nothing; -inf if all are."""
    with np.errstate(invalid="ignore"):
        return np.asarray(np.fmax.reduce(logits - offsets(logits)[:, None], axis=0, initial=-np.inf))


def choose(logits: Array, n_top: int, excluded: Array | None, tiles: Array) -> Array:
    """int32 [n_head_kv, n_tiles, n_top] of logits [n_head_kv, n_q, n_k] and the tiles of queries, 0, 0, 1 …

    Ascending, -1 at the end where there are fewer.
    """
    n_k = logits.shape[-1]
    chosen = np.full((len(logits), tiles[-1] + 1, n_top), -1, dtype=np.int32)
    for head, tile in np.ndindex(*chosen.shape[:2]):
        is_free = np.ones(n_k, dtype=bool)
        if excluded is not None:
            is_free[[row for row in excluded[head] if 0 <= row < n_k]] = False
        ranked = np.argsort(-tile_scores(logits[head, tiles == tile]), kind="stable")
        best = np.sort(ranked[is_free[ranked]][:n_top])
        chosen[head, tile, : len(best)] = best
    return chosen


def top_keys(q: Array, k: Array, n_top: int, excluded: Array | None = None, tile: int = 1, offset: int = 0) -> Array:
    """What each tile and KV head chooses of the rows that are free."""
    return choose(index_logits(q, k), n_top, excluded, (np.arange(q.shape[1]) + offset) // tile)


def index_budget(B: int, S: int, chunk_start: int) -> int:
    """Of the chunk that begins there: B where 8 chunks are before it."""
    return max(1, math.floor(B * (chunk_start / (8 * S)) ** 0.75 + 0.5)) if B else 0


def choose_keys(q: Array, index: Array, memory: Array, n_top: int, tiles: Array) -> Array:
    """The positions that each query of each KV head attends to, [n_head_kv, n_q, n].

    Queries [n_head, n_q, d] and the tiles [n_q] that they are in; positions of the index [n_head_kv, n, d] that are not
    in memory [n_head_kv, m].
    """
    logits = rounded_queries(q, len(index)) @ index.astype(np.float64).transpose(0, 2, 1)
    tiles = tiles - tiles[0]
    # Where there are fewer than n_top, -1 stands at the end: a position of its own here.
    chosen = np.zeros((len(index), tiles[-1] + 1, index.shape[1] + 1), dtype=bool)
    np.put_along_axis(chosen, choose(logits, n_top, memory, tiles), True, axis=2)
    return chosen[:, tiles, :-1]
