"""The attention operator, against a float64 NumPy reference, with every CPU kernel that this machine has."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any

import gguf
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from compare import assert_all_close, assert_all_equal, assert_refused, case
from h2o_llama import _core, ops
from kernels import ISAS, using

Array = NDArray[Any]

# Error of a sum whose size is 1: float32 rounds every partial sum to 2^-24, "amx" rounds every number to 2^-17. Two to
# three times the largest that was measured in any test here.
ROUNDING = {isa: 2.0**-15 if isa == "amx" else 2.0**-18 for isa in ISAS}


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


def random_inputs(rng: np.random.Generator, sizes: Sizes) -> tuple[Array, Array, Array, Array]:
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


def check(inputs: tuple[Array, Array, Array, Array], isa: str, scale: float = 1.0, causal: bool = True) -> None:
    q, k, v, rows = inputs
    got = ops.attention(q, k, v, rows, scale=scale, causal=causal, n_threads=2)
    assert_close(got, reference(q, k, v, rows, scale, causal), q, k, v, scale, isa)
    group = q.shape[1] // len(k)
    # Every query gives away a weight of 1.
    np.testing.assert_allclose(got.sums.sum(axis=-1, dtype=np.float64), q.shape[2] * group, rtol=ROUNDING[isa])


def compute(
    inputs: tuple[Array, Array, Array, Array], type: str = "f32", sums: int = 0, n_threads: int = 2, **params: Any
) -> ops.Attention:
    """The operator itself, with sums of any kind."""
    q, k, v, rows = inputs
    arguments = _core.ops_AttentionParams(rows=rows, sums=sums, **params)
    o, s, m, l = _core.ops_attention(q, k, v, type, arguments, "cpu", n_threads)  # noqa: E741
    assert (s is None) == (sums == 0)
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


def type_argument(type: str) -> dict[str, Any]:
    """NumPy has F16; other types must be named."""
    return {} if type == "f16" else {"type": type}


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


def assert_same_bits_for_a_head_alone(inputs: tuple[Array, Array, Array, Array], **arguments: Any) -> None:
    """On any number of threads."""
    q, k, v, rows = inputs
    group = q.shape[1] // len(k)
    alone = [
        ops.attention(q[:, group * h : group * (h + 1)], k[[h]], v[[h]], rows[:, [h]], **arguments)
        for h in range(len(k))
    ]
    want = assert_same_bits_on_threads(partial(ops.attention, *inputs, **arguments))
    for got, parts, axis in zip(want, zip(*alone, strict=True), (2, 1, 1, 1), strict=True):
        np.testing.assert_array_equal(got, np.concatenate(parts, axis=axis))


class TestEqualsNumpy:
    def test_head_sizes(self, rng: np.random.Generator, isa: str) -> None:
        for causal, d in product([True, False], [1, 2, 15, 31, 32, 33, 64, 80, 96, 100, 127, 128, 192, 255, 256]):
            with case(causal=causal, d=d):
                check(random_inputs(rng, Sizes(d_k=d, d_v=d)), isa, causal=causal)
                check(random_inputs(rng, Sizes(d_k=d, d_v=257 - d)), isa, causal=causal)

    def test_groups(self, rng: np.random.Generator, isa: str) -> None:
        for group in range(1, 17):
            with case(group=group):
                check(random_inputs(rng, Sizes(group=group, n_q=19)), isa)

    def test_large(self, rng: np.random.Generator, isa: str) -> None:
        for n_q, memory in [(1, 0), (1, 4096), (2048, 0), (1024, 512), (300, 2100)]:
            with case(n_q=n_q, memory=memory):
                check(random_inputs(rng, Sizes(1, 2, n_q, memory, 128, 128)), isa, scale=3.0)
        check(random_inputs(rng, Sizes(8, 2, 256, 128, 128, 128, 4)), isa)

    def test_so_many_keys_that_tiles_have_fewer_rows(self, rng: np.random.Generator, isa: str) -> None:
        check(random_inputs(rng, Sizes(1, 2, 20, 200_000, 16, 16)), isa)

    @pytest.mark.parametrize("isa_name", ISAS)
    @given(data=st.data())
    @settings(max_examples=60, deadline=None, derandomize=True)
    def test_random_sizes(self, isa_name: str, data: st.DataObject) -> None:
        draw: Callable[[int, int], int] = lambda low, high: data.draw(st.integers(low, high))  # noqa: E731
        sizes = Sizes(draw(1, 3), draw(1, 5), draw(1, 70), draw(0, 140), draw(1, 70), draw(1, 70), draw(1, 2))
        causal, seed = data.draw(st.booleans()), draw(0, 1000)
        with using(isa_name):
            check(random_inputs(np.random.default_rng(seed), sizes), isa_name, causal=causal)

    def test_not_causal_with_more_queries_than_keys(self, rng: np.random.Generator, isa: str) -> None:
        q, k, v, rows = random_inputs(rng, Sizes())
        check((q, k, v, rows[..., :9]), isa, causal=False)

    def test_rows_may_repeat(self, rng: np.random.Generator, isa: str) -> None:
        q, k, v, rows = random_inputs(rng, Sizes())
        check((q, k, v, rows // 9), isa)


def test_without_blocks(rng: np.random.Generator) -> None:
    (q, k, v, rows), limits = limited_inputs(rng, Sizes())
    for one, all_ in (({}, {}), ({"limits": limits[0]}, {"limits": limits})):
        got, want = ops.attention(q[0], k, v, rows[0], **one), ops.attention(q, k, v, rows, **all_)
        assert_all_equal(got, [x[0] for x in want])


class TestFirstQuery:
    """Which query sees a row first, in any ascending order."""

    def test_equals_numpy(self, isa: str) -> None:
        for seed in range(6):
            with case(seed=seed):
                rng = np.random.default_rng(seed)
                n_q = int(rng.integers(1, 90))
                q, k, v, rows = random_inputs(rng, Sizes(2, 3, n_q, 40, 33, 50, 2))
                first = np.sort(rng.integers(0, n_q + 1, rows.shape[-1]))
                first[: seed % 3] = 0  # in half of the cases no query sees nothing
                got = ops.attention(q, k, v, rows, first=first, n_threads=2)
                assert_close(got, reference(q, k, v, rows, first=first), q, k, v, 1.0, isa)
                assert not got.sums[..., first == n_q].any()

    def test_causal_is_a_list_of_them(self, rng: np.random.Generator, isa: str) -> None:
        q, k, v, rows = random_inputs(rng, Sizes(n_q=45, memory=20))
        first = np.maximum(np.arange(65) - 20, 0)
        assert_all_equal(ops.attention(q, k, v, rows, first=first), ops.attention(q, k, v, rows))


def test_same_bits_without_column_sums(rng: np.random.Generator, isa: str) -> None:
    inputs, first, lists = list_inputs(rng, Sizes(n_q=70), 16, 3, 40)
    blocks = random_inputs(rng, Sizes(n_q=70, memory=30, n_block=2))
    params: list[tuple[Any, dict[str, Any]]] = [
        (blocks, {"first": np.maximum(np.arange(100) - 30, 0)}),
        (inputs, {"first": first, **lists.arguments}),
    ]
    for arrays, more in params:
        arrays[0][0, 1, 3, 0] = np.inf  # the scalar path too
        assert_equal_but_sums(compute(arrays, **more), compute(arrays, sums=1, **more))


def limited_inputs(rng: np.random.Generator, sizes: Sizes) -> tuple[tuple[Array, Array, Array, Array], Array]:
    """random_inputs with ascending rows, and limits that are negative, inside and beyond, in any order."""
    q, k, v, rows = random_inputs(rng, sizes)
    limits = rng.integers(-sizes.n_k // 2, 3 * sizes.n_k // 2, (sizes.n_block, sizes.n_q))
    special = rng.choice([0, 1, 2, 3], limits.shape, p=[0.7, 0.1, 0.1, 0.1])
    limits = np.choose(special, [limits, -(2**31), -1, 2**31 - 1])
    return (q, k, v, np.sort(rows, axis=-1)), limits


def assert_equal_but_sums(got: ops.Attention, want: ops.Attention) -> None:
    assert_all_equal((got.o, got.m, got.l), (want.o, want.m, want.l))


class TestLimits:
    """Which queries count in the sums: o, m and l keep their bits."""

    def check(self, inputs: tuple[Array, Array, Array, Array], limits: Array, isa: str, causal: bool = True) -> None:
        got = ops.attention(*inputs, limits=limits, causal=causal, n_threads=2)
        assert_equal_but_sums(got, ops.attention(*inputs, causal=causal))
        want = reference(*inputs, causal=causal, limits=limits)
        delta = 3 * ROUNDING[isa]  # of the weights: that of the logits, whose size is up to about 2
        np.testing.assert_allclose(got.sums, want.sums, rtol=delta, atol=0.01 * delta)
        np.testing.assert_array_equal(got.sums == 0, want.sums == 0)

    def test_groups_and_sizes(self, rng: np.random.Generator, isa: str) -> None:
        groups = [Sizes(3, group, 45, 52, n_block=2) for group in (1, 2, 3, 7)]
        pairs = [(1, 0), (1, 300), (2, 31), (33, 0), (200, 333)]
        sizes = [Sizes(n_q=n_q, memory=memory, d_k=40, d_v=72) for n_q, memory in pairs]
        for size, causal in [*product(groups, [True, False]), *product(sizes, [True])]:
            with case(size=size, causal=causal):
                self.check(*limited_inputs(rng, size), isa, causal)

    @pytest.mark.parametrize("isa_name", ISAS)
    @given(data=st.data())
    @settings(max_examples=30, deadline=None, derandomize=True)
    def test_random_sizes(self, isa_name: str, data: st.DataObject) -> None:
        draw: Callable[[int, int], int] = lambda low, high: data.draw(st.integers(low, high))  # noqa: E731
        sizes = Sizes(draw(1, 3), draw(1, 5), draw(1, 70), draw(0, 140), draw(1, 70), draw(1, 70), draw(1, 2))
        causal, seed = data.draw(st.booleans()), draw(0, 1000)
        inputs, limits = limited_inputs(np.random.default_rng(seed), sizes)
        with using(isa_name):
            self.check(inputs, limits, isa_name, causal)

    def test_that_exclude_nothing(self, rng: np.random.Generator, isa: str) -> None:
        """The same bits as without limits."""
        inputs, limits = limited_inputs(rng, Sizes(3, 2, 130, 75))
        want = ops.attention(*inputs)
        for limit in (inputs[1].shape[1] - 1, 2**31 - 1):
            assert_all_equal(ops.attention(*inputs, limits=np.full_like(limits, limit)), want)

    def test_equal_rows_count_together(self, rng: np.random.Generator, isa: str) -> None:
        (q, k, v, rows), limits = limited_inputs(rng, Sizes())
        self.check((q, k, v, rows // 9), limits // 9, isa)

    def test_not_finite(self, rng: np.random.Generator, isa: str) -> None:
        """NaN does not reach the sums through a query that does not count."""
        for bad, where in product([np.nan, np.inf], ["q", "k", "v"]):
            with case(bad=bad, where=where):
                (q, k, v, rows), limits = limited_inputs(rng, Sizes(n_q=60, memory=3))
                spoil((q, k, v), where, bad, (0, 2, 30, 7), (1, rows[0, 1, 40], 7))
                got = ops.attention(q, k, v, rows, limits=limits)
                assert_equal_but_sums(got, ops.attention(q, k, v, rows))
                np.testing.assert_allclose(got.sums, reference(q, k, v, rows, limits=limits).sums, rtol=1e-4, atol=1e-4)


@dataclass(frozen=True)
class Lists:
    """Further keys of tiles of queries, as `attention` takes them."""

    rows: Array
    first: Array | None
    tile: int
    offset: int = 0

    @property
    def arguments(self) -> dict[str, Any]:
        """Of the operator itself too."""
        return {
            "further_rows": self.rows if len(self.rows) > 1 else self.rows[0],
            "further_first": self.first,
            "tile": self.tile,
            "offset": self.offset,
        }

    def of_queries(self, start: int, end: int) -> Lists:
        """The same for queries [start, end) alone."""
        tiles = slice((start + self.offset) // self.tile, (end - 1 + self.offset) // self.tile + 1)
        first = None if self.first is None else (self.first[tiles] - start).clip(0)
        return Lists(self.rows[:, tiles], first, self.tile, (start + self.offset) % self.tile)

    def seen_by(self, kv: int, i: int) -> Array:
        tile = (i + self.offset) // self.tile
        rows = self.rows[kv % len(self.rows), tile]
        return rows[rows >= 0] if self.first is None else rows[self.first[tile] <= i]


def list_inputs(
    rng: np.random.Generator,
    sizes: Sizes,
    tile: int,
    offset: int,
    n_further: int,
    of_heads: bool = False,
    has_first: bool = True,
) -> tuple[tuple[Array, Array, Array, Array], Array, Lists]:
    """q, k, v, ascending rows, their first queries, and lists.

    With first queries half of the further rows, different ones for each head, are among the head's rows; else none is.
    Some lists are full, some have padding, some have nothing else. What no query sees may be any number. Query 0
    sees row 0.
    """
    n_kv = 2 * (sizes.n_k + n_further)
    n_head = sizes.n_head_kv * sizes.group
    q = rng.standard_normal((1, n_head, sizes.n_q, sizes.d_k), dtype=np.float32) / np.sqrt(sizes.d_k)
    k = rng.standard_normal((sizes.n_head_kv, n_kv, sizes.d_k), dtype=np.float32)
    v = rng.standard_normal((sizes.n_head_kv, n_kv, sizes.d_v), dtype=np.float32)
    order = np.argsort(rng.random((sizes.n_head_kv, n_kv)), axis=-1)
    if not of_heads and not has_first:
        order[:] = order[0]
    rows = np.sort(order[None, :, : n_kv // 2], axis=-1)
    first = np.sort(rng.integers(-sizes.n_q // 2, sizes.n_q + 1, rows.shape[-1])).clip(0)
    first[0] = 0

    n_tiles = -(-(sizes.n_q + offset) // tile)
    candidates = order[: sizes.n_head_kv if of_heads else 1, None, 0 if has_first else n_kv // 2 :]
    list_rows = rng.permuted(np.repeat(candidates, n_tiles, axis=1), axis=-1)[..., :n_further]
    is_padding = np.arange(n_further) >= rng.choice([0, n_further // 2, n_further], (n_tiles, 1))
    list_rows[:, is_padding] = -1
    list_first = None
    if has_first:
        starts = np.arange(n_tiles)[:, None] * tile - offset
        list_first = np.sort(starts + rng.integers(-tile // 2, tile + 2, is_padding.shape), axis=-1).clip(0, sizes.n_q)
        list_first[is_padding] = sizes.n_q
        list_rows[:, list_first >= np.minimum(starts + tile, sizes.n_q)] = rng.choice([-1, -(2**31), 2**31 - 1])
    return (q.astype(np.float32), k, v, rows), first, Lists(list_rows, list_first, tile, offset)


def lists_reference(
    inputs: tuple[Array, Array, Array, Array], first: Array, lists: Lists, limits: Array | None = None, **logits: Any
) -> ops.Attention:
    """What a head has anyway does not count twice."""
    rows = inputs[3]

    def further(kv: int, i: int) -> Array:
        seen = lists.seen_by(kv, i)
        return seen[~np.isin(seen, rows[0, kv])]

    return further_reference(inputs, first, further, limits, **logits)


def further_reference(
    inputs: tuple[Array, Array, Array, Array],
    first: Array,
    further: Callable[[int, int], Array],
    limits: Array | None = None,
    sinks: Array | None = None,
    softcap: float = 0.0,
) -> ops.Attention:
    """In float64, one softmax after the other. further(KV head, query): what the query sees besides the head's rows."""
    q, k, v, rows = (x.astype(np.float64) if x.dtype.kind == "f" else x for x in inputs)
    _, n_head, n_q, _ = q.shape
    m, l = np.full((1, n_head, n_q), -np.inf), np.zeros((1, n_head, n_q))  # noqa: E741
    o, sums = np.zeros((1, n_q, n_head, v.shape[-1])), np.zeros(rows.shape)
    group = n_head // len(k)
    for kv, i in np.ndindex(len(k), n_q):
        counted = first <= i
        seen = np.concatenate([rows[0, kv, counted], further(kv, i)])
        keys, values = k[kv, seen], v[kv, seen]
        for head in range(kv * group, (kv + 1) * group):
            with np.errstate(invalid="ignore"):
                logits = capped(keys @ q[0, head, i], softcap)
                sink = -np.inf if sinks is None else float(sinks[head])
                m[0, head, i] = logits.max(initial=sink)
                if m[0, head, i] == -np.inf:
                    continue
                e = np.exp(logits - m[0, head, i])
                l[0, head, i] = e.sum() + np.exp(sink - m[0, head, i])
            weights = e / l[0, head, i]
            o[0, i, head] = weights @ values
            if limits is not None:
                weights = np.where(seen <= limits[0, i], weights, 0)
            sums[0, kv, counted] += weights[: np.count_nonzero(counted)]
    return ops.Attention(o, sums, m, l)


class TestFurtherKeys:
    """Lists of rows that tiles of queries share, in the same softmax."""

    def check(
        self,
        inputs: tuple[Array, Array, Array, Array],
        first: Array,
        lists: Lists,
        isa: str,
        limits: Array | None = None,
    ) -> None:
        """With and without column sums."""
        q, k, v, _ = inputs
        want = lists_reference(inputs, first, lists, limits)
        got = ops.attention(*inputs, first=first, limits=limits, n_threads=2, **lists.arguments)
        assert_close(got, want, q, k, v, 1.0, isa)
        got = compute(inputs, first=first, **lists.arguments)
        assert_close(got, want._replace(sums=np.zeros(0)), q, k, v, 1.0, isa)

    @pytest.mark.parametrize("isa_name", ISAS)
    @given(data=st.data())
    @settings(max_examples=60, deadline=None, derandomize=True)
    def test_random_sizes(self, isa_name: str, data: st.DataObject) -> None:
        """Few queries and many, head sizes that are read in place, of which there are multiples of 16, and others."""
        draw: Callable[[int, int], int] = lambda low, high: data.draw(st.integers(low, high))  # noqa: E731
        n_q, multiple = draw(1, data.draw(st.sampled_from([5, 70]))), data.draw(st.sampled_from([1, 16]))
        d_k, d_v = (multiple * draw(1, 96 // multiple) for _ in range(2))
        sizes, tile = Sizes(draw(1, 3), draw(1, 9), n_q, draw(0, 100), d_k, d_v), draw(1, 80)
        of_heads, has_first, has_limits = (data.draw(st.booleans()) for _ in range(3))
        rng = np.random.default_rng(draw(0, 1000))
        inputs, first, lists = list_inputs(rng, sizes, tile, draw(0, tile - 1), draw(1, 300), of_heads, has_first)
        limits = rng.integers(-20, inputs[1].shape[1] + 20, (1, sizes.n_q)) if has_limits else None
        with using(isa_name):
            self.check(inputs, first, lists, isa_name, limits)

    def test_sizes(self, rng: np.random.Generator, isa: str) -> None:
        """Of heads and of groups, of tiles, and numbers of rows: those of the text, and of each head."""
        for sizes, tile, offset, n_further in (
            *((Sizes(d_k=d, d_v=257 - d), 16, 5, 40) for d in (1, 33, 64, 127, 128, 256)),
            *((Sizes(group=group, n_q=19), 16, 3, 30) for group in (1, 2, 7, 16, 71)),
            *((Sizes(n_q=50), 20, 7, n_further) for n_further in (1, 31, 32, 33, 257, 700)),
            *((Sizes(n_q=90), tile, 0, 100) for tile in (1, 2, 64, 90, 1000)),
        ):
            with case(sizes=sizes, tile=tile, n_further=n_further):
                self.check(*list_inputs(rng, sizes, tile, offset, n_further), isa)
                self.check(*list_inputs(rng, sizes, tile, offset, n_further, True, False), isa)

    def test_prefill(self, rng: np.random.Generator, isa: str) -> None:
        """A memory set, a chunk that is causal, and rows that are older than the chunk: some are in memory sets."""
        q, k, v, _ = random_inputs(rng, Sizes(8, 2, 200, 400, 128, 128))
        memory = np.sort(np.argsort(rng.random((1, 8, 400)), axis=-1)[..., :64], axis=-1)
        chunk = np.arange(400, 600)
        rows = np.concatenate([memory, np.broadcast_to(chunk, (1, 8, 200))], axis=-1)
        list_rows = np.argsort(rng.random((1, 4, 400)), axis=-1)[..., :96]
        list_first = np.sort(rng.integers(-64, 64, (4, 96)) + np.arange(0, 256, 64)[:, None], axis=-1).clip(0)
        lists, limits = Lists(list_rows, list_first, 64), chunk[None] - 100
        got = ops.attention(q, k, v, rows, limits=limits, **lists.arguments)
        first = np.maximum(np.arange(264) - 64, 0)
        assert_all_equal(got, ops.attention(q, k, v, rows, first=first, limits=limits, **lists.arguments))
        self.check((q, k, v, rows), first, lists, isa, limits)

    def test_rows_of_a_head_are_ignored_for_it(self, rng: np.random.Generator, isa: str) -> None:
        """All for head 0, none for head 1, seen or not."""
        (q, k, v, _), _, _ = list_inputs(rng, Sizes(), 16, 0, 40)
        rows = np.stack([np.arange(70), np.arange(70, 140)])[None]
        first = np.where(np.arange(70) < 10, 0, 40)  # most rows are never seen
        lists = Lists(np.tile(np.arange(5, 45), (1, 3, 1)), np.zeros((3, 40), int), 16)
        got = ops.attention(q, k, v, rows, first=first, **lists.arguments)
        without = ops.attention(q, k, v, rows, first=first)
        for x, y in ((got.o[:, :, :2], without.o[:, :, :2]), (got.l[:, :2], without.l[:, :2])):
            np.testing.assert_array_equal(x, y)
        assert np.all(got.l[:, 2:] * np.exp(got.m[:, 2:]) > without.l[:, 2:] * np.exp(without.m[:, 2:]))
        self.check((q, k, v, rows), first, lists, isa)

    def test_padding_alone(self, rng: np.random.Generator, isa: str) -> None:
        """The same bits as without further keys; sums are added up in other runs."""
        for of_heads, has_first in product([False, True], repeat=2):
            with case(of_heads=of_heads, has_first=has_first):
                inputs, first, lists = list_inputs(rng, Sizes(3, 3, 90, 50), 20, 7, 40, of_heads, has_first)
                want = ops.attention(*inputs, first=first)
                list_first = None if lists.first is None else np.full_like(lists.first, 90)
                nothing = Lists(np.full_like(lists.rows, -1), list_first, 20, 7)
                got = ops.attention(*inputs, first=first, **nothing.arguments)
                assert_equal_but_sums(got, want)
                np.testing.assert_allclose(got.sums, want.sums, rtol=ROUNDING[isa])
                none = Lists(lists.rows[..., :0], None if list_first is None else list_first[:, :0], 20, 7)
                assert_all_equal(ops.attention(*inputs, first=first, **none.arguments), want)

    def test_queries_that_see_nothing(self, rng: np.random.Generator, isa: str) -> None:
        """Queries 0 to 9 see nothing, 10 to 24 further keys only."""
        (q, k, v, rows), _, _ = list_inputs(rng, Sizes(), 16, 3, 20)
        further = np.setdiff1d(np.arange(k.shape[1]), rows)[:8]
        assert len(further) > 0
        lists = Lists(np.tile(further, (1, 3, 1)), np.full((3, len(further)), 10), 16, 3)
        first = np.full(rows.shape[-1], 25)
        got = ops.attention(q, k, v, rows, first=first, **lists.arguments)
        assert not got.o[:, :10].any()
        assert not got.l[..., :10].any()
        assert np.all(got.m[..., :10] == -np.inf)
        assert np.all(got.l[..., 10:25] > 0)
        self.check((q, k, v, rows), first, lists, isa)

    def test_same_bits_on_any_number_of_threads(self, rng: np.random.Generator, isa: str) -> None:
        """And o, m and l with limits."""
        for sizes, tile, offset, of_heads in [
            (Sizes(n_q=70), 16, 3, False),
            (Sizes(3, 5, 130, 70, 33, 100), 50, 49, True),
            (Sizes(1, 2, 300), 2**31 - 1, 0, False),  # slices of a list
            (Sizes(2, 3, 200), 1, 0, True),  # more lists than items
            (Sizes(1, 1, 1, 5), 4, 2, False),
        ]:
            with case(sizes=sizes, tile=tile, offset=offset):
                few = min(tile, sizes.n_q + offset)
                inputs, first, lists = list_inputs(rng, sizes, few, offset, 40, of_heads, not of_heads)
                lists = Lists(lists.rows, lists.first, tile, offset)
                limits = rng.integers(-20, inputs[1].shape[1] + 20, (1, sizes.n_q))
                attend = partial(ops.attention, *inputs, first=first, **lists.arguments)
                got = assert_same_bits_on_threads(partial(attend, limits=limits))
                assert_equal_but_sums(got, attend())
                self.check(inputs, first, lists, isa, limits)

    def test_same_bits_for_a_head_alone(self, rng: np.random.Generator, isa: str) -> None:
        """So many keys that KV heads are computed in rounds, on one thread one at a time."""
        (q, k, v, _), _, lists = list_inputs(rng, Sizes(3, 2, 5, 0, 256, 256), 2, 1, 8)
        rows = np.sort(rng.integers(0, k.shape[1], (1, 3, 17_000)), axis=-1)
        rows[rows == 3] = 2  # some further row is new
        assert_same_bits_for_a_head_alone((q, k, v, rows), causal=False, **lists.arguments)

    def test_same_bits_for_queries_alone(self, rng: np.random.Generator, isa: str) -> None:
        """A list's queries, one query, queries of two lists: as with all others."""
        for of_heads in (False, True):
            inputs, first, lists = list_inputs(rng, Sizes(n_q=150), 40, 13, 60, of_heads, not of_heads)
            q, k, v, rows = inputs
            want = ops.attention(*inputs, first=first, **lists.arguments)
            for start, end in ((0, 27), (27, 67), (77, 78), (149, 150), (50, 80), (20, 130)):
                with case(of_heads=of_heads, start=start):
                    alone = lists.of_queries(start, end).arguments
                    first_alone = (first - start).clip(0, end - start)
                    got = ops.attention(q[:, :, start:end], k, v, rows, first=first_alone, **alone)
                    np.testing.assert_array_equal(got.o, want.o[:, start:end])
                    np.testing.assert_array_equal(got.m, want.m[..., start:end])
                    np.testing.assert_array_equal(got.l, want.l[..., start:end])

    def test_types_and_views(self, rng: np.random.Generator, isa: str) -> None:
        """K and V are widened to float32: the same bits. So where heads of a token stand together, as in a model."""
        for type, n_q in product(["f16", "bf16", "q4_0", "q8_0"], [2, 40]):
            with case(type=type, n_q=n_q):
                (q, k, v, rows), first, lists = list_inputs(rng, Sizes(n_q=n_q, d_v=96), 16, 3, 40)
                stored, wide = stored_and_wide(k, v, type)
                want = ops.attention(q, *wide, rows, first=first, **lists.arguments)
                got = ops.attention(q, *stored, rows, first=first, **type_argument(type), **lists.arguments)
                assert_all_equal(got, want)
                got = ops.attention(*as_in_a_model(q, *wide), rows, first=first, **lists.arguments)
                assert_all_equal(got, want)

    def test_not_finite(self, rng: np.random.Generator, isa: str) -> None:
        """It arrives at the queries that see it: not before, in other lists, or in a head that has it."""
        for bad, where, n_q in product([np.nan, np.inf, -np.inf], ["q", "k", "v"], [18, 40]):
            with case(bad=bad, where=where, n_q=n_q):
                (q, k, v, _), _, _ = list_inputs(rng, Sizes(n_q=n_q), 16, 3, 20)
                rows = np.stack([np.arange(60), np.arange(60, 120)])[None]
                first = np.where(np.arange(60) < 20, 0, n_q)
                n_tiles = -(-(n_q + 3) // 16)
                lists = Lists(np.tile(np.arange(30, 50), (1, n_tiles, 1)), np.tile(np.arange(20), (n_tiles, 1)), 16, 3)
                lists.rows[:, :, 9] = np.arange(100, 100 + n_tiles)  # of the second list alone
                spoil((q, k, v), where, bad, (0, 2, 17, 7), (slice(None), 101, 7))
                got = ops.attention(q, k, v, rows, first=first, **lists.arguments)
                assert_all_close(got, lists_reference((q, k, v, rows), first, lists), 1e-4)
                assert not np.isfinite(got.o).all()
                assert np.isfinite(got.o[:, :13]).all()

    def test_large_numbers(self, rng: np.random.Generator, isa: str) -> None:
        """Of a further key: products that overflow float32, and a value next to the largest number."""
        for n_q in (3, 40):
            with case(n_q=n_q):
                inputs, first, _ = list_inputs(rng, Sizes(n_q=n_q), n_q, 0, 20)
                q, k, v, rows = inputs
                row = np.setdiff1d(np.arange(k.shape[1]), rows)[0]
                k[0, row], v[0, row] = 3e37 * np.sign(q[0, 0, 2]), 3e38
                lists = Lists(np.full((1, 1, 1), row), None, n_q)
                got, want = (
                    ops.attention(*inputs, first=first, **lists.arguments),
                    lists_reference(inputs, first, lists),
                )
                assert want.m[0, 0, 2] > 1e38
                np.testing.assert_allclose(got.o, want.o, rtol=1e-5, atol=1e-4)
                np.testing.assert_allclose(got.sums, want.sums, rtol=1e-4, atol=1e-5)


class TestThreads:
    def test_same_bits_on_any_number_of_threads(self, rng: np.random.Generator, isa: str) -> None:
        for sizes in [Sizes(), Sizes(3, 5, 130, 70, 33, 100, 2), Sizes(1, 1, 1, 5)]:
            with case(sizes=sizes):
                inputs, limits = limited_inputs(rng, sizes)
                assert_same_bits_on_threads(partial(ops.attention, *inputs, limits=limits))

    def test_same_bits_for_a_head_alone(self, rng: np.random.Generator, isa: str) -> None:
        """With so many keys, one thread packs one KV head at a time, two threads two and then one, others all three."""
        (q, k, v, _), limits = limited_inputs(rng, Sizes(3, 2, 5, 0, 256, 256, n_block=2))
        rows = np.sort(rng.integers(0, k.shape[1], (2, 3, 17_000)), axis=-1)
        assert_same_bits_for_a_head_alone((q, k, v, rows), limits=limits)

    def test_same_bits_for_a_query_alone(self, rng: np.random.Generator, isa: str) -> None:
        """A query's result does not depend on the others that are computed with it."""
        q, k, v, rows = random_inputs(rng, Sizes(n_q=150))
        want = ops.attention(q, k, v, rows)
        for i in (0, 1, 77, 149):
            got = ops.attention(q[:, :, i : i + 1], k, v, rows[..., : rows.shape[-1] - 149 + i])
            np.testing.assert_array_equal(got.o[:, 0], want.o[:, i])
            np.testing.assert_array_equal(got.m[..., 0], want.m[..., i])
            np.testing.assert_array_equal(got.l[..., 0], want.l[..., i])


class TestTypes:
    """K and V are widened to float32, which is exact: the same bits as with float32 K and V."""

    def test_same_bits(self, rng: np.random.Generator, isa: str) -> None:
        for type in ["f16", "bf16", "q4_0", "q4_1", "q5_0", "q5_1", "q8_0"]:
            with case(type=type):
                q, k, v, rows = random_inputs(rng, Sizes(d_k=80 if type == "f16" else 64, d_v=96))
                stored, wide = stored_and_wide(k, v, type)
                got = ops.attention(q, *stored, rows, **type_argument(type))
                assert_all_equal(got, ops.attention(q, *wide, rows))

    def test_views(self, rng: np.random.Generator, isa: str) -> None:
        """Heads of a token stand together, as in a model; rows are part of a larger array."""
        q, k, v, rows = random_inputs(rng, Sizes(n_block=2))
        want = ops.attention(q, k, v, rows)
        q, k, v = as_in_a_model(q, k, v)
        rows = np.concatenate([rows, rows], axis=-1).astype(np.int32)[..., : rows.shape[-1]]
        assert_all_equal(ops.attention(q, k, v, rows), want)
        wide = np.concatenate([v, v], axis=-1)
        got = ops.attention(q[:, ::2], k, wide[..., : v.shape[-1]], rows)
        np.testing.assert_array_equal(got.o, want.o[:, :, ::2])
        np.testing.assert_array_equal(got.l, want.l[:, ::2])


class TestExtremes:
    def test_large_logits(self, rng: np.random.Generator, isa: str) -> None:
        """The kernel's own largest logits decide which weights remain: compared with a softmax of those."""
        for magnitude, through in product([100.0, 1e4, 1e15, 1e30], ["q", "k", "scale"]):
            with case(magnitude=magnitude, through=through):
                d = 32
                q = np.zeros((1, 2, 20, d), dtype=np.float32)
                q[..., 0] = rng.choice([-1.0, -0.5, 0.5, 1.0], (1, 2, 20))
                k = np.zeros((1, 50, d), dtype=np.float32)
                k[..., 0] = rng.integers(-8, 9, (1, 50)) / 8  # products are exact, and ties are
                v = rng.standard_normal((1, 50, 7), dtype=np.float32)
                rows = np.arange(50)[None, None]
                power = float(2.0 ** np.round(np.log2(magnitude)))
                scale = power if through == "scale" else 1.0
                q, k = q * np.float32(power if through == "q" else 1), k * np.float32(power if through == "k" else 1)
                got, want = ops.attention(q, k, v, rows, scale=scale), reference(q, k, v, rows, scale)
                np.testing.assert_array_equal(got.m, want.m)
                np.testing.assert_allclose(got.l, want.l, rtol=1e-6)
                np.testing.assert_allclose(got.o, want.o, rtol=0, atol=ROUNDING[isa] * np.abs(v).max())
                np.testing.assert_allclose(got.sums, want.sums, rtol=ROUNDING[isa], atol=1e-30)

    def test_logits_of_100(self, rng: np.random.Generator, isa: str) -> None:
        q, k, v, rows = random_inputs(rng, Sizes(n_q=100, d_k=32))
        scale = float(100 / np.abs(q @ gather(k, rows, 2).swapaxes(-1, -2)).max())
        check((q, k, v, rows), isa, scale=scale)
        check((q, k, v, rows), isa, scale=-scale)

    def test_one_hot(self, rng: np.random.Generator, isa: str) -> None:
        """Query i's key is i: a weight of exactly 1, and the key's own value."""
        n = 70
        q = 1000 * np.eye(n, dtype=np.float32)[None, None]
        v = rng.standard_normal((1, n, 40)).astype(np.float16).astype(np.float32)
        got = ops.attention(q, np.eye(n, dtype=np.float32)[None], v, np.arange(n)[None, None])
        np.testing.assert_array_equal(got.l, 1)
        np.testing.assert_array_equal(got.m, 1000)
        np.testing.assert_array_equal(got.sums, 1)
        np.testing.assert_array_equal(got.o[0, :, 0], v[0])

    def test_ties(self, rng: np.random.Generator, isa: str) -> None:
        """Equal keys: query i sees i + 1 of them."""
        n = 64
        q = rng.standard_normal((1, 1, n, 16), dtype=np.float32)
        k = np.broadcast_to(rng.standard_normal(16, dtype=np.float32), (1, n, 16))
        v = rng.standard_normal((1, n, 3), dtype=np.float32)
        got = ops.attention(q, k, v, np.arange(n)[None, None])
        count = np.arange(1, n + 1)
        np.testing.assert_array_equal(got.l[0, 0], count)
        np.testing.assert_allclose(got.sums[0, 0], [np.sum(1 / count[j:]) for j in range(n)], rtol=1e-6)
        np.testing.assert_allclose(
            got.o[0, :, 0], v[0].cumsum(axis=0, dtype=np.float64) / count[:, None], atol=ROUNDING[isa]
        )

    def test_all_logits_minus_infinity(self, rng: np.random.Generator, isa: str) -> None:
        q, k, v, rows = random_inputs(rng, Sizes())
        q[..., 0] = 1
        q[:, 1, 5, 0] = -np.inf  # k's is positive: all products are -inf
        k[..., 0] = 1
        got, want = ops.attention(q, k, v, rows), reference(q, k, v, rows)
        assert got.m[0, 1, 5] == -np.inf
        assert got.l[0, 1, 5] == 0
        assert (got.o[0, 5, 1] == 0).all()
        assert_all_close(got, want, 2e-5)

    def test_some_logits_minus_infinity(self, rng: np.random.Generator, isa: str) -> None:
        q, k, v, rows = random_inputs(rng, Sizes())
        q[..., 0] = 1
        k[:, 3::5, 0] = -np.inf
        assert_all_close(ops.attention(q, k, v, rows), reference(q, k, v, rows), 1e-5)

    def test_not_finite(self, rng: np.random.Generator, isa: str) -> None:
        """NaN arrives where NumPy has it, and nowhere else: what a query does not see has no effect on it."""
        for bad, where in product([np.nan, np.inf, -np.inf], ["q", "k", "v"]):
            with case(bad=bad, where=where):
                q, k, v, rows = random_inputs(rng, Sizes(n_q=60, memory=3))
                spoil((q, k, v), where, bad, (0, 2, 30, 7), (1, rows[0, 1, 40], 7))
                assert_all_close(ops.attention(q, k, v, rows), reference(q, k, v, rows), 1e-4)

    def test_a_nan_that_no_row_names(self, rng: np.random.Generator, isa: str) -> None:
        q, k, v, rows = random_inputs(rng, Sizes())
        want = ops.attention(q, k, v, rows)
        for head in range(len(k)):
            unused = np.setdiff1d(np.arange(k.shape[1]), rows[0, head])
            k[head, unused] = v[head, unused] = np.nan
        assert_all_equal(ops.attention(q, k, v, rows), want)

    def test_tiny_numbers(self, rng: np.random.Generator, isa: str) -> None:
        """Numbers that a kernel may take for 0 are as good as 0 next to logits and weights of size 1."""
        for tiny in [1e-20, 1e-38, 1e-42]:
            with case(tiny=tiny):
                q, k, v, rows = random_inputs(rng, Sizes())
                check((q * np.float32(tiny), k, v, rows), isa)
                check((q, k * np.float32(tiny), v, rows), isa)
                got = ops.attention(q, k, v * np.float32(tiny), rows).o
                want = reference(q, k, v * np.float32(tiny), rows).o
                np.testing.assert_allclose(got, want, rtol=0, atol=4 * ROUNDING[isa] * tiny + 2.0**-125)


Q = np.zeros((2, 4, 3, 8), dtype=np.float32)
K = np.zeros((2, 10, 8), dtype=np.float32)
ROWS = np.zeros((2, 2, 5), dtype=np.int32)
LIMITS = np.zeros((2, 3), dtype=np.int64)
LISTS = np.tile(np.arange(4), (2, 1))


def with_lists(
    q: Array = Q[:1], own: Array = ROWS[:1], rows: Any = LISTS, first: Any = LISTS // 4, **kwargs: Any
) -> ops.Attention:
    own = ROWS[: len(q)] if len(q) != len(own) else own
    return ops.attention(q, K, K, own, further_rows=rows, further_first=first, **({"tile": 2} | kwargs))


def test_good_lists() -> None:
    """What test_bad_arguments spoils."""
    with_lists()
    with_lists(offset=1)
    with_lists(rows=LISTS - 1, first=LISTS // 4 + 3)
    with_lists(rows=np.stack([LISTS, LISTS + 1]))
    with_lists(rows=LISTS + 1, first=None)
    with_lists(rows=np.stack([LISTS + 1, [[4, 2, 3, -1], [-1, -1, -1, -1]]]), first=None)


def test_bad_arguments() -> None:
    calls: list[tuple[Callable[[], object], str]] = [
        (lambda: ops.attention(Q.astype(np.float64), K, K, ROWS), r"q must be float32, got float64"),
        (lambda: ops.attention(Q[0, 0], K, K, ROWS), r"q must have 3 to 4 axes, got 2"),
        (lambda: ops.attention(Q[:, :, :0], K, K, ROWS), r"q must not be empty"),
        (lambda: ops.attention(Q, K[None], K, ROWS), r"k must have 3 axes, got 4"),
        (lambda: ops.attention(Q, K.astype(np.int32), K, ROWS), r"k must be float32 or float16, got int"),
        (lambda: ops.attention(Q, K, K.astype(np.float16), ROWS), r"v must be float32, got float16"),
        (lambda: ops.attention(Q, K[..., :7], K, ROWS), r"k must have rows of 8 elements, as q has, got 7"),
        (lambda: ops.attention(Q, K, K[:, :9], ROWS), r"v must be of shape \[2, 10, 'd_v'\], got \[2, 9, 8"),
        (lambda: ops.attention(Q[:, :3], K, K, ROWS), r"the heads of k must divide the 3 heads of q, got 2"),
        (lambda: ops.attention(Q, K, K, ROWS[0]), r"rows must be of shape \[2, 2, 'n_k'\], got \[2, 5\]"),
        (lambda: ops.attention(Q[0], K, K, ROWS), r"rows must be of shape \[2, 'n_k'\]"),
        (lambda: ops.attention(Q, K, K, ROWS[:1]), r"rows must be of shape"),
        (lambda: ops.attention(Q, K, K, ROWS + 10), r"rows must be from 0 to 9, got 10 to 10"),
        (lambda: ops.attention(Q, K, K, ROWS - 1), r"rows must be from 0 to 9, got -1 to -1"),
        (lambda: ops.attention(Q, K, K, ROWS * 1.0), r"rows must be integers, got float64"),
        (lambda: ops.attention(Q, K, K, ROWS[..., :0], causal=False), r"rows must not be empty"),
        (lambda: ops.attention(Q, K, K, ROWS[..., :2]), r"rows must hold at least .* queries \(3\) when causal"),
        (lambda: ops.attention(Q, K, K, ROWS, limits=LIMITS * 1.0), r"limits must be integers, got float64"),
        (lambda: ops.attention(Q, K, K, ROWS, limits=LIMITS[0]), r"limits must be of shape \[2, 3\], got \[3\]"),
        (lambda: ops.attention(Q, K, K, ROWS, limits=LIMITS[:, :2]), r"limits must be of shape \[2, 3\]"),
        (lambda: ops.attention(Q[0], K, K, ROWS[0], limits=LIMITS), r"limits must be of shape \[3\]"),
        (
            lambda: ops.attention(Q, K, K, ROWS, limits=LIMITS + 2**31),
            r"limits must be int32 numbers, got 2147483648 to 2147483648",
        ),
        (
            lambda: ops.attention(Q, K, K, ROWS + np.arange(5, 0, -1), limits=LIMITS),
            r"rows must ascend in each head when there are limits",
        ),
        (lambda: with_lists(rows=None), r"further_first is that of further_rows"),
        (lambda: with_lists(q=Q), r"further_rows are for one block of queries, got 2"),
        (lambda: with_lists(rows=LISTS * 1.0), r"further_rows must be integers, got float64"),
        (lambda: with_lists(first=LISTS * 1.0), r"further_first must be integers, got float64"),
        (lambda: with_lists(rows=LISTS[0]), r"further_rows must have 2 to 3 axes, got 1"),
        (lambda: with_lists(rows=LISTS[:1]), r"further_rows must be of shape \[2, 'n'\], got \[1, 4\]"),
        (lambda: with_lists(rows=LISTS[None]), r"further_rows must be of shape \[2, 2, 'n'\], got \[1, 2, 4\]"),
        (lambda: with_lists(tile=3), r"further_rows must be of shape \[1, 'n'\]"),
        (lambda: with_lists(tile=1), r"further_rows must be of shape \[3, 'n'\]"),
        (lambda: with_lists(first=LISTS[:, :3]), r"further_first must be of shape \[2, 4\], got \[2, 3\]"),
        (lambda: with_lists(first=LISTS[:, ::-1]), r"further_first must be ascending in each list"),
        (lambda: with_lists(first=LISTS - 1), r"further_first must hold numbers from 0 on"),
        (lambda: with_lists(first=LISTS + 2**31), r"further_first must be int32 numbers"),
        (
            lambda: with_lists(rows=LISTS - 2**31 - 1, first=LISTS + 9),
            r"further_rows must be int32 numbers, got -2147483649 to -2147483646",
        ),
        (lambda: with_lists(rows=LISTS + 7), r"further_rows must be from 0 to 9, got 7 to 10"),
        (lambda: with_lists(rows=LISTS - 1), r"further_rows must be from 0 to 9, got -1 to"),
        (
            lambda: with_lists(rows=LISTS // 2 * 2),
            r"further_rows that a query sees must differ from each other, got equal ones in list 0",
        ),
        # seen by all queries of a tile
        (lambda: with_lists(first=None, rows=LISTS + 7), r"further_rows must be from 0 to 9, or -1, got 7 to 10"),
        (lambda: with_lists(first=None, rows=LISTS - 1), r"further_rows must have -1 at the end of a list only"),
        (lambda: with_lists(first=None, rows=LISTS // 2 + 1), r"further_rows of a list must differ from each other"),
        (lambda: with_lists(first=None), r"further_rows must differ from the head's rows, got some of them in head 0"),
        (
            lambda: with_lists(own=ROWS[:1] + np.arange(5, 0, -1)),
            r"rows must ascend in each head when there are further keys",
        ),
        (lambda: with_lists(tile=0), r"tile must be"),
        (lambda: with_lists(tile=2.0), r"tile must be"),
        (lambda: with_lists(offset=-1), r"offset must be"),
        (lambda: with_lists(offset=2), r"offset must be"),
        (lambda: ops.attention(Q, K, K, ROWS, tile=0), r"tile must be"),
        (lambda: ops.attention(Q, K, K, ROWS, softcap=-1.0), r"softcap must be"),
        (
            lambda: ops.attention(Q, K, K, ROWS, sinks=np.zeros(3, np.float32)),
            r"sinks must be of shape \[4\], got \[3\]",
        ),
        (lambda: ops.attention(Q, K, K, ROWS, sinks=np.zeros(4)), r"sinks must be float32, got float64"),
        (
            lambda: ops.attention(Q, K, K, ROWS, first=[0, 0, 1, 0, 1]),
            r"first must hold 5 ascending numbers from 0 to 3",
        ),
        (lambda: ops.attention(Q, K, K, ROWS, first=[0, 0, 1, 2, 4]), r"first must hold 5 ascending"),
        (lambda: ops.attention(Q, K, K, ROWS, first=[0, 0]), r"first must hold 5 ascending"),
        (lambda: ops.attention(Q, K, K, ROWS, first=[0.5] * 5), r"first must be integers"),
        (lambda: ops.attention(Q, K, K, ROWS, causal=1), r"causal must be True or False"),  # type: ignore[arg-type]
        (lambda: ops.attention(Q, K, K, ROWS, scale=np.inf), r"scale must be a finite number"),
        (lambda: ops.attention(Q, K, K, ROWS, scale=1e39), r"scale must be a finite number"),
        (lambda: ops.attention(Q, K, K, ROWS, type="q8_0"), r"k must be uint8, got float32"),
        (lambda: ops.attention(Q, K, K, ROWS, type="f8"), r"type must be one of"),
        (lambda: ops.attention(Q, K, K, ROWS, backend="abacus"), r"there is no backend 'abacus'"),
        (lambda: ops.attention(Q, K, K, ROWS, n_threads=0), r"n_threads must be"),
    ]
    assert_refused(calls, "attention")
    assert_refused([(lambda: _core.ops_set_isa("abacus"), r"this CPU has no 'abacus'")], "ops")
