"""Problems for the attention operator, and their solution in float64 by NumPy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray

from compare import assert_all_equal, case
from h2o_llama import _core, ops
from kernels import ISAS

Array = NDArray[Any]
Inputs = tuple[Array, Array, Array, Array]

# Error of a sum whose size is 1: float32 rounds every partial sum to 2^-24, "amx" rounds every number to 2^-17. Two to
# three times the largest that was measured in any test here.
ROUNDING = {isa: 2.0**-15 if isa == "amx" else 2.0**-18 for isa in ISAS}

NO_SUMS, COLUMN_SUMS, QUERY_SUMS = ALL_SUMS = (0, 1, 2)
FURTHER = ["none", "shared", "of heads", "of queries"]


@dataclass(frozen=True)
class Sizes:
    n_head_kv: int = 2
    group: int = 2
    n_q: int = 40
    memory: int = 30
    d_k: int = 64
    d_v: int = 64
    n_block: int = 1

    @property
    def n_k(self) -> int:
        return self.n_q + self.memory


def random_inputs(rng: np.random.Generator, sizes: Sizes) -> Inputs:
    """q, k, v and rows: logits have a standard deviation of 1, every KV head of every block has its own rows."""
    n_kv = sizes.n_k + 7
    n_head = sizes.n_head_kv * sizes.group
    q = rng.standard_normal((sizes.n_block, n_head, sizes.n_q, sizes.d_k), dtype=np.float32) / np.sqrt(sizes.d_k)
    k = rng.standard_normal((sizes.n_head_kv, n_kv, sizes.d_k), dtype=np.float32)
    v = rng.standard_normal((sizes.n_head_kv, n_kv, sizes.d_v), dtype=np.float32)
    rows = np.argsort(rng.random((sizes.n_block, sizes.n_head_kv, n_kv)), axis=-1)[..., : sizes.n_k]
    return q.astype(np.float32), k, v, rows


def capped(logits: Array, softcap: float) -> Array:
    return softcap * np.tanh(logits / softcap) if softcap > 0 else logits


def gather(x: Array, rows: Array, group: int) -> Array:
    """[n_block, n_head, n_k, d] in float64."""
    return np.repeat(x.astype(np.float64)[np.arange(len(x))[None, :, None], rows], group, axis=1)


def reference(
    q: Array,
    k: Array,
    v: Array,
    rows: Array,
    scale: float = 1.0,
    causal: bool = True,
    limits: Array | None = None,
    first: Array | None = None,
    sinks: Array | None = None,
    softcap: float = 0.0,
) -> ops.Attention:
    """All in float64; values that are hidden are left out, not multiplied by 0, where that makes a difference."""
    n_block, n_head, n_q, _ = q.shape
    n_head_kv, n_k = rows.shape[1:]
    group = n_head // n_head_kv
    visible = np.tri(n_q, n_k, n_k - n_q, dtype=bool) if causal else np.ones((n_q, n_k), dtype=bool)
    if first is not None:
        visible = first <= np.arange(n_q)[:, None]
    with np.errstate(all="ignore"):
        logits = np.float64(np.float32(scale)) * (q.astype(np.float64) @ gather(k, rows, group).swapaxes(-1, -2))
        logits = capped(logits, softcap)
        sink = (np.full(n_head, -np.inf) if sinks is None else sinks.astype(np.float64))[:, None]
        m = np.maximum(logits.max(axis=-1, where=visible, initial=-np.inf), sink)
        empty = m == -np.inf
        e = np.where(visible & ~empty[..., None], np.exp(logits - m[..., None]), 0)
        l = e.sum(axis=-1) + np.where(empty, 0, np.exp(sink - m))  # noqa: E741
        weights = np.where(visible, e / np.where(empty, 1, l)[..., None], 0)
        values = gather(v, rows, group)
        if np.isfinite(values).all():
            o = (weights @ values).swapaxes(1, 2)
        else:
            o = np.zeros((n_block, n_q, n_head, v.shape[-1]))
            for i in range(n_q):
                n = np.count_nonzero(visible[i])
                o[:, i] = (weights[:, :, i, None, :n] @ values[:, :, :n])[:, :, 0]
        o[empty.swapaxes(1, 2)] = 0
    weights = weights.reshape(n_block, n_head_kv, group, n_q, n_k)
    if limits is not None:
        counted = rows[:, :, None, None] <= limits[:, None, None, :, None]
        weights = np.where(counted, weights, 0)
    sums = weights.sum(axis=(2, 3))
    return ops.Attention(o, sums, m, l)


def assert_close(got: ops.Attention, want: ops.Attention, q: Array, k: Array, v: Array, scale: float, isa: str) -> None:
    """An error δ of the logits is one of δ in m and a factor e^δ in l and the weights; o averages v by the weights."""
    # A logit is a sum of d products; their errors are independent, so it has √d times the error of one.
    size = abs(scale) * np.linalg.norm(q, axis=-1).max() * np.linalg.norm(k, axis=-1).max() / np.sqrt(q.shape[-1])
    delta = ROUNDING[isa] * (1 + float(size))
    np.testing.assert_allclose(got.m, want.m, rtol=0, atol=delta)
    np.testing.assert_allclose(got.l, want.l, rtol=delta)
    np.testing.assert_allclose(got.sums, want.sums, rtol=delta, atol=0.01 * delta)
    np.testing.assert_allclose(got.o, want.o, rtol=0, atol=delta * np.abs(v).max())


def compute(inputs: Inputs, sums: int = NO_SUMS, type: str = "f32", n_threads: int = 2, **params: Any) -> ops.Attention:
    """The operator itself, with sums of any kind."""
    q, k, v, rows = inputs
    arguments = _core.ops_AttentionParams(rows=rows, sums=sums, **params)
    o, s, m, l = _core.ops_attention(q, k, v, type, arguments, "cpu", n_threads)  # noqa: E741
    assert (s is None) == (sums == NO_SUMS)
    return ops.Attention(o, np.zeros(0) if s is None else s, m, l)


def stored_and_wide(k: Array, v: Array, type: str) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
    """K and V of a type, as the operator takes them; and the numbers that they stand for."""
    if type == "f16":
        k, v = k.astype(np.float16), v.astype(np.float16)
        return (k, v), (k.astype(np.float32), v.astype(np.float32))
    gguf_type = gguf.GGMLQuantizationType[type.upper()]
    k, v = (gguf.quants.quantize(x, gguf_type) for x in (k, v))
    return (k.view(np.uint8), v.view(np.uint8)), (
        gguf.quants.dequantize(k, gguf_type),
        gguf.quants.dequantize(v, gguf_type),
    )


def as_in_a_model(q: Array, k: Array, v: Array) -> tuple[Array, Array, Array]:
    """The same numbers, with the heads of a token side by side."""
    k, v = (x.swapaxes(0, 1).copy().swapaxes(0, 1) for x in (k, v))
    return q.transpose(0, 2, 1, 3).copy().transpose(0, 2, 1, 3), k, v


def spoil(qkv: tuple[Array, Array, Array], where: str, bad: float, query: Any, key: Any) -> None:
    """Put a number into q at `query`, or into k or v at `key`."""
    qkv["qkv".index(where)][query if where == "q" else key] = bad


def assert_same_bits_on_threads(attend: Callable[..., ops.Attention]) -> ops.Attention:
    """Whatever its argument n_threads is."""
    want = attend(n_threads=1)
    for n_threads in (2, 3, 8):
        assert_all_equal(attend(n_threads=n_threads), want)
    return want


@dataclass(frozen=True)
class Lists:
    """Further keys in lists that some queries share: the same for all heads, or rows [n_head_kv, n_lists, n]."""

    rows: Array
    first: Array
    last: Array
    size: int
    offset: int = 0

    def of_queries(self, start: int, end: int) -> Lists:
        """The same for queries [start, end) alone."""
        lists = slice((start + self.offset) // self.size, (end - 1 + self.offset) // self.size + 1)
        first = np.maximum(self.first[lists] - start, 0)
        last = self.last[lists] - start
        return Lists(self.rows[..., lists, :], first, last, self.size, (start + self.offset) % self.size)

    def seen_by(self, kv: int, i: int) -> Array:
        which = (i + self.offset) // self.size
        seen: Array = self.rows[which] if self.rows.ndim == 2 else self.rows[kv, which]
        return seen[(self.first[which] <= i) & (i < self.last[which])]


def list_inputs(
    rng: np.random.Generator, sizes: Sizes, size: int, offset: int, n_further: int
) -> tuple[Inputs, Array, Lists]:
    """q, k, v, ascending rows, their first queries, and lists.

    Half of the further rows, different ones for each head, are among the head's rows. Some lists are full, some have
    padding, some have nothing else. In some, rows stay to the end, in others they go again, or no query sees them. Then
    the same row may come back. Query 0 sees row 0.
    """
    n_kv = 2 * (sizes.n_k + n_further)
    n_head = sizes.n_head_kv * sizes.group
    q = rng.standard_normal((1, n_head, sizes.n_q, sizes.d_k), dtype=np.float32) / np.sqrt(sizes.d_k)
    k = rng.standard_normal((sizes.n_head_kv, n_kv, sizes.d_k), dtype=np.float32)
    v = rng.standard_normal((sizes.n_head_kv, n_kv, sizes.d_v), dtype=np.float32)
    rows = np.sort(np.argsort(rng.random((1, sizes.n_head_kv, n_kv)), axis=-1)[..., : n_kv // 2], axis=-1)
    first = np.sort(rng.integers(-sizes.n_q // 2, sizes.n_q + 1, rows.shape[-1])).clip(0)
    first[0] = 0

    n_lists = -(-(sizes.n_q + offset) // size)
    list_rows = np.argsort(rng.random((n_lists, n_kv)), axis=-1)[:, :n_further]
    starts = np.arange(n_lists)[:, None] * size - offset
    list_first = np.sort(starts + rng.integers(-size // 2, size + 2, list_rows.shape), axis=-1).clip(0, sizes.n_q)
    shift = rng.integers(-2, size // 2 + 2, list_rows.shape)
    list_last = np.maximum.accumulate(list_first + shift, axis=-1)
    stays = rng.random(n_lists) < 0.3
    list_last[stays] = sizes.n_q
    n_used = rng.choice([0, n_further // 2, n_further], (n_lists, 1))
    is_padding = np.arange(n_further) >= n_used
    list_first[is_padding] = sizes.n_q
    list_rows[is_padding] = rng.choice([-1, -(2**31), 2**31 - 1])
    for i, j in np.argwhere(~is_padding):
        gone = list_rows[i, :j][list_last[i, :j] <= list_first[i, j]]
        if len(gone) > 0 and rng.random() < 0.5 and not np.isin(gone[-1:], list_rows[i, len(gone) :]).any():
            list_rows[i, j] = gone[-1]
    is_hidden = np.maximum(list_first, starts) >= np.minimum(list_last, np.minimum(starts + size, sizes.n_q))
    list_rows[is_hidden] = rng.choice([-1, -(2**31), 2**31 - 1])
    return (q.astype(np.float32), k, v, rows), first, Lists(list_rows, list_first, list_last, size, offset)


def query_inputs(rng: np.random.Generator, sizes: Sizes, n: int) -> tuple[Inputs, Array, Array]:
    """q, k, v, rows; their first queries; and n rows of each query and KV head, with padding.

    Some queries have none, some fewer than n. Query 0 sees the first of `rows`.
    """
    n_kv = sizes.n_k + n + 40
    n_head = sizes.n_head_kv * sizes.group
    q = rng.standard_normal((1, n_head, sizes.n_q, sizes.d_k), dtype=np.float32) / np.float32(np.sqrt(sizes.d_k))
    k = rng.standard_normal((sizes.n_head_kv, n_kv, sizes.d_k), dtype=np.float32)
    v = rng.standard_normal((sizes.n_head_kv, n_kv, sizes.d_v), dtype=np.float32)
    order = np.argsort(rng.random((sizes.n_head_kv, n_kv)), axis=-1)
    rows = np.sort(order[None, :, : sizes.n_k], axis=-1)
    others = np.repeat(order[:, None, sizes.n_k :], sizes.n_q, axis=1)
    query_rows = rng.permuted(others, axis=-1)[..., :n]
    n_used = rng.choice([0, rng.integers(0, n + 1), n], (sizes.n_head_kv, sizes.n_q, 1))
    query_rows[np.arange(n) >= n_used] = -1
    first = np.sort(rng.integers(-sizes.n_q // 2, sizes.n_q + 1, sizes.n_k)).clip(0)
    first[0] = 0
    return (q, k, v, rows), first, query_rows


@dataclass(frozen=True)
class Problem:
    """One block of queries, the keys that they see, and what changes their logits."""

    inputs: Inputs
    first: Array
    lists: Lists | None = None
    query_rows: Array | None = None
    limits: Array | None = None
    sinks: Array | None = None
    softcap: float = 0.0

    def attend(self, sums: int = COLUMN_SUMS, n_threads: int = 2, type: str | None = None) -> ops.Attention:
        """By the public function where it has these sums, else by the core's."""
        logits: dict[str, Any] = {"sinks": self.sinks, "softcap": self.softcap, "first": self.first}
        logits["limits"] = None if sums == NO_SUMS else self.limits
        further: dict[str, Any] = {} if self.query_rows is None else {"further_rows": self.query_rows}
        x = self.lists
        if sums == COLUMN_SUMS:
            if x is not None:
                further = {"further_rows": x.rows, "further_first": x.first, "further_last": x.last}
                further |= {"list_size": x.size, "list_offset": x.offset}
            return ops.attention(*self.inputs, type=type, n_threads=n_threads, **logits, **further)
        if x is not None:
            further = {"further_rows": x.rows, "further_queries": np.stack([x.first, x.last])}
            further |= {"list_size": x.size, "offset": x.offset}
        known = {"float32": "f32", "float16": "f16"}.get(self.inputs[1].dtype.name, "")
        return compute(self.inputs, sums, type or known, n_threads, **logits, **further)

    def of_queries(self, start: int, end: int) -> Problem:
        """The same for queries [start, end) alone."""
        q, k, v, rows = self.inputs
        return replace(
            self,
            inputs=(q[:, :, start:end], k, v, rows),
            first=(self.first - start).clip(0, end - start),
            lists=None if self.lists is None else self.lists.of_queries(start, end),
            query_rows=None if self.query_rows is None else self.query_rows[:, start:end],
            limits=None if self.limits is None else self.limits[:, start:end],
        )

    def further(self, kv: int, i: int) -> Array:
        """Rows that a query sees besides the head's own. What a head has anyway does not count twice."""
        if self.lists is not None:
            seen = self.lists.seen_by(kv, i)
            return seen[~np.isin(seen, self.inputs[3][0, kv])]
        seen = np.zeros(0, np.int64) if self.query_rows is None else self.query_rows[kv, i]
        return seen[seen >= 0]

    def solution(self, sums: int = COLUMN_SUMS) -> ops.Attention:
        """In float64, one softmax after the other."""
        q, k, v, rows = (x.astype(np.float64) if x.dtype.kind == "f" else x for x in self.inputs)
        _, n_head, n_q, _ = q.shape
        if sums == QUERY_SUMS:
            parts = zip(*(self.of_queries(i, i + 1).solution() for i in range(n_q)), strict=True)
            return ops.Attention(*(np.concatenate(x, axis=axis) for x, axis in zip(parts, (1, 0, 2, 2), strict=True)))
        m, l = np.full((1, n_head, n_q), -np.inf), np.zeros((1, n_head, n_q))  # noqa: E741
        o, columns = np.zeros((1, n_q, n_head, v.shape[-1])), np.zeros(rows.shape)
        group = n_head // len(k)
        for kv, i in np.ndindex(len(k), n_q):
            counted = self.first <= i
            seen = np.concatenate([rows[0, kv, counted], self.further(kv, i)])
            keys, values = k[kv, seen], v[kv, seen]
            for head in range(kv * group, (kv + 1) * group):
                with np.errstate(all="ignore"):
                    logits = capped(keys @ q[0, head, i], self.softcap)
                    sink = -np.inf if self.sinks is None else float(self.sinks[head])
                    m[0, head, i] = logits.max(initial=sink)
                    if m[0, head, i] == -np.inf:
                        continue
                    e = np.exp(logits - m[0, head, i])
                    l[0, head, i] = e.sum() + np.exp(sink - m[0, head, i])
                    weights = e / l[0, head, i]
                    o[0, i, head] = weights @ values
                if self.limits is not None:
                    weights = np.where(seen <= self.limits[0, i], weights, 0)
                columns[0, kv, counted] += weights[: np.count_nonzero(counted)]
        return ops.Attention(o, np.zeros(0) if sums == NO_SUMS else columns, m, l)

    def check(self, isa: str, *kinds: int) -> None:
        """With sums of these kinds, by default of all."""
        for sums in kinds or ALL_SUMS:
            with case(sums=sums):
                assert_close(self.attend(sums), self.solution(sums), *self.inputs[:3], 1.0, isa)


def random_problem(
    rng: np.random.Generator, sizes: Sizes, further: str = "none", n: int = 1, size: int = 4, offset: int | None = None
) -> Problem:
    """With n further rows in each list of `size` queries, or of each query."""
    if further in ("none", "of queries"):
        inputs, first, query_rows = query_inputs(rng, sizes, n)
        return Problem(inputs, first, query_rows=query_rows if further == "of queries" else None)
    inputs, first, lists = list_inputs(rng, sizes, size, size // 2 if offset is None else offset, n)
    if further == "of heads":
        rows = np.broadcast_to(lists.rows, (sizes.n_head_kv, *lists.rows.shape)).copy()
        seen = rows[1:] >= 0
        rows[1:][seen] = (rows[1:][seen] + 1) % inputs[1].shape[1]
        lists = replace(lists, rows=rows)
    return Problem(inputs, first, lists)


def random_limits(rng: np.random.Generator, problem: Problem) -> Array:
    """Some queries count for no row, some for all."""
    return rng.integers(-20, problem.inputs[1].shape[1] + 20, (1, problem.inputs[0].shape[2]))


def random_sinks(rng: np.random.Generator, problem: Problem) -> Array:
    return rng.normal(0, 3, problem.inputs[0].shape[1]).astype(np.float32)
