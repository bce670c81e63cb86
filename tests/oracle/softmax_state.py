"""Online-softmax state (m, l, o) of a block of keys, and the fusion of two blocks. Design, section 3."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from .arrays import Array


class SoftmaxState(NamedTuple):
    """Per query: m [..., n_q] maximum logit, l [..., n_q] = Σ exp(logit - m), o [..., n_q, d] softmax-weighted V."""

    m: Array
    l: Array  # noqa: E741 -- the literature's name
    o: Array


def softmax_state(logits: Array, v: Array) -> tuple[SoftmaxState, Array]:
    """State of one block and its softmax weights.

    logits [..., n_q, n_k] with -inf where a key is masked; v [..., n_k, d]. A row without any key has m = -inf, l = 0,
    o = 0 and weights 0.
    """
    m = np.max(logits, axis=-1, initial=-np.inf)
    exponentials = np.exp(logits - np.where(np.isneginf(m), 0, m)[..., None])
    l = exponentials.sum(axis=-1)  # noqa: E741
    weights = np.divide(exponentials, np.where(l > 0, l, 1)[..., None], out=exponentials)
    return SoftmaxState(m, l, weights @ v), weights


def fuse(a: SoftmaxState, b: SoftmaxState) -> SoftmaxState:
    """State of the union of two disjoint blocks of keys."""
    m = np.maximum(a.m, b.m)
    reference = np.where(np.isneginf(m), 0, m)
    w_a = a.l * np.exp(a.m - reference)
    w_b = b.l * np.exp(b.m - reference)
    l = w_a + w_b  # noqa: E741
    share_a = np.divide(w_a, l, out=np.zeros_like(l), where=l > 0)
    share_b = np.divide(w_b, l, out=np.zeros_like(l), where=l > 0)
    return SoftmaxState(m, l, share_a[..., None] * a.o + share_b[..., None] * b.o)
