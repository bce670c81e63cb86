"""Attention of a block of queries to a block of keys, for grouped heads, and the fusion of two blocks of keys."""

from typing import NamedTuple

import numpy as np

from .rounding import Array


class SoftmaxState(NamedTuple):
    """Online softmax. Per query head and query: maximum logit m [n_head, n_q], l = Σ exp(logit - m), and the
    softmax-weighted values o [n_head, n_q, d]. Without any key m = -inf, l = 0 and o = 0."""

    m: Array
    l: Array  # noqa: E741 -- the literature's name
    o: Array


def attend(
    q: Array, k: Array, v: Array, allowed: Array | None = None, counts: Array | None = None
) -> tuple[SoftmaxState, Array]:
    """State per query head, and the column sums of the softmax weights per KV head.

    q [n_head, n_q, d] (already scaled); k [n_head_kv, n_k, d]; v [n_head_kv, n_k, d_v]; both of these broadcast to
    [n_head_kv, n_q, n_k]: allowed, True where a query may see a key; counts, True where the pair counts in the column
    sums [n_head_kv, n_k]: the weight that each key received from all queries and all query heads of its group.
    """
    n_head, n_q, _ = q.shape
    # [n_head_kv, group, n_q, ...]: all the heads of a group share their keys.
    logits = q.reshape(len(k), -1, n_q, q.shape[-1]) @ k.transpose(0, 2, 1)[:, None]
    if allowed is not None:
        allowed = np.broadcast_to(allowed, (len(k), n_q, k.shape[1]))[:, None]
        logits = np.where(allowed, logits, logits.dtype.type(-np.inf))
    m = np.max(logits, axis=-1, initial=-np.inf)
    exponentials = np.exp(logits - np.where(np.isneginf(m), 0, m)[..., None])
    l = exponentials.sum(axis=-1)  # noqa: E741
    weights = exponentials / np.where(l > 0, l, 1)[..., None]
    o = weights @ v[:, None]
    counted = weights if counts is None else weights * np.broadcast_to(counts, (len(k), n_q, k.shape[1]))[:, None]
    state = SoftmaxState(m.reshape(n_head, n_q), l.reshape(n_head, n_q), o.reshape(n_head, n_q, -1))
    return state, counted.sum(axis=(1, 2))


def fuse(a: SoftmaxState, b: SoftmaxState) -> SoftmaxState:
    """State of the union of two disjoint blocks of keys. Design, section 3."""
    m = np.maximum(a.m, b.m)
    reference = np.where(np.isneginf(m), 0, m)
    w_a = a.l * np.exp(a.m - reference)
    w_b = b.l * np.exp(b.m - reference)
    l = w_a + w_b  # noqa: E741
    share_a = np.divide(w_a, l, out=np.zeros_like(l), where=l > 0)
    share_b = np.divide(w_b, l, out=np.zeros_like(l), where=l > 0)
    return SoftmaxState(m, l, share_a[..., None] * a.o + share_b[..., None] * b.o)
