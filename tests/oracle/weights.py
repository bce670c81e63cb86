"""Tensors of a GGUF as matrices that round their input as ggml does, by the `gguf` package."""

from __future__ import annotations

from typing import Any

import numpy as np
from gguf import GGMLQuantizationType, GGUFReader, ReaderTensor
from gguf.quants import dequantize

from .arrays import Array, IntArray
from .kv_rounding import round_to

# Weights are kept in float32 if the whole file then takes no more than this.
KEEP_BYTES = 4 << 30

# The type that ggml rounds the activations to before a dot product with weights of the given type. (Q8_1 is Q8_0 and
# the sum of each block.)
ACTIVATION_TYPE = {
    "F32": "F32",
    "F16": "F16",
    "BF16": "BF16",
    **dict.fromkeys(("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "IQ4_NL", "MXFP4"), "Q8_0"),
    **dict.fromkeys(("Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_XS"), "Q8_K"),
}
# From fine to coarse.
ACTIVATION_TYPES = ("F32", "F16", "BF16", "Q8_0", "Q8_K")


class UnsupportedModel(ValueError):
    """The oracle does not know this model's architecture or one of its features."""


class Linear:
    """y = x Wᵀ + b. A stack of matrices multiplies a stack of inputs, or the same input with each.

    Only `part` of the rows of W are meant.
    """

    def __init__(self, tensor: ReaderTensor, bias: Array | None, keep: bool, part: slice) -> None:
        self._tensor = tensor
        self._bias = bias
        self._part = part
        self._keep = keep
        self._weight: Array | None = None
        self._activation_type = ACTIVATION_TYPE[tensor.tensor_type.name]

    def weight(self, dtype: Any) -> Array:
        """The dequantised matrix [n_out, n_in], or the stack of them [n, n_out, n_in]."""
        if self._weight is not None and self._weight.dtype == dtype:
            return self._weight
        weight = to_float32(self._tensor)[..., self._part, :].astype(dtype, copy=False)
        if self._keep:
            self._weight = weight
        return weight

    def rows(self, ids: IntArray, dtype: Any) -> Array:
        """Rows of the matrix, for an embedding look-up: [len(ids), n_in]."""
        return dequantised(self._tensor.data[ids], self._tensor.tensor_type).astype(dtype)

    def __call__(self, x: Array) -> Array:
        y: Array = round_to(x, self._activation_type) @ self.weight(x.dtype).swapaxes(-1, -2)
        return y if self._bias is None else y + self._bias.astype(x.dtype)


class Tensors:
    """The tensors of a file by their names."""

    def __init__(self, reader: GGUFReader) -> None:
        self._tensors = {tensor.name: tensor for tensor in reader.tensors}
        self._keep = sum(int(tensor.n_elements) for tensor in reader.tensors) * 4 <= KEEP_BYTES
        matrices = {t.tensor_type.name for t in reader.tensors if len(t.shape) > 1}
        if unknown := sorted(matrices - set(ACTIVATION_TYPE)):
            raise UnsupportedModel(f"weight types {unknown}")
        if any(name.endswith(".scale") for name in self._tensors):
            raise UnsupportedModel("matrices with a scale")
        self.activation_types = {ACTIVATION_TYPE[name] for name in matrices}

    def __contains__(self, name: str) -> bool:
        return name in self._tensors

    def shape(self, name: str) -> tuple[int, ...]:
        """As NumPy has it: the longest stride first."""
        return tuple(int(n) for n in reversed(self._tensors[name].shape))

    def linear(self, name: str, part: slice = slice(None)) -> Linear:
        """A matrix, with its bias if it has one; `name` is without ".weight"."""
        if name + ".weight" not in self:
            raise UnsupportedModel(f"the GGUF has no tensor {name}.weight")
        return Linear(self._tensors[name + ".weight"], self.vector_or_none(name + ".bias"), self._keep, part)

    def linear_or_none(self, name: str) -> Linear | None:
        return self.linear(name) if name + ".weight" in self else None

    def vector(self, name: str) -> Array:
        """The values of a tensor that is not a matrix of a product; `name` is its full name."""
        return to_float32(self._tensors[name])

    def vector_or_none(self, name: str) -> Array | None:
        return self.vector(name) if name in self else None


def dequantised(data: Any, tensor_type: GGMLQuantizationType) -> Array:
    values: Array = dequantize(data, tensor_type)
    return values


def to_float32(tensor: ReaderTensor) -> Array:
    """The tensor's values, shape [ne1, ne0] for a matrix; the file's own memory if it has this type."""
    return np.asarray(dequantised(tensor.data, tensor.tensor_type), dtype=np.float32)
