"""Arguments of the attention operator in one form for every kernel, and its results in float64."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any, NamedTuple

import gguf
import numpy as np
from numpy.typing import NDArray

from compare import assert_all_equal
from cuda_in_software import running
from h2o_llama import _core
from kernels import CUDA, backend_of
from tolerances import attention_tolerance

Array = NDArray[Any]

NO_SUMS, COLUMN_SUMS, QUERY_SUMS = range(3)


class Attention(NamedTuple):
    """The operator's results. (m, l, o) is an online-softmax state.

    For a query whose logits are all -inf: m = -inf, l = 0, o = 0, and it adds nothing to the sums.
    """

    o: Array
    """[n_q, n_head, d_v] weights times values"""
    sums: Array
    """[1 or n_q, n_head_kv, n_k] weights that count, summed over all queries or none, and each KV head's query heads"""
    m: Array
    """[n_head, n_q] largest logit"""
    l: Array  # noqa: E741
    """[n_head, n_q] Σ exp(logit - m)"""


@dataclass(frozen=True)
class Case:
    """Sizes and kinds of the arguments. Without a scale, logits have a standard deviation of 1."""

    n_q: int = 40
    memory: int = 30  # own keys that are not the queries' own
    group: int = 2
    d_k: int = 64
    d_v: int = 64
    n_head_kv: int = 2
    type: str = "f32"
    sums: int = COLUMN_SUMS
    sees: str = "causal"  # own keys; or "all", or "sorted": in any order
    rows: str = "shuffled"  # own keys; or "ascending", "repeated", or "in order": without a list of them
    has_limits: bool = False
    has_sinks: bool = False
    scale: float = 1.0
    softcap: float = 0.0
    n_further: int = 0  # rows of a list
    tile: int = 16
    offset: int = 3
    seed: int = 0

    @property
    def n_k(self) -> int:
        return self.n_q + self.memory


def stored_and_wide(x: Array, type: str) -> tuple[Array, Array]:
    """K or V of a type, as the operator takes it; and the numbers that it stands for."""
    if type in ("f32", "f16"):
        stored = x.astype(np.float16 if type == "f16" else np.float32)
        return stored, stored.astype(np.float32)
    gguf_type = gguf.GGMLQuantizationType[type.upper()]
    with np.errstate(invalid="ignore", over="ignore"):
        stored = gguf.quants.quantize(x, gguf_type)
        return stored.view(np.uint8), gguf.quants.dequantize(stored, gguf_type)


class Problem:
    """A case's arguments: tests change them before they attend. `first` is the first query that sees an own key."""

    def __init__(self, case: Case) -> None:
        rng = self.rng = np.random.default_rng(case.seed)
        self.case, self.type, self.scale, self.softcap = case, case.type, case.scale, case.softcap
        n_k, n_q, n_head = case.n_k, case.n_q, case.n_head_kv * case.group
        n_kv = n_k + case.n_further + 7
        self.q = rng.standard_normal((n_head, n_q, case.d_k), dtype=np.float32)
        self.q /= np.float32(np.sqrt(case.d_k))
        self.k = rng.standard_normal((case.n_head_kv, n_kv, case.d_k), dtype=np.float32)
        self.v = rng.standard_normal((case.n_head_kv, n_kv, case.d_v), dtype=np.float32)

        order = np.argsort(rng.random((case.n_head_kv, n_kv)), axis=-1)
        if case.rows == "in order":
            order[:] = np.concatenate([np.arange(n_k), n_k + rng.permutation(n_kv - n_k)])
        self.rows = order[..., :n_k]
        if case.rows != "shuffled" or case.has_limits:
            self.rows = np.sort(self.rows, axis=-1)
        if case.rows == "repeated":
            self.rows = self.rows[..., np.arange(n_k) // 9]
        self.first = np.zeros(n_k, dtype=np.int64)
        if case.sees == "causal":
            self.first = np.maximum(np.arange(n_k) - case.memory, 0)
        elif case.sees == "sorted":
            self.first = np.sort(rng.integers(rng.choice([-n_q // 2, 0]), n_q + 1, n_k)).clip(0)

        self.limits: Array | None = None
        if case.has_limits:  # negative, inside and beyond, in any order
            limits = rng.integers(-n_kv // 2, 3 * n_kv // 2, n_q)
            special = rng.choice([0, 1, 2, 3], limits.shape, p=[0.7, 0.1, 0.1, 0.1])
            self.limits = np.choose(special, [limits, -(2**31), -1, 2**31 - 1])
        self.sinks: Array | None = rng.normal(0, 3, n_head).astype(np.float32) if case.has_sinks else None
        self._make_lists(order)

    def _make_lists(self, order: Array) -> None:
        """Some are full, some have padding, some have nothing else. No row is among a head's own."""
        case, rng = self.case, self.rng
        self.list_rows: Array | None = None
        self.offset = min(case.offset, case.tile - 1)
        if case.n_further == 0:
            return
        n = case.n_further
        n_tiles = -(-(case.n_q + self.offset) // case.tile)
        candidates = order[:, None, case.n_k :]
        rows = rng.permuted(np.repeat(candidates, n_tiles, axis=1), axis=-1)[..., :n]
        rows[:, np.arange(n) >= rng.choice([0, n // 2, n], (n_tiles, 1))] = -1
        self.list_rows = rows

    def changed(self, **changes: Any) -> Problem:
        """A copy that has these instead."""
        other = copy.copy(self)
        for name, value in changes.items():
            assert hasattr(other, name), name
            setattr(other, name, value)
        return other

    def copied(self) -> Problem:
        """A copy whose q, k and v can be written to."""
        return self.changed(q=self.q.copy(), k=self.k.copy(), v=self.v.copy())

    def of_queries(self, start: int, end: int) -> Problem:
        """The same for these queries alone, without limits."""
        other = self.changed(q=self.q[:, start:end], first=(self.first - start).clip(0, end - start), limits=None)
        if self.list_rows is not None:
            tile = self.case.tile
            tiles = slice((start + self.offset) // tile, (end - 1 + self.offset) // tile + 1)
            other.list_rows, other.offset = self.list_rows[:, tiles], (start + self.offset) % tile
        return other

    def stored(self) -> Problem:
        """K and V as the operator takes them, if they are numbers."""
        if self.k.dtype != np.float32:
            return self
        return self.changed(**{name: stored_and_wide(getattr(self, name), self.type)[0] for name in "kv"})

    def wide(self) -> Problem:
        """K and V as the numbers that they stand for."""
        return self.changed(type="f32", **{name: stored_and_wide(getattr(self, name), self.type)[1] for name in "kv"})

    def params(self, sums: int | None = None) -> dict[str, Any]:
        sums = self.case.sums if sums is None else sums
        lists: dict[str, Any] = {}
        if self.list_rows is not None:
            lists = {"tile": self.case.tile, "offset": self.offset, "extra_rows": self.list_rows}
        return {
            "rows": None if self.case.rows == "in order" else self.rows,
            "n_k": self.rows.shape[-1],
            "first": self.first,
            "limits": self.limits if sums != NO_SUMS else None,
            "sinks": self.sinks,
            "scale": self.scale,
            "softcap": self.softcap,
            "sums": sums,
            **lists,
        }

    def attend(self, kernel: str, sums: int | None = None, n_threads: int = 2) -> Attention:
        """By a kernel that is `on`."""
        stored = self.stored()
        o, s, m, l = _core.ops_attention(  # noqa: E741
            *(stored.q, stored.k, stored.v, self.type, backend_of(kernel), n_threads), **self.params(sums)
        )
        return Attention(o, np.zeros(0) if s is None else s, m, l)

    def seen_further(self) -> Array:
        """[n_head_kv, n_q, n_kv]: whether a query sees a row of its list."""
        n_head_kv, n_kv = self.k.shape[:2]
        n_q = self.q.shape[1]
        seen = np.zeros((n_head_kv, n_q, n_kv), dtype=bool)
        if self.list_rows is None:
            return seen
        tiles = (np.arange(n_q) + self.offset) // self.case.tile
        rows = self.list_rows[:, tiles]
        h, i, j = np.nonzero(rows >= 0)
        seen[h, i, rows[h, i, j]] = True
        return seen

    def keys(self) -> tuple[Array, Array]:
        """Rows of each KV head's keys [n_head_kv, n], own ones first; which of them each query sees."""
        own = self.first <= np.arange(self.q.shape[1])[:, None]
        visible = np.broadcast_to(own, (len(self.rows), *own.shape))
        if self.list_rows is None:
            return self.rows, visible
        seen = self.seen_further()
        listed = np.flatnonzero(seen.any(axis=(0, 1)))
        of_heads = np.broadcast_to(listed, (len(seen), len(listed)))
        return np.concatenate([self.rows, of_heads], -1), np.concatenate([visible, seen[:, :, listed]], -1)

    def rounded_q(self, kernel: str) -> Array:
        """As products take it: CUDA's have q in F16, scaled so that a row's largest number is in [2^7, 2^8)."""
        if kernel != CUDA:
            return self.q.astype(np.float64)
        peak = np.abs(self.q).max(axis=-1, keepdims=True, where=np.isfinite(self.q), initial=0)
        scale = 2.0 ** (np.frexp(peak)[1] - 8.0)
        return (self.q / scale).astype(np.float16) * scale

    def reference(self, kernel: str, sums: int | None = None) -> Attention:
        """All in float64, q as the kernel rounds it. Hidden keys that would make a difference are left out."""
        sums = self.case.sums if sums is None else sums
        wide = self.wide()
        q, k, v = (x.astype(np.float64) for x in (self.rounded_q(kernel), wide.k, wide.v))
        if kernel == CUDA and self.type == "f32":
            k, v = (x.astype(np.float16).astype(np.float64) for x in (k, v))
        rows, visible = self.keys()
        n_head_kv, n = rows.shape
        n_head, n_q, d_k = q.shape
        keys, values = (x[np.arange(n_head_kv)[:, None], rows] for x in (k, v))
        by_group = (n_head_kv, n_head // n_head_kv, n_q)
        visible = visible[:, None]
        with np.errstate(all="ignore"):
            logits = np.float64(np.float32(self.scale)) * (q.reshape(n_head_kv, -1, d_k) @ keys.swapaxes(-1, -2))
            if self.softcap > 0:
                logits = self.softcap * np.tanh(logits / self.softcap)
            logits = logits.reshape(*by_group, n)
            sinks = np.full(n_head, -np.inf) if self.sinks is None else self.sinks.astype(np.float64)
            sink = sinks.reshape(n_head_kv, -1, 1)
            m = np.maximum(logits.max(axis=-1, where=visible, initial=-np.inf), sink)
            empty = m == -np.inf
            e = np.where(visible & ~empty[..., None], np.exp(logits - m[..., None]), 0)
            l = e.sum(axis=-1) + np.where(empty, 0, np.exp(sink - m))  # noqa: E741
            weights = np.where(visible, e / np.where(empty, 1, l)[..., None], 0)
            finite = np.isfinite(values)
            o = (weights.reshape(n_head_kv, -1, n) @ np.where(finite, values, 0)).reshape(*by_group, -1)
            for h, j in np.argwhere(~finite.all(axis=-1) & visible.any(axis=(1, 2))):
                odd = weights[h, :, :, j, None] * np.where(finite[h, j], 0, values[h, j])
                o[h] += np.where(visible[h, :, :, j, None], odd, 0)
        o = np.where(empty[..., None], 0, o).reshape(n_head, n_q, -1).swapaxes(0, 1)
        n_k = self.rows.shape[-1]
        each = weights[..., :n_k].sum(axis=1)
        if self.limits is not None:
            each = np.where(self.rows[:, None] <= self.limits[:, None], each, 0)
        found = {NO_SUMS: np.zeros(0), COLUMN_SUMS: each.sum(axis=1)[None], QUERY_SUMS: each.swapaxes(0, 1)}[sums]
        return Attention(o, found, m.reshape(n_head, n_q), l.reshape(n_head, n_q))

    def assert_close(self, got: Attention, want: Attention, kernel: str, size: float | None = None) -> None:
        """An error δ of the logits is one of δ in m and a factor e^δ in l and the weights; o averages v by the weights.

        A logit is a sum of d products; their errors are independent, so it has √d times the error of one. `size`: of
        exact products.
        """
        q, k, v = (np.where(np.isfinite(x), x, 0).astype(np.float64) for x in (self.q, self.wide().k, self.wide().v))
        d_k = q.shape[-1]
        if size is None:
            size = abs(self.scale) * np.linalg.norm(q, axis=-1).max() * np.linalg.norm(k, axis=-1).max() / np.sqrt(d_k)
        logit, output = attention_tolerance(kernel, self.type, d_k)
        delta = logit * (1 + float(size))
        np.testing.assert_allclose(got.m, want.m, rtol=0, atol=delta, err_msg="m")
        np.testing.assert_allclose(got.l, want.l, rtol=delta, err_msg="l")
        np.testing.assert_allclose(got.sums, want.sums, rtol=delta, atol=0.01 * delta, err_msg="sums")
        assert not got.sums[want.sums == 0].any(), "sums of hidden or uncounted keys"
        np.testing.assert_allclose(got.o, want.o, rtol=0, atol=(delta + output) * np.abs(v).max(), err_msg="o")

    def check(self, kernel: str) -> Attention:
        """Close to the reference. CUDA's must not depend on the order of a block's threads: else they race."""
        got = self.attend(kernel)
        self.assert_close(got, self.reference(kernel), kernel)
        if kernel == CUDA:
            with running("descending"):
                assert_all_equal(self.attend(kernel), got)
        return got
