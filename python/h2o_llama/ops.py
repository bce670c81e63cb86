"""The operators that H2O adds to ggml or builds from it, run on NumPy arrays: for tests and research.

Each function builds a small ggml graph and computes it on a backend of ggml. Arrays are row-major as everywhere in this
package, so that their last axis is ggml's dimension 0. Positive strides go to ggml as they are; other views are copied.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from h2o_llama import _core
from h2o_llama._internal import check

# bytes per block of each type that get_rows and attention take as bytes
_BLOCK_BYTES = {"bf16": 2, "q4_0": 18, "q4_1": 20, "q5_0": 22, "q5_1": 24, "q8_0": 34}

# elements per block
_BLOCK_SIZE = {"bf16": 1, "q4_0": 32, "q4_1": 32, "q5_0": 32, "q5_1": 32, "q8_0": 32}
_FLOAT32_MAX = float(np.finfo(np.float32).max)
_INT32 = np.iinfo(np.int32)

Float32: TypeAlias = NDArray[np.float32]


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
    """Maximum of each row, like ``np.max(a, axis=-1, keepdims=True)``, by the operator ``ggml_max_rows``.

    Parameters
    ----------
    a : float32 or float16 [..., n]
        One to four axes. Rows with NaN give NaN.
    backend : str
        Name of a ggml backend device, such as "cpu" or "cuda0".
    n_threads : int
        Threads of the CPU backend.

    Returns
    -------
    float32 or float16, as a : [..., 1]

    Raises
    ------
    ValueError
        If an argument has the wrong type, shape or range, or there is no such backend.
    H2OError
        If the backend lacks the operator, or memory runs out.

    Examples
    --------
    >>> ops.max_rows(np.array([[1, 3, 2], [-5, -7, -6]], np.float32))
    array([[ 3.],
           [-5.]], dtype=float32)
    """
    array = _array("max_rows", "a", a, ("float32", "float16"), axes=(1, 4))
    ggml_type = "f32" if array.dtype == np.float32 else "f16"
    return _core.ops_max_rows(array, ggml_type, *_place("max_rows", backend, n_threads))


def get_rows(
    a: ArrayLike, indices: ArrayLike, *, type: str | None = None, backend: str = "cpu", n_threads: int = 1
) -> NDArray[Any]:
    """Rows of `a` by index, every batch by its own, like ``np.take_along_axis``, by the operator ``ggml_get_rows``.

    Parameters
    ----------
    a : float32, float16 or int32 [..., n_rows, n]
        Two to four axes. With `type`, the rows' bytes: uint8 [..., n_rows, n_bytes].
    indices : integers [..., k]
        The leading axes are those of a; of a's four axes [n_batch, n_head, n_rows, n], also [n_batch, 1, n_head, k].
    type : "bf16", "q4_0", "q4_1", "q5_0", "q5_1", "q8_0" or None, default None
        Type of a whose elements NumPy does not have. ``gguf.quants.quantize`` makes such bytes.
    backend, n_threads
        As in `max_rows`.

    Returns
    -------
    float32 (int32 if a is) : [..., k, n]

    Raises
    ------
    ValueError
        If an argument has the wrong type, shape or range, or an index is not a row of a.
    H2OError
        If the backend lacks the operator for this type, or memory runs out.

    Examples
    --------
    >>> a = np.arange(12, dtype=np.float32).reshape(2, 3, 2)
    >>> ops.get_rows(a, [[2], [0]]).tolist()
    [[[4.0, 5.0]], [[6.0, 7.0]]]
    """
    array, ggml_type = _rows_of_type("get_rows", "a", a, type, ("float32", "float16", "int32"), axes=(2, 4))
    rows = _array("get_rows", "indices", indices, None, axes=(1, 4))
    batch = array.shape[:-2]
    also = (batch[0], 1, batch[1]) if len(batch) == 2 else batch
    if rows.shape[:-1] not in (batch, also):
        raise ValueError(f"[get_rows] indices must be of shape {[*batch, 'k']}, got {list(rows.shape)}")
    _check_indices("get_rows", "indices", rows, array.shape[-2])

    return _core.ops_get_rows(array, ggml_type, rows.astype(np.int32), *_place("get_rows", backend, n_threads))


def softmax_state(
    logits: ArrayLike, v: ArrayLike, *, scale: float = 1.0, backend: str = "cpu", n_threads: int = 1
) -> SoftmaxState:
    """Online-softmax state of the logits ``scale * logits``, by the graph that H2O's attention uses.

    Parameters
    ----------
    logits : float32 [..., n_q, n_k]
        Two to four axes; -inf where a key is masked. n_k may be 0.
    v : float32 [..., n_k, d]
        Values. The number of heads (axis -3) may be a divisor of that of the logits: grouped-query attention.
    scale : float
        Positive, as with ggml's softmax it comes after the mask.
    backend, n_threads
        As in `max_rows`.

    Raises
    ------
    ValueError
        If an argument has the wrong type, shape or range.
    H2OError
        If the backend lacks an operator, or memory runs out.

    Examples
    --------
    >>> m, l, o = ops.softmax_state(np.zeros((1, 4), np.float32), np.eye(4, dtype=np.float32))
    >>> m, l, o
    (array([0.], dtype=float32), array([4.], dtype=float32), array([[0.25, 0.25, 0.25, 0.25]], dtype=float32))
    """
    x = _array("softmax_state", "logits", logits, ("float32",), axes=(2, 4), may_be_empty=-1)
    values = _array("softmax_state", "v", v, ("float32",), axes=(2, 4), may_be_empty=-2)
    head, head_v = x.shape[-3:-2], values.shape[-3:-2]
    if (
        x.ndim != values.ndim
        or x.shape[-1] != values.shape[-2]
        or x.shape[:-3] != values.shape[:-3]
        or math.prod(head) % math.prod(head_v) != 0
    ):
        raise ValueError(
            f"[softmax_state] v must be of shape {[*x.shape[:-2], x.shape[-1], 'd']}, got {list(values.shape)}"
        )
    number = check.real("softmax_state", "scale", scale, float(np.finfo(np.float32).tiny))

    if x.shape[-1] == 0:  # no key is like one masked key
        x = np.full((*x.shape[:-1], 1), -np.inf, dtype=np.float32)
        values = np.zeros((*values.shape[:-2], 1, values.shape[-1]), dtype=np.float32)

    return SoftmaxState(*_core.ops_softmax_state(x, values, number, *_place("softmax_state", backend, n_threads)))


def fuse(
    a: SoftmaxState | tuple[ArrayLike, ArrayLike, ArrayLike],
    b: SoftmaxState | tuple[ArrayLike, ArrayLike, ArrayLike],
    *,
    backend: str = "cpu",
    n_threads: int = 1,
) -> SoftmaxState:
    """State of two blocks of keys together: as if one softmax had gone over both, by the graph that H2O uses.

    ``m = max(m_a, m_b)``, ``w_x = l_x exp(m_x - m)``, ``l = w_a + w_b``, ``o = (w_a o_a + w_b o_b) / l``.
    An empty block is neutral.

    Parameters
    ----------
    a, b : (m, l, o)
        float32 [..., n_q], [..., n_q] and [..., n_q, d], such as `softmax_state` returns. The same shapes in a and b.
    backend, n_threads
        As in `max_rows`.

    Raises
    ------
    ValueError
        If an argument has the wrong type or shape.
    H2OError
        If the backend lacks an operator, or memory runs out.

    Examples
    --------
    >>> logits, v = np.zeros((1, 4), np.float32), np.eye(4, dtype=np.float32)
    >>> halves = [ops.softmax_state(logits[:, i : i + 2], v[i : i + 2]) for i in (0, 2)]
    >>> ops.fuse(*halves).o
    array([[0.25, 0.25, 0.25, 0.25]], dtype=float32)
    """
    state_a, state_b = _state("a", a), _state("b", b)
    shape_a, shape_b = state_a[2].shape, state_b[2].shape
    if shape_a != shape_b:
        raise ValueError(f"[fuse] a and b must have the same shape, got o of {list(shape_a)} and {list(shape_b)}")
    return SoftmaxState(*_core.ops_fuse(state_a, state_b, *_place("fuse", backend, n_threads)))


def column_sums(weights: ArrayLike, n_head_kv: int, *, backend: str = "cpu", n_threads: int = 1) -> Float32:
    """Attention mass that each key received, by the graph that H2O's scores come from.

    Parameters
    ----------
    weights : float32 [..., n_head, n_q, n_k]
        Softmax weights, three or four axes.
    n_head_kv : int
        Divisor of n_head: n_head/n_head_kv consecutive query heads share a KV head.
    backend, n_threads
        As in `max_rows`.

    Returns
    -------
    float32 [..., n_head_kv, n_k]
        Sums over the queries and over the query heads of each KV head.

    Raises
    ------
    ValueError
        If an argument has the wrong type, shape or range.
    H2OError
        If the backend lacks an operator, or memory runs out.

    Examples
    --------
    >>> ops.column_sums(np.full((4, 2, 3), 1 / 3, np.float32), n_head_kv=2)
    array([[1.3333334, 1.3333334, 1.3333334],
           [1.3333334, 1.3333334, 1.3333334]], dtype=float32)
    """
    array = _array("column_sums", "weights", weights, ("float32",), axes=(3, 4))
    n_head = array.shape[-3]
    heads = check.integer("column_sums", "n_head_kv", n_head_kv, 1, n_head)
    if n_head % heads != 0:
        raise ValueError(f"[column_sums] n_head_kv must divide the {n_head} heads of weights, got {heads}")
    return _core.ops_column_sums(array, heads, *_place("column_sums", backend, n_threads))


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
    k : float32 or float16 [n_head_kv, n_kv, d_k]
        Keys. n_head_kv divides n_head: consecutive query heads share a KV head. With `type`, the rows' bytes: uint8.
    v : as k [n_head_kv, n_kv, d_v]
        Values.
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
        softmax; the sums are those of `rows` only. The queries of a tile share a list. Query i is in tile
        ``(i + offset) // tile``, and there are as many tiles as the last query needs. What a query sees of its list
        must differ from each other. There is one block: q has three axes, or n_block is 1.
    further_first : integers [n_tiles, n], optional
        The first query that sees each of these, not negative and ascending in each list. Then rows that are also among
        a head's `rows`, seen or not, are ignored for that head: nothing counts twice. Each head's `rows` must ascend.
        Rows that no query of the tile sees, with n_q for padding, may be any int32 numbers. By default queries see
        all of their list, which has none of the head's `rows`, and -1 at its end is no row.
    tile : int
        Queries of a tile, at least 1.
    offset : int
        From 0 to ``tile - 1``: so many queries fewer are in the first tile.
    sinks : float32 [n_head], optional
        One more logit in the softmax of every query of a head, which has no key and no value. m and l count it.
    scale : float
        The weights are softmax(scale q·k).
    softcap : float
        With c = softcap > 0, the weights are softmax(c tanh(scale q·k / c)).
    causal : bool
        Query i sees ``rows[: n_k - n_q + i + 1]``, n_q ≤ n_k. If false, every query sees all rows.
    type : "bf16", "q4_0", "q4_1", "q5_0", "q5_1", "q8_0" or None, default None
        Type of k and v whose elements NumPy does not have. ``gguf.quants.quantize`` makes such bytes.
    backend, n_threads
        As in `max_rows`.

    Raises
    ------
    ValueError
        If an argument has the wrong type, shape or range, an index is not a row of k, or rows do not ascend although
        there are limits or further keys.
    H2OError
        If the backend lacks the operator, or memory runs out.

    Examples
    --------
    >>> q, k = np.zeros((2, 1, 32), np.float32), np.ones((1, 4, 32), np.float32)
    >>> found = ops.attention(q, k, k, rows=[[0, 2]])  # of four keys two
    >>> found.o.shape, found.sums
    ((1, 2, 32), array([[1., 1.]], dtype=float32))
    """
    queries = _array("attention", "q", q, ("float32",), axes=(3, 4))
    keys, ggml_type = _rows_of_type("attention", "k", k, type, ("float32", "float16"), axes=(3, 3))
    values, _ = _rows_of_type("attention", "v", v, type, (keys.dtype.name,), axes=(3, 3))
    batch, n_q = queries.shape[:-3], queries.shape[-2]
    n_head_kv, n_kv = keys.shape[:2]
    _check_keys("attention", queries, keys, None if type is None else ggml_type)
    _check_shape("attention", "v", values, n_head_kv, n_kv, "d_v")
    if rows is None:
        rows = np.broadcast_to(np.arange(n_kv), (*batch, n_head_kv, n_kv))
        has_rows = False
    else:
        has_rows = True
    indices = _array("attention", "rows", rows, None, axes=(2, 3))
    _check_shape("attention", "rows", indices, *batch, n_head_kv, "n_k")
    _check_indices("attention", "rows", indices, n_kv)
    n_k = indices.shape[-1]
    is_causal = check.flag("attention", "causal", causal) and first is None
    if is_causal and n_k < n_q:
        raise ValueError(
            f"[attention] rows must hold at least as many keys as there are queries ({n_q}) when causal, got {n_k}"
        )
    seen = np.maximum(np.arange(n_k) - (n_k - n_q), 0) if is_causal else np.zeros(n_k, np.int64)
    if first is not None:
        seen = _array("attention", "first", first, None, axes=(1, 1))
        if seen.shape != (n_k,) or np.any(np.diff(seen) < 0) or np.any((seen < 0) | (seen > n_q)):
            raise ValueError(f"[attention] first must hold {n_k} ascending numbers from 0 to {n_q}, got {first}")
    number = check.real("attention", "scale", scale, -_FLOAT32_MAX, _FLOAT32_MAX)
    bounds = None if limits is None else _limits(limits, (*batch, n_q), indices)
    cap = check.real("attention", "softcap", softcap, 0.0, _FLOAT32_MAX)
    head_sinks = None
    if sinks is not None:
        head_sinks = _array("attention", "sinks", sinks, ("float32",), axes=(1, 1))
        _check_shape("attention", "sinks", head_sinks, queries.shape[-3])
    size = check.integer("attention", "tile", tile, 1, int(_INT32.max))
    skipped = check.integer("attention", "offset", offset, 0, size - 1)
    further, first_queries = None, None
    if further_rows is not None:
        further, first_queries = _further(further_rows, further_first, size, skipped, n_q, n_kv, indices)
    elif further_first is not None:
        raise ValueError("[attention] further_first is that of further_rows, got no further_rows")
    place = _place("attention", backend, n_threads)

    if not batch:
        queries, indices = queries[None], indices[None]
        bounds = bounds if bounds is None else bounds[None]
    params = _core.ops_AttentionParams(
        rows=indices if has_rows else None,
        n_k=n_k,
        first=seen,
        limits=bounds,
        further_rows=further,
        further_first=first_queries,
        tile=size,
        offset=skipped,
        sinks=head_sinks,
        scale=number,
        softcap=cap,
        sums=1,
    )
    o, sums, maxima, sums_of_exp = _core.ops_attention(queries, keys, values, ggml_type, params, *place)
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

    Parameters
    ----------
    q : float32 [n_head, n_q, d_k]
        Queries; d_k is a multiple of 32.
    k : uint8 [n_head_kv, n_k, d_k/32*18]
        Keys in Q4_0, the rows' bytes. ``gguf.quants.quantize`` makes them. n_head_kv divides n_head: consecutive query
        heads share a KV head.
    n_top : int
        Rows to choose, at least 1; may be more than there are.
    tile, offset : int
        Query i is in tile ``(i + offset) // tile``.
    taken : integers [n_head_kv, n_taken], optional
        Rows that are not to be chosen; any int32 numbers, those that are no rows of k say nothing.
    backend, n_threads
        As in `max_rows`.

    Returns
    -------
    int32 [n_head_kv, n_tiles, n_top]
        Rows in ascending order, -1 at the end where there are fewer.

    Raises
    ------
    ValueError
        If an argument has the wrong type, shape or range.
    H2OError
        If the backend lacks the operator, or memory runs out.
    """
    queries = _array("top_keys", "q", q, ("float32",), axes=(3, 3))
    keys, ggml_type = _rows_of_type("top_keys", "k", k, "q4_0", (), axes=(3, 3))
    _check_keys("top_keys", queries, keys, ggml_type)
    number = check.integer("top_keys", "n_top", n_top, 1)
    excluded = None
    if taken is not None:
        array = _array("top_keys", "taken", taken, None, axes=(2, 2))
        _check_shape("top_keys", "taken", array, len(keys), "n_taken")
        excluded = _int32("top_keys", "taken", array)
    size = check.integer("top_keys", "tile", tile, 1, int(_INT32.max))
    skipped = check.integer("top_keys", "offset", offset, 0, size - 1)
    return _core.ops_top_keys(queries, keys, number, excluded, size, skipped, *_place("top_keys", backend, n_threads))


def _place(op: str, backend: object, n_threads: object) -> tuple[str, int]:
    if not isinstance(backend, str):
        raise check.bad_argument(op, "backend", "a name such as 'cpu'", backend)
    return backend, check.integer(op, "n_threads", n_threads, 1, check.MAX_THREADS)


def _array(
    op: str,
    name: str,
    value: ArrayLike,
    dtypes: tuple[str, ...] | None,
    axes: tuple[int, int],
    may_be_empty: int | None = None,
) -> NDArray[Any]:
    """`value` as an array, of one of the dtypes (None: integers) and not empty but along axis `may_be_empty`."""
    try:
        array = np.asarray(value)
    except ValueError:  # ragged
        raise check.bad_argument(op, name, "an array", value) from None
    if not (array.dtype.kind in "iu" if dtypes is None else array.dtype in dtypes):
        expected = "integers" if dtypes is None else " or ".join(dtypes)
        raise ValueError(f"[{op}] {name} must be {expected}, got {array.dtype}")
    low, high = axes
    if not low <= array.ndim <= high:
        expected = f"{low}" if low == high else f"{low} to {high}"
        raise ValueError(f"[{op}] {name} must have {expected} axes, got {array.ndim}")
    if any(n == 0 for axis, n in enumerate(array.shape, start=-array.ndim) if axis != may_be_empty):
        raise ValueError(f"[{op}] {name} must not be empty, got shape {list(array.shape)}")
    return array


def _rows_of_type(
    op: str, name: str, value: ArrayLike, type: str | None, dtypes: tuple[str, ...], axes: tuple[int, int]
) -> tuple[NDArray[Any], str]:
    """`value` as an array and the name of its type in ggml; with `type`, its rows' bytes."""
    if type is None:
        array = _array(op, name, value, dtypes, axes)
        return array, {"float32": "f32", "float16": "f16", "int32": "i32"}[array.dtype.name]
    ggml_type = check.choice(op, "type", type, _BLOCK_BYTES)
    array = _array(op, name, value, ("uint8",), axes)
    n_bytes = _BLOCK_BYTES[ggml_type]
    if array.shape[-1] % n_bytes != 0:
        raise ValueError(f"[{op}] rows of {ggml_type} are multiples of {n_bytes} bytes, got {array.shape[-1]}")
    return array, ggml_type


def _check_keys(op: str, queries: NDArray[Any], keys: NDArray[Any], block_type: str | None) -> None:
    """Heads and sizes of rows; with a block type, keys are the rows' bytes."""
    n_head, _, d_q = queries.shape[-3:]
    n_head_kv, _, d_k = keys.shape
    if block_type is not None:
        d_k = d_k // _BLOCK_BYTES[block_type] * _BLOCK_SIZE[block_type]
    if n_head % n_head_kv != 0:
        raise ValueError(f"[{op}] the heads of k must divide the {n_head} heads of q, got {n_head_kv}")
    if d_q != d_k:
        raise ValueError(f"[{op}] k must have rows of {d_q} elements, as q has, got {d_k}")


def _check_shape(op: str, name: str, array: NDArray[Any], *shape: int | str) -> None:
    """A size that has only a name may be any."""
    if array.ndim != len(shape) or any(
        want != n for want, n in zip(shape, array.shape, strict=True) if not isinstance(want, str)
    ):
        raise ValueError(f"[{op}] {name} must be of shape {list(shape)}, got {list(array.shape)}")


def _int32(op: str, name: str, array: NDArray[Any]) -> NDArray[np.int32]:
    low, high = array.min(), array.max()
    if low < _INT32.min or high > _INT32.max:
        raise ValueError(f"[{op}] {name} must be int32 numbers, got {low} to {high}")
    return np.ascontiguousarray(array, dtype=np.int32)


def _check_indices(op: str, name: str, indices: NDArray[Any], n_rows: int) -> None:
    low, high = indices.min(), indices.max()
    if low < 0 or high >= n_rows:
        raise ValueError(f"[{op}] {name} must be from 0 to {n_rows - 1}, got {low} to {high}")


def _limits(value: ArrayLike, shape: tuple[int, ...], indices: NDArray[Any]) -> NDArray[np.int32]:
    limits = _array("attention", "limits", value, None, axes=(1, 2))
    _check_shape("attention", "limits", limits, *shape)
    checked = _int32("attention", "limits", limits)
    _check_ascending(indices, "limits")
    return checked


def _further(
    value: ArrayLike,
    first: ArrayLike | None,
    tile: int,
    offset: int,
    n_q: int,
    n_kv: int,
    indices: NDArray[Any],
) -> tuple[NDArray[np.int32] | None, NDArray[np.int32] | None]:
    """Further rows and the first queries that see them, checked; None where there are none."""
    if indices.ndim == 3 and len(indices) != 1:
        raise ValueError(f"[attention] further_rows are for one block of queries, got {len(indices)}")
    own = indices.reshape(indices.shape[-2:])
    rows = _array("attention", "further_rows", value, None, axes=(2, 3), may_be_empty=-1)
    n_tiles = -(-(n_q + offset) // tile)
    _check_shape("attention", "further_rows", rows, *(len(own),) * (rows.ndim - 2), n_tiles, "n")
    queries = None if first is None else _first_queries(first, rows)
    if rows.size == 0:
        return None, None
    rows = _int32("attention", "further_rows", rows)
    of_heads = rows.reshape(-1, n_tiles, rows.shape[-1])
    if queries is None:
        _check_lists(of_heads, own, n_kv)
        return rows, None
    ends = np.minimum((np.arange(n_tiles) + 1) * tile - offset, n_q)
    for i, is_seen in enumerate(queries < ends[:, None]):
        for seen in (head[i, is_seen] for head in of_heads if is_seen.any()):
            _check_indices("attention", "further_rows", seen, n_kv)
            if len(np.unique(seen)) < len(seen):
                raise ValueError(
                    "[attention] further_rows that a query sees must differ from each other, "
                    f"got equal ones in list {i}"
                )
    _check_ascending(indices, "further keys")
    return rows, queries


def _first_queries(value: ArrayLike, rows: NDArray[Any]) -> NDArray[np.int32]:
    array = _array("attention", "further_first", value, None, axes=(2, 2), may_be_empty=-1)
    _check_shape("attention", "further_first", array, *rows.shape[-2:])
    if array.size == 0:
        return array.astype(np.int32)
    if array.min() < 0:
        raise ValueError("[attention] further_first must hold numbers from 0 on")
    if (array[:, 1:] < array[:, :-1]).any():
        raise ValueError("[attention] further_first must be ascending in each list")
    return _int32("attention", "further_first", array)


def _check_lists(rows: NDArray[Any], own: NDArray[Any], n_kv: int) -> None:
    """Lists [1 or n_head_kv, n_lists, n] that queries see as a whole."""
    if rows.min() < -1 or rows.max() >= n_kv:
        raise ValueError(
            f"[attention] further_rows must be from 0 to {n_kv - 1}, or -1, got {rows.min()} to {rows.max()}"
        )
    if (rows[..., 1:] > rows[..., :-1])[rows[..., :-1] == -1].any():
        raise ValueError("[attention] further_rows must have -1 at the end of a list only")
    ascending = np.sort(rows, axis=-1)
    if ((ascending[..., 1:] == ascending[..., :-1]) & (ascending[..., 1:] >= 0)).any():
        raise ValueError("[attention] further_rows of a list must differ from each other, got equal ones")
    for head in range(len(own)):
        if np.isin(rows[head % len(rows)], own[head]).any():
            raise ValueError(
                f"[attention] further_rows must differ from the head's rows, got some of them in head {head}"
            )


def _check_ascending(indices: NDArray[Any], reason: str) -> None:
    if (indices[..., 1:] < indices[..., :-1]).any():
        raise ValueError(f"[attention] rows must ascend in each head when there are {reason}. Sort them")


def _state(name: str, state: object) -> tuple[Float32, Float32, Float32]:
    if not isinstance(state, tuple) or len(state) != 3:
        raise check.bad_argument("fuse", name, "a tuple (m, l, o)", state)
    m, l, o = (  # noqa: E741
        _array("fuse", f"{name}.{part}", value, ("float32",), axes=(2, 4) if part == "o" else (1, 3))
        for part, value in zip("mlo", state, strict=True)
    )
    if m.shape != o.shape[:-1] or l.shape != m.shape:
        raise ValueError(
            f"[fuse] {name} must be (m, l, o) of shapes [..., n_q], [..., n_q] and [..., n_q, d], "
            f"got {list(m.shape)}, {list(l.shape)} and {list(o.shape)}"
        )
    return m[..., None], l[..., None], o
