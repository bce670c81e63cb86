"""Rounding to ggml's storage types: what a value becomes when it has been written and read back.

The same roundings happen in two places: K and V go through the cache type, and the activations of a matrix product go
through the weight type's dot-product type (F16 weights: F16 activations, Q8_0 weights: Q8_0 activations).
"""

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

# The oracle's arrays: float32 or float64, or integers, which NumPy's static types cannot tell apart in expressions.
Array: TypeAlias = npt.NDArray[Any]

BLOCK = 32


def round_bf16(x: Array) -> Array:
    """Round to nearest even on the upper 16 bits of a float32; NaN stays NaN."""
    bits = np.ascontiguousarray(x, dtype=np.float32).view(np.uint32)
    rounded = ((bits + (0x7FFF + ((bits >> 16) & 1))) & np.uint32(0xFFFF0000)).view(np.float32)
    return np.where(np.isnan(x), np.float32(np.nan), rounded)


def round_q8_0(x: Array) -> Array:
    """Blocks of 32 along the last axis; int8 values times one F16 scale = max|x| / 127."""
    blocks = np.asarray(x, dtype=np.float32).reshape(*x.shape[:-1], -1, BLOCK)
    scale = np.abs(blocks).max(axis=-1, keepdims=True) / np.float32(127)
    # The integers come from the exact scale; only the stored scale is F16.
    quants = np.rint(np.divide(blocks, scale, out=np.zeros_like(blocks), where=scale > 0))
    return (quants * scale.astype(np.float16).astype(np.float32)).reshape(x.shape)


def round_q4_0(x: Array) -> Array:
    """Blocks of 32 along the last axis; integers from -8 to 7 times one F16 scale, by which the largest |x| is -8."""
    blocks = np.asarray(x, dtype=np.float32).reshape(*x.shape[:-1], -1, BLOCK)
    largest = np.take_along_axis(blocks, np.abs(blocks).argmax(axis=-1, keepdims=True), axis=-1)
    scale = largest / np.float32(-8)
    inverse = np.divide(1, scale, out=np.zeros_like(scale), where=scale != 0)
    quants = np.minimum(np.floor(blocks * inverse + np.float32(8.5)), 15) - 8
    return (quants * scale.astype(np.float16).astype(np.float32)).reshape(x.shape)


def round_8_to_4_bits(x: Array) -> Array:
    """What the choice makes of Q8_0: Q4_0 whose scale is not rounded, and which takes -x of two largest."""
    blocks = np.asarray(x, dtype=np.float64).reshape(*x.shape[:-1], -1, BLOCK)
    low, high = blocks.min(axis=-1, keepdims=True), blocks.max(axis=-1, keepdims=True)
    scale = np.where(high > -low, high, low) / -8
    quants = np.divide(blocks, scale, out=np.zeros_like(blocks), where=scale != 0)
    return ((np.minimum(np.floor(quants + 8.5 + 1e-6), 15) - 8) * scale).reshape(x.shape)


def round_to(x: Array, type_name: str) -> Array:
    """`x` after a round trip through a ggml type, in the dtype of `x`. The type's name is upper or lower case."""
    rounded: Array = ROUNDINGS[type_name.upper()](x).astype(x.dtype)
    return rounded


ROUNDINGS: dict[str, Callable[[Array], Array]] = {
    "F32": lambda x: x.astype(np.float32),
    "F16": lambda x: x.astype(np.float16),
    "BF16": round_bf16,
    "Q8_0": round_q8_0,
}


def hadamard(n: int) -> Array:
    """Orthonormal Walsh-Hadamard matrix of size n (a power of two); it is its own inverse."""
    matrix = np.ones((1, 1))
    while len(matrix) < n:
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    return matrix / np.sqrt(n)


def rotate(x: Array, n: int) -> Array:
    """Apply the Hadamard matrix of size n to consecutive groups of n along the last axis."""
    groups = x.reshape(*x.shape[:-1], -1, n)
    return (groups @ hadamard(n).astype(x.dtype)).reshape(x.shape)


class CacheRounding:
    """What llama.cpp's KV cache makes of K or V before attention sees it.

    llama.cpp rotates K (and Q) and V (and back) by a Hadamard matrix when the cache type is quantised and the head size
    is a multiple of 64, to spread outliers: attention itself is unchanged by the rotation, only the rounding is.
    It does not rotate latents.
    """

    def __init__(self, type_name: str, head_dim: int, *, keys: bool, latents: bool = False) -> None:
        self.type_name = type_name
        self.rotation = 0
        if not latents and type_name.upper() == "Q8_0" and head_dim % 64 == 0:
            # K: the largest power of two that divides the head size; V: 64.
            self.rotation = head_dim & -head_dim if keys else 64

    def __call__(self, x: Array) -> Array:
        if not self.rotation:
            return round_to(x, self.type_name)
        return rotate(round_to(rotate(x, self.rotation), self.type_name), self.rotation)
