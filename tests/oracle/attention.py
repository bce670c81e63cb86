"""Attention of a block of queries to a block of keys, for grouped heads."""

from __future__ import annotations

import numpy as np

from .arrays import Array, BoolArray
from .softmax_state import SoftmaxState, softmax_state


def attend(
    q: Array, k: Array, v: Array, allowed: BoolArray | None = None, counts: BoolArray | None = None
) -> tuple[SoftmaxState, Array]:
    """State per query head, and the column sums of the softmax weights per KV head.

    q [n_head, n_q, d] (already scaled); k [n_head_kv, n_k, d]; v [n_head_kv, n_k, d_v]; both of these broadcast to
    [n_head_kv, n_q, n_k]: allowed, True where a query may see a key; counts, True where the pair counts in the column
    sums. Returns a state with m and l [n_head, n_q], o [n_head, n_q, d_v], and column sums [n_head_kv, n_k]: the weight
    that each key received from all queries and all query heads of its group.
    """
    n_head, n_q, d = q.shape
    n_head_kv, n_k, _ = k.shape
    group = n_head // n_head_kv
    # All the queries of a group share their keys, so they are rows of one matrix product.
    logits = (q.reshape(n_head_kv, group * n_q, d) @ k.transpose(0, 2, 1)).reshape(n_head_kv, group, n_q, n_k)
    if allowed is not None:
        allowed = np.broadcast_to(allowed, (n_head_kv, n_q, n_k))[:, None]
        logits = np.where(allowed, logits, logits.dtype.type(-np.inf))
    state, weights = softmax_state(logits.reshape(n_head_kv, group * n_q, n_k), v)
    if counts is not None:
        counted = np.broadcast_to(counts, (n_head_kv, n_q, n_k))[:, None]
        weights = (weights.reshape(n_head_kv, group, n_q, n_k) * counted).reshape(weights.shape)
    return (
        SoftmaxState(state.m.reshape(n_head, n_q), state.l.reshape(n_head, n_q), state.o.reshape(n_head, n_q, -1)),
        weights.sum(axis=1),
    )
