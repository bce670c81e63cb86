"""What the memory sets of a history have in common, as one number per head or pair of heads."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from h2o_llama.inspect.history import MemoryHistory

# Where a chunk begins means nothing to the text, but these tokens are seen by many queries that see little else.
CHUNK_START = 8

# All pairs of heads take a while for each memory set: about so many of them are enough for a mean.
_OVERLAP_SETS = 16


def stability(history: MemoryHistory) -> NDArray[np.float64]:
    """How alike a head's heavy hitters are from one chunk to the next, float64 [n_heads].

    Jaccard |A ∩ B| / |A ∪ B| of consecutive memory sets, averaged; NaN where there are none to compare.
    """
    keys = [_keys(history, kept) for kept in history.heavy]
    sizes = (history.heavy >= 0).sum(axis=-1)
    values = [np.full(len(history.heads), np.nan)]
    for older, newer, n_older, n_newer in zip(keys, keys[1:], sizes, sizes[1:], strict=False):
        shared = np.intersect1d(older, newer, assume_unique=True) // _n_positions(history)
        values.append(_jaccard(np.bincount(shared, minlength=len(history.heads)), n_older, n_newer))
    return mean(np.array(values), axis=0)


def overlap(history: MemoryHistory) -> NDArray[np.float64]:
    """How alike the heavy hitters of two heads are, float64 [n_heads, n_heads].

    Jaccard of the two heads' heavy hitters, averaged over the memory sets, of many over some evenly spaced ones; NaN
    where there are none.
    """
    n_heads = len(history.heads)
    values = [np.full((n_heads, n_heads), np.nan)]
    for kept in history.heavy[:: -max(1, history.n_sets // _OVERLAP_SETS)]:
        row, slot = np.nonzero(kept >= 0)
        positions, column = np.unique(kept[row, slot], return_inverse=True)
        is_kept = np.zeros((n_heads, len(positions)), np.float32)
        is_kept[row, column] = 1
        sizes = (kept >= 0).sum(axis=-1)
        values.append(_jaccard(is_kept @ is_kept.T, sizes[:, None], sizes))
    return mean(np.array(values), axis=0)


def overlap_of_layers(history: MemoryHistory, pairs: NDArray[np.float64]) -> NDArray[np.float64]:
    """The mean of `overlap` between two different heads, one of each layer, float64 [n_layers, n_layers].

    The diagonal is that of a layer's heads with each other; NaN where there is only one head.
    """
    _, layer_of = np.unique([layer for layer, _ in history.heads], return_inverse=True)
    is_of = (np.arange(layer_of[-1] + 1)[:, None] == layer_of).astype(np.float64)
    is_pair = ~np.isnan(pairs) & ~np.eye(len(pairs), dtype=bool)
    return _divide(is_of @ np.where(is_pair, pairs, 0) @ is_of.T, is_of @ is_pair @ is_of.T)


def overlap_in_layer(history: MemoryHistory, pairs: NDArray[np.float64]) -> NDArray[np.float64]:
    """The mean of a head's `overlap` with the other heads of its layer, float64 [n_heads]; NaN if there are none."""
    layer = np.array([layer for layer, _ in history.heads])
    is_other = (layer[:, None] == layer) & ~np.eye(len(layer), dtype=bool)
    return mean(np.where(is_other, pairs, np.nan), axis=1)


def mean_age(history: MemoryHistory) -> NDArray[np.float64]:
    """How many chunks ago the heavy hitters of the last memory set were read, on average, float64 [n_heads].

    0 is the newest chunk, n_sets - 1 the first. NaN with fewer than two memory sets, and for a head that keeps none.
    """
    if history.n_sets < 2:
        return np.full(len(history.heads), np.nan)
    kept = history.heavy[-1]
    return mean(np.where(kept >= 0, history.n_sets - 1 - kept // history.chunk_size, np.nan), axis=-1)


def chunk_start_share(history: MemoryHistory) -> NDArray[np.float64]:
    """The share of a head's heavy hitters, of all memory sets, that are among a chunk's first 8 tokens, [n_heads].

    By chance it is `chance_of_chunk_start`.
    """
    is_start = history.heavy % history.chunk_size < CHUNK_START
    is_kept = history.heavy >= 0
    return _divide((is_start & is_kept).sum(axis=(0, 2)), is_kept.sum(axis=(0, 2)))


def chance_of_chunk_start(history: MemoryHistory) -> float:
    """The share of all tokens that are among a chunk's first 8."""
    return min(1.0, CHUNK_START / history.chunk_size)


def mean(values: NDArray[np.float64], axis: int) -> NDArray[np.float64]:
    """The mean of what is not NaN; NaN where everything is."""
    is_number = ~np.isnan(values)
    return _divide(np.where(is_number, values, 0).sum(axis=axis), is_number.sum(axis=axis))


def _n_positions(history: MemoryHistory) -> int:
    return history.n_sets * history.chunk_size


def _keys(history: MemoryHistory, kept: NDArray[np.int32]) -> NDArray[np.int64]:
    """A number for every (head, position) of one memory set [n_heads, k]."""
    row, slot = np.nonzero(kept >= 0)
    return row * _n_positions(history) + kept[row, slot]


def _jaccard(shared: NDArray[Any], n_a: NDArray[np.int64], n_b: NDArray[np.int64]) -> NDArray[np.float64]:
    return _divide(shared, n_a + n_b - shared)


def _divide(a: NDArray[Any], b: NDArray[Any]) -> NDArray[np.float64]:
    """a / b; NaN where b is 0."""
    quotient = np.full(np.broadcast_shapes(a.shape, b.shape), np.nan)
    np.divide(a, b, out=quotient, where=b != 0)
    return quotient
