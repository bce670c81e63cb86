"""Which rows of an index of keys each query chooses, after the words of `ggml_h2o_top_keys`."""

from __future__ import annotations

import numpy as np

from .arrays import Array, IntArray

# Of query heads that share a KV head, for each row that is chosen.
CANDIDATES = 8


def rounded_queries(q: Array, n_head_kv: int) -> Array:
    """float64 [n_head_kv, n_q, d]: float32 q [n_head, n_q, d] summed over each group, in 8 bits. NaN: not finite."""
    with np.errstate(all="ignore"):
        sums = np.add.accumulate(q.reshape(n_head_kv, -1, *q.shape[1:]), axis=1)[:, -1]
        peak = np.abs(sums).max(axis=-1, keepdims=True)
        rounded = np.where(peak == 0, 0, np.rint(sums / peak * np.float32(127)))
        is_finite = np.isfinite(sums).all(axis=-1, keepdims=True)
    return np.where(is_finite, rounded, np.nan).astype(np.float64)


def index_scores(q: Array, k: Array) -> Array:
    """float64 [n_head_kv, n_q, n_k] of float32 q [n_head, n_q, d] with k in Q4_0, bytes [n_head_kv, n_k, d/32*18]."""
    blocks = k.reshape(*k.shape[:2], -1, 18)
    scales = np.ascontiguousarray(blocks[..., :2]).view(np.float16)[..., 0].astype(np.float64)
    numbers = np.concatenate([blocks[..., 2:] & 15, blocks[..., 2:] >> 4], axis=-1).astype(np.float64) - 8
    x = rounded_queries(q, len(k))
    x = x.reshape(*x.shape[:2], -1, 32)
    with np.errstate(all="ignore"):
        return sum((x[:, :, b] @ numbers[:, :, b].swapaxes(1, 2) * scales[:, None, :, b]) for b in range(x.shape[2]))  # type: ignore[return-value]


def choose(scores: Array, n_top: int, taken: IntArray | None) -> IntArray:
    """int32 [n_head_kv, n_q, n_top] of scores [n_head_kv, n_q, n_k]: ascending, -1 at the end where there are fewer."""
    n_k = scores.shape[-1]
    chosen = np.full((*scores.shape[:2], n_top), -1, dtype=np.int32)
    for head, of_queries in enumerate(scores):
        is_free = np.ones(n_k, dtype=bool)
        if taken is not None:
            is_free[[row for row in taken[head] if 0 <= row < n_k]] = False
        for i, of_rows in enumerate(of_queries):
            ranked = np.argsort(-of_rows, kind="stable")  # NaN comes last
            best = np.sort(ranked[is_free[ranked]][:n_top])
            chosen[head, i, : len(best)] = best
    return chosen


def head_logits(q: Array, k: Array, scale: float) -> Array:
    """float64 [group, n_head_kv, n_q, n_k]: scale*q*k of each query head alone, in 8 bits."""
    by_head = q.reshape(len(k), -1, *q.shape[1:]).swapaxes(0, 1)
    return np.stack([index_scores(x, k) * (np.abs(x).max(axis=-1, keepdims=True) / 127 * scale) for x in by_head])


def attention_of(logits: Array) -> Array:
    """The softmax of logits [group, n], summed over the group. NaN weighs nothing."""
    with np.errstate(all="ignore"):
        weights = np.exp(logits - np.fmax.reduce(logits, axis=-1, keepdims=True))
        weights = np.where(np.isnan(logits), 0, weights)
        return np.asarray((weights / weights.sum(axis=-1, keepdims=True)).sum(axis=0))


def weigh(scores: Array, logits: Array, n_top: int, taken: IntArray | None) -> IntArray:
    """As `choose`, of CANDIDATES*n_top rows with the highest scores those to which the heads of a group give most.

    That is the attention of logits [group, n_head_kv, n_q, n_k] to the candidates.
    """
    chosen = choose(scores, n_top, taken)
    for head, of_queries in enumerate(choose(scores, min(CANDIDATES * n_top, scores.shape[-1]), taken)):
        for i, rows in enumerate(of_queries):
            candidates = rows[rows >= 0]
            candidates = candidates[~np.isnan(scores[head, i, candidates])]
            if len(candidates) <= n_top:
                continue
            attention = attention_of(logits[:, head, i, candidates])
            if np.isfinite(attention).all():
                chosen[head, i] = np.sort(candidates[np.argsort(-attention, kind="stable")[:n_top]])
    return chosen


def top_keys(q: Array, k: Array, n_top: int, taken: IntArray | None = None, scale: float = 0.0) -> IntArray:
    """Of each query and KV head the free rows with the highest scores, or by the attention that heads give them."""
    scores = index_scores(q, k)
    if scale == 0 or len(q) == len(k):
        return choose(scores, n_top, taken)
    return weigh(scores, head_logits(q, k, scale), n_top, taken)
