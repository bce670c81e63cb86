"""Rotary position embedding."""

from __future__ import annotations

import numpy as np

from .arrays import Array, IntArray
from .hparams import Rope


def rotated(x: Array, positions: IntArray, rope: Rope, *, neox: bool, factors: Array | None = None) -> Array:
    """Rotary position embedding of x [n_tokens, n_head, head_dim] at absolute positions.

    Pair i is rotated by scale · position · base^(-2i/head_dim) / factors[i]. Pairs are (i, i + head_dim/2) with neox
    (Qwen3), else (2i, 2i + 1) (Llama as stored in GGUF).
    """
    n_pairs = x.shape[-1] // 2
    frequencies = rope.base ** (-np.arange(n_pairs) / n_pairs)
    if factors is not None:
        frequencies = frequencies / factors
    scaled = rope.scale * frequencies
    if rope.yarn is not None:
        kept = rope.yarn.kept(rope.base, n_pairs)
        scaled = scaled * (1 - kept) + frequencies * kept
    angles = positions[:, None, None] * scaled
    size = 1.0 if rope.yarn is None else rope.yarn.size(rope.scale)
    cos, sin = (size * np.cos(angles)).astype(x.dtype), (size * np.sin(angles)).astype(x.dtype)

    first, second = (slice(0, n_pairs), slice(n_pairs, None)) if neox else (slice(0, None, 2), slice(1, None, 2))
    y = np.empty_like(x)
    y[..., first] = x[..., first] * cos - x[..., second] * sin
    y[..., second] = x[..., first] * sin + x[..., second] * cos
    return y
