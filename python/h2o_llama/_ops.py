"""The operators that H2O adds to ggml or builds from it, run on NumPy arrays, for tests.

Each function builds a small ggml graph and computes it on a backend of ggml, such as "cpu" or "cuda0". Arrays are
row-major as everywhere in this package, so that their last axis is ggml's dimension 0. Views with positive
strides are passed on unchanged; others are copied. Arguments are not checked: wrong shapes or rows may crash.

`type` is that of arrays whose elements NumPy does not have, "bf16" or "q8_0" say: they are the rows' bytes, uint8, as
`gguf.quants.quantize` makes them.
"""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

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


class Attention(NamedTuple):
    """What `attention` returns, float32. (m, l, o) is an online-softmax state, o with other axes than in SoftmaxState.

    For a query whose logits are all -inf: m = -inf, l = 0, o = 0, and it adds nothing to the sums.
    """

    o: Float32
    """[..., n_q, n_head, d_v] weights times values"""
    sums: Float32
    """[..., n_head_kv, n_k] weights summed over the queries that count and the query heads of each KV head"""
    m: Float32
    """[..., n_head, n_q] largest logit"""
    l: Float32  # noqa: E741
    """[..., n_head, n_q] Σ exp(logit - m)"""


def max_rows(a: ArrayLike, *, backend: str = "cpu", n_threads: int = 1) -> NDArray[Any]:
    """Maximum of each row of float32 or float16 [..., n], by the operator ``ggml_max_rows``. Rows with NaN give NaN."""
    array = np.asarray(a)
    return _core.ops_max_rows(array, _TYPES[array.dtype.name], backend, n_threads)


def get_rows(
    a: ArrayLike, indices: ArrayLike, *, type: str | None = None, backend: str = "cpu", n_threads: int = 1
) -> NDArray[Any]:
    """Rows of `a` by index, every batch by its own, like ``np.take_along_axis``, by the operator ``ggml_get_rows``.

    a is [..., n_rows, n], two to four axes. indices is [..., k] with the same leading axes. If a is
    [n_batch, n_head, n_rows, n], it may also be [n_batch, 1, n_head, k].
    """
    array = np.asarray(a)
    rows = np.asarray(indices).astype(np.int32)
    return _core.ops_get_rows(array, type or _TYPES[array.dtype.name], rows, backend, n_threads)


def softmax_state(
    logits: ArrayLike, v: ArrayLike, *, scale: float = 1.0, backend: str = "cpu", n_threads: int = 1
) -> SoftmaxState:
    """Online-softmax state of ``scale * logits`` [..., n_q, n_k] and values [..., n_k, d], by H2O's graph.

    -inf where a key is masked. n_k may be 0. The number of heads of v (axis -3) may be a divisor of that of the logits.
    """
    x, values = np.asarray(logits), np.asarray(v)
    if x.shape[-1] == 0:  # no key is like one masked key
        x = np.full((*x.shape[:-1], 1), -np.inf, dtype=np.float32)
        values = np.zeros((*values.shape[:-2], 1, values.shape[-1]), dtype=np.float32)
    return SoftmaxState(*_core.ops_softmax_state(x, values, scale, backend, n_threads))


def fuse(
    a: SoftmaxState | tuple[ArrayLike, ArrayLike, ArrayLike],
    b: SoftmaxState | tuple[ArrayLike, ArrayLike, ArrayLike],
    *,
    backend: str = "cpu",
    n_threads: int = 1,
) -> SoftmaxState:
    """State of two blocks of keys together, as if one softmax had gone over both, by H2O's graph.

    ``m = max(m_a, m_b)``, ``w_x = l_x exp(m_x - m)``, ``l = w_a + w_b``, ``o = (w_a o_a + w_b o_b) / l``.
    """
    states = [
        (np.asarray(state[0])[..., None], np.asarray(state[1])[..., None], np.asarray(state[2])) for state in (a, b)
    ]
    return SoftmaxState(*_core.ops_fuse(states[0], states[1], backend, n_threads))


def column_sums(weights: ArrayLike, n_head_kv: int, *, backend: str = "cpu", n_threads: int = 1) -> Float32:
    """Softmax weights [..., n_head, n_q, n_k] summed over queries and the query heads of each KV head, by H2O's graph.

    Returns [..., n_head_kv, n_k]. n_head/n_head_kv consecutive query heads share a KV head.
    """
    return _core.ops_column_sums(np.asarray(weights), n_head_kv, backend, n_threads)


def attention(
    q: ArrayLike,
    k: ArrayLike,
    v: ArrayLike,
    rows: ArrayLike | None = None,
    *,
    first: ArrayLike | None = None,
    limits: ArrayLike | None = None,
    further_rows: ArrayLike | None = None,
    further_first: ArrayLike | None = None,
    tile: int = 1,
    offset: int = 0,
    sinks: ArrayLike | None = None,
    scale: float = 1.0,
    softcap: float = 0.0,
    causal: bool = True,
    type: str | None = None,
    backend: str = "cpu",
    n_threads: int = 1,
) -> Attention:
    """Attention to keys chosen by index, with the column sums of its softmax, by the operator ``ggml_h2o_attn``.

    Parameters
    ----------
    q : float32 [..., n_head, n_q, d_k]
        Queries; three axes, or four with n_block first.
    k, v : float32 or float16 [n_head_kv, n_kv, d_k] and [n_head_kv, n_kv, d_v]
        Keys and values. n_head_kv divides n_head: consecutive query heads share a KV head.
    rows : integers [..., n_head_kv, n_k], optional
        Own keys: rows of k and v, in any order; the leading axis is that of q. By default all rows of k, in order.
    first : integers [n_k], optional
        The first query that sees each row, ascending. By default as `causal` says, which it replaces.
    limits : integers [..., n_q], optional
        Query i counts in the sum of a key only if the key's row is at most ``limits[i]``: any int32 numbers, with a
        negative one it counts nowhere. The leading axis is that of q. Each head's rows must then be ascending. By
        default every query counts. o, m and l do not depend on it.
    further_rows : integers [n_tiles, n] or [n_head_kv, n_tiles, n], optional
        Further keys: lists of rows of k and v, the same for all heads or other ones for every KV head, in the same
        softmax; only `rows` are counted in the sums. The queries of a tile share a list. Query i is in tile
        ``(i + offset) // tile``, and there are as many tiles as the last query needs. What a query sees of its list
        must differ from each other. There is one block: q has three axes, or n_block is 1.
    further_first : integers [n_tiles, n], optional
        The first query that sees each of these, not negative and ascending in each list. Then rows that are also among
        a head's `rows`, seen or not, are ignored for that head: nothing counts twice. Each head's `rows` must ascend.
        Rows that no query of the tile sees, with n_q for padding, may be any int32 numbers. By default queries see
        all of their list. It must not have any of the head's `rows`; entries of -1 at its end are ignored.
    tile, offset : int
        Queries of a tile. The first tile has `offset` queries fewer, from 0 to ``tile - 1``.
    sinks : float32 [n_head], optional
        One more logit in the softmax of every query of a head, which has no key and no value. m and l count it.
    scale, softcap : float
        The weights are softmax(scale q·k), or softmax(c tanh(scale q·k / c)) with c = softcap > 0.
    causal : bool
        Query i sees ``rows[: n_k - n_q + i + 1]``, n_q ≤ n_k. If false, every query sees all rows.
    """
    queries, keys, values = np.asarray(q), np.asarray(k), np.asarray(v)
    batch, n_q = queries.shape[:-3], queries.shape[-2]
    own = None if rows is None else np.asarray(rows)
    n_k = keys.shape[1] if own is None else own.shape[-1]
    if first is None:
        first = np.maximum(np.arange(n_k) - (n_k - n_q), 0) if causal else np.zeros(n_k, np.int64)
    further = None if further_rows is None or np.size(further_rows) == 0 else np.asarray(further_rows)
    bounds = None if limits is None else np.asarray(limits)
    if not batch:
        queries = queries[None]
        own = None if own is None else own[None]
        bounds = None if bounds is None else bounds[None]
    params = _core.ops_AttentionParams(
        rows=own,
        n_k=n_k,
        first=np.asarray(first),
        limits=_int32(bounds),
        further_rows=_int32(further),
        further_first=None if further is None else _int32(further_first),
        tile=tile,
        offset=offset,
        sinks=None if sinks is None else np.asarray(sinks),
        scale=scale,
        softcap=softcap,
        sums=1,
    )
    ggml_type = type or _TYPES[keys.dtype.name]
    o, sums, maxima, sums_of_exp = _core.ops_attention(queries, keys, values, ggml_type, params, backend, n_threads)
    assert sums is not None  # they were asked for
    return Attention(*(output.reshape(*batch, *output.shape[1:]) for output in (o, sums, maxima, sums_of_exp)))


def top_keys(
    q: ArrayLike,
    k: ArrayLike,
    n_top: int,
    *,
    tile: int = 1,
    offset: int = 0,
    taken: ArrayLike | None = None,
    backend: str = "cpu",
    n_threads: int = 1,
) -> NDArray[np.int32]:
    """The rows of k that the queries of a tile choose together, by the operator ``ggml_h2o_top_keys``.

    A query's logit of a row is the dot product of the row with the sum of q over the KV head's group, which is rounded
    to 8 bits: ``round(sum / max|sum| * 127) * max|sum| / 127``. A tile's score of a row is the largest logit that a
    query of it has. Of equal scores the lower row wins. A query with a sum that is not finite, or 0, has no say.

    q is float32 [n_head, n_q, d_k], k the bytes of Q4_0 rows [n_head_kv, n_k, d_k/32*18]. Query i is in tile
    ``(i + offset) // tile``. Rows in `taken`, integers [n_head_kv, n_taken], are not to be chosen. Returns int32
    [n_head_kv, n_tiles, n_top]: rows in ascending order, -1 at the end where there are fewer.
    """
    excluded = _int32(taken)
    return _core.ops_top_keys(np.asarray(q), np.asarray(k), n_top, excluded, tile, offset, backend, n_threads)


def _int32(array: ArrayLike | None) -> NDArray[np.int32] | None:
    return None if array is None else np.ascontiguousarray(array, dtype=np.int32)
