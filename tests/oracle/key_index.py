"""Retrieval by an index of keys: which positions before its chunk a tile of queries attends to besides the memory set.

The index holds keys rounded to 4 bits. The logit of a position for a query and KV head is the product of its key in the
index and the sum of the query over the head's group, rounded to 8 bits with one scale. A tile takes the positions
with the largest logits for its queries.
"""

from __future__ import annotations

import math

import numpy as np

from .arrays import Array, BoolArray, IntArray
from .top_keys import choose, rounded_queries


def index_budget(B: int, S: int, chunk_start: int) -> int:
    """Of the chunk that begins there: B where 8 chunks are before it."""
    return max(1, math.floor(B * (chunk_start / (8 * S)) ** 0.4 + 0.5)) if B else 0


def choose_keys(q: Array, index: Array, memory: IntArray, n_top: int, tiles: IntArray) -> BoolArray:
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
