"""Retrieval by an index of keys: which positions before its chunk a query attends to besides the memory set.

The index holds keys rounded to 4 bits. The score of a position for a query and KV head is the product of its key in the
index and the sum of the query over the head's group, rounded to 8 bits with one scale. It finds candidates, and their
attention from each head of the group decides.
"""

from __future__ import annotations

import numpy as np

from .arrays import Array, BoolArray, IntArray
from .top_keys import choose, rounded_queries, weigh


def choose_keys(q: Array, index: Array, memory: IntArray, B: int) -> BoolArray:
    """Which query of which KV head attends to which position, [n_head_kv, n_q, n].

    Of the positions of the index [n_head_kv, n, d] that are not in memory [n_head_kv, m], the B with the highest
    scores; of equal ones the lower position. Heads that share a KV head are weighed as `weigh` says. Queries are
    [n_head, n_q, d], scaled.
    """
    keys = index.astype(np.float64).transpose(0, 2, 1)
    scores = rounded_queries(q, len(index)) @ keys
    rows = choose(scores, B, memory)
    if len(q) > len(index):
        by_head = q.reshape(len(index), -1, *q.shape[1:]).swapaxes(0, 1)
        steps = [np.abs(x).max(axis=-1, keepdims=True) / 127 for x in by_head]
        logits = [rounded_queries(x, len(index)) @ keys * step for x, step in zip(by_head, steps, strict=True)]
        rows = weigh(scores, np.stack(logits), B, memory)
    # Where there are fewer than B, -1 stands at the end: a position of its own here.
    chosen = np.zeros((*scores.shape[:2], index.shape[1] + 1), dtype=bool)
    np.put_along_axis(chosen, rows, True, axis=2)
    return chosen[..., :-1]
