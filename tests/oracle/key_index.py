"""Retrieval by an index of keys: which positions before its chunk a query attends to besides the memory set.

The index holds keys rounded to 4 bits. The score of a position for a query and KV head is the product of its key in the
index and the sum of the query over the head's group, rounded to 8 bits with one scale.
"""

from __future__ import annotations

import numpy as np

from .arrays import Array, BoolArray, IntArray
from .top_keys import choose, rounded_queries


def choose_keys(q: Array, index: Array, memory: IntArray, B: int) -> BoolArray:
    """Which query of which KV head attends to which position, [n_head_kv, n_q, n].

    Of the positions of the index [n_head_kv, n, d] that are not in memory [n_head_kv, m], the B with the highest
    scores; of equal ones the lower position. Queries are [n_head, n_q, d], in any scale.
    """
    scores = rounded_queries(q, len(index)) @ index.astype(np.float64).transpose(0, 2, 1)
    # Where there are fewer than B, -1 stands at the end: a position of its own here.
    chosen = np.zeros((*scores.shape[:2], index.shape[1] + 1), dtype=bool)
    np.put_along_axis(chosen, choose(scores, B, memory), True, axis=2)
    return chosen[..., :-1]
