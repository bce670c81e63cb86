"""How heavy hitters are ranked: the library's scorers, written down once more."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from .arrays import Array, BoolArray, IntArray


def _all(queries: IntArray, keys: IntArray, S: int, L: int) -> BoolArray:
    return np.ones(np.broadcast_shapes(queries.shape, keys.shape), dtype=bool)


def _distant(queries: IntArray, keys: IntArray, S: int, L: int) -> BoolArray:
    return queries - keys >= L


def _score(scores: Array, positions: IntArray, end: int, L: int) -> Array:
    return scores


def _distant_mean(scores: Array, positions: IntArray, end: int, L: int) -> Array:
    return scores / (end - L - positions)


@dataclass(frozen=True)
class Scorer:
    """`counts` says which pairs of (query, key) positions add to a score, S and L given; `rank` makes ranks of scores
    [n] of candidates at positions [n] for the set built at `end`."""

    counts: Callable[[IntArray, IntArray, int, int], BoolArray] = _all
    rank: Callable[[Array, IntArray, int, int], Array] = _score
    blocks: bool = False  # positions are ranked by blocks, and the scores of kept positions fade


SCORERS = {
    "sum": Scorer(),
    "distant": Scorer(counts=_distant, rank=_distant_mean),
    "block_ema": Scorer(blocks=True),
}


def block_sums(ranks: Array, positions: IntArray, block_tokens: int) -> Array:
    """Every candidate takes the sum of the ranks of its block's candidates."""
    blocks = positions // block_tokens
    return np.array([ranks[blocks == block].sum(dtype=np.float64) for block in blocks], dtype=ranks.dtype)
