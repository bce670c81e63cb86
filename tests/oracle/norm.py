"""Normalisation by the root of the mean square."""

from __future__ import annotations

import numpy as np

from .arrays import Array


def rms_norm(x: Array, weight: Array, eps: float) -> Array:
    """x / sqrt(mean(x²) + eps) * weight, over the last axis."""
    scale = 1 / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + x.dtype.type(eps))
    return x * scale * weight.astype(x.dtype)
