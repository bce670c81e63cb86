"""Small ggml graphs of operators that H2O adds to ggml, or builds from it, run on NumPy arrays.

The last axis of an array is ggml's dimension 0. Views with positive strides are passed on unchanged; others are copied.
Wrong shapes or rows may crash. An array of a `type` that NumPy lacks, "bf16" or "q8_0" say, has the rows' bytes.
"""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from h2o_llama import _core

Float32: TypeAlias = NDArray[np.float32]

_TYPES = {"float32": "f32", "float16": "f16", "int32": "i32"}


class SoftmaxState(NamedTuple):
    """Online-softmax state of a block of keys (Milakov and Gimelshein 2018, arXiv:1805.02867), float32.

    For a query whose keys are all masked, or with no keys at all: m = -inf, l = 0, o = 0.
    """

    m: Float32
    """[..., n_q] largest logit"""
    l: Float32  # noqa: E741
    """[..., n_q] Σ exp(logit - m)"""
    o: Float32
    """[..., n_q, d] Σ exp(logit - m) v / l"""


def max_rows(a: Any, *, backend: str = "cpu", n_threads: int = 1) -> NDArray[Any]:
    """Maximum of each row of float32 or float16 [..., n], by the operator ``ggml_max_rows``. Rows with NaN give NaN."""
    return _core.ops_max_rows(a, _TYPES[a.dtype.name], backend, n_threads)


def get_rows(a: Any, indices: Any, *, type: str | None = None, n_threads: int = 1) -> NDArray[Any]:
    """Rows of `a` by index, every batch by its own, like ``np.take_along_axis``, by the operator ``ggml_get_rows``.

    a is [..., n_rows, n], two to four axes. indices is [..., k] with the same leading axes. If a is
    [n_batch, n_head, n_rows, n], it may also be [n_batch, 1, n_head, k].
    """
    return _core.ops_get_rows(a, type or _TYPES[a.dtype.name], indices.astype(np.int32), "cpu", n_threads)


def softmax_state(logits: Any, v: Any, *, scale: float = 1.0, n_threads: int = 1) -> SoftmaxState:
    """Online-softmax state of ``scale * logits`` [..., n_q, n_k] and values [..., n_k, d], by H2O's graph.

    -inf where a key is masked. The number of heads of v (axis -3) may be a divisor of the logits'.
    """
    m, l, o = _core.ops_softmax_state(logits, v, scale, "cpu", n_threads)  # noqa: E741
    return SoftmaxState(m[..., 0], l[..., 0], o)


def fuse(a: Any, b: Any) -> SoftmaxState:
    """State of two blocks of keys together, as if one softmax had gone over both, by H2O's graph.

    ``m = max(m_a, m_b)``, ``w_x = l_x exp(m_x - m)``, ``l = w_a + w_b``, ``o = (w_a o_a + w_b o_b) / l``.
    """
    states = [(m[..., None], l[..., None], o) for m, l, o in (a, b)]  # noqa: E741
    m, l, o = _core.ops_fuse(states[0], states[1], "cpu", 1)  # noqa: E741
    return SoftmaxState(m[..., 0], l[..., 0], o)
