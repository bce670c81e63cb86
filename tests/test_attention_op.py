"""The attention operator, against a float64 NumPy reference, with every CPU kernel that this machine has."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import gguf
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from h2o_llama import _core, ops

Array = NDArray[Any]

ISAS = _core.ops_attention_isas()

# Error of a sum whose size is 1: float32 rounds every partial sum to 2^-24, "amx" rounds every number to 2^-17. Two to
# three times the largest that was measured in any test here.
ROUNDING = {isa: 2.0**-15 if isa == "amx" else 2.0**-18 for isa in ISAS}


@pytest.fixture(params=ISAS)
def isa(request: pytest.FixtureRequest) -> Iterator[str]:
    _core.ops_set_attention_isa(request.param)
    yield request.param
    _core.ops_set_attention_isa(ISAS[0])


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
) -> ops.Attention:
    """All in float64; what is hidden is left out and not multiplied by 0."""
    n_block, n_head, n_q, _ = q.shape
    n_head_kv, n_k = rows.shape[1:]
    group = n_head // n_head_kv
    visible = np.tri(n_q, n_k, n_k - n_q, dtype=bool) if causal else np.ones((n_q, n_k), dtype=bool)
    if first is not None:
        visible = first <= np.arange(n_q)[:, None]
    with np.errstate(all="ignore"):
        logits = np.float64(np.float32(scale)) * (q.astype(np.float64) @ gather(k, rows, group).swapaxes(-1, -2))
        m = logits.max(axis=-1, where=visible, initial=-np.inf)
        empty = m == -np.inf
        e = np.where(visible & ~empty[..., None], np.exp(logits - m[..., None]), 0)
        l = e.sum(axis=-1)  # noqa: E741
        weights = np.where(visible, e / np.where(empty, 1, l)[..., None], 0)
        values = gather(v, rows, group)
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


class TestEqualsNumpy:
    @pytest.mark.parametrize("causal", [True, False])
    @pytest.mark.parametrize("d", [1, 2, 15, 31, 32, 33, 64, 80, 96, 100, 127, 128, 192, 255, 256])
    def test_head_sizes(self, rng: np.random.Generator, isa: str, d: int, causal: bool) -> None:
        check(random_inputs(rng, Sizes(d_k=d, d_v=d)), isa, causal=causal)
        check(random_inputs(rng, Sizes(d_k=d, d_v=257 - d)), isa, causal=causal)

    @pytest.mark.parametrize("group", range(1, 17))
    def test_groups(self, rng: np.random.Generator, isa: str, group: int) -> None:
        check(random_inputs(rng, Sizes(group=group, n_q=19)), isa)

    @pytest.mark.parametrize("n_block", [1, 2, 4])
    def test_blocks(self, rng: np.random.Generator, isa: str, n_block: int) -> None:
        check(random_inputs(rng, Sizes(n_block=n_block, n_head_kv=3, n_q=33)), isa)

    @pytest.mark.parametrize(("n_q", "memory"), [(1, 0), (1, 4096), (2048, 0), (1024, 512), (300, 2100)])
    def test_large(self, rng: np.random.Generator, isa: str, n_q: int, memory: int) -> None:
        check(random_inputs(rng, Sizes(1, 2, n_q, memory, 128, 128)), isa, scale=3.0)

    def test_prefill(self, rng: np.random.Generator, isa: str) -> None:
        check(random_inputs(rng, Sizes(8, 2, 256, 128, 128, 128, 2)), isa)

    @pytest.mark.parametrize("isa_name", ISAS)
    @given(data=st.data())
    @settings(max_examples=60, deadline=None, derandomize=True)
    def test_random_sizes(self, isa_name: str, data: st.DataObject) -> None:
        draw: Callable[[int, int], int] = lambda low, high: data.draw(st.integers(low, high))  # noqa: E731
        sizes = Sizes(draw(1, 3), draw(1, 5), draw(1, 70), draw(0, 140), draw(1, 70), draw(1, 70), draw(1, 2))
        causal, seed = data.draw(st.booleans()), draw(0, 1000)
        _core.ops_set_attention_isa(isa_name)
        try:
            check(random_inputs(np.random.default_rng(seed), sizes), isa_name, causal=causal)
        finally:
            _core.ops_set_attention_isa(ISAS[0])

    def test_not_causal_with_more_queries_than_keys(self, rng: np.random.Generator, isa: str) -> None:
        q, k, v, rows = random_inputs(rng, Sizes())
        check((q, k, v, rows[..., :9]), isa, causal=False)

    def test_rows_may_repeat(self, rng: np.random.Generator, isa: str) -> None:
        q, k, v, rows = random_inputs(rng, Sizes())
        check((q, k, v, rows // 9), isa)

    def test_without_blocks(self, rng: np.random.Generator) -> None:
        q, k, v, rows = random_inputs(rng, Sizes())
        got, want = ops.attention(q[0], k, v, rows[0]), ops.attention(q, k, v, rows)
        for x, y in zip(got, want, strict=True):
            np.testing.assert_array_equal(x, y[0])


class TestFirstQuery:
    """Which query sees a row first, in any ascending order."""

    @pytest.mark.parametrize("seed", range(6))
    def test_equals_numpy(self, isa: str, seed: int) -> None:
        rng = np.random.default_rng(seed)
        n_q = int(rng.integers(1, 90))
        q, k, v, rows = random_inputs(rng, Sizes(2, 3, n_q, 40, 33, 50, 2))
        first = np.sort(rng.integers(0, n_q + 1, rows.shape[-1]))
        first[: seed % 3] = 0  # in half of the cases no query sees nothing
        got = ops.attention(q, k, v, rows, first=first, n_threads=2)
        assert_close(got, reference(q, k, v, rows, first=first), q, k, v, 1.0, isa)
        assert not got.sums[..., first == n_q].any()

    def test_queries_that_see_nothing(self, rng: np.random.Generator, isa: str) -> None:
        q, k, v, rows = random_inputs(rng, Sizes(n_q=40))
        got = ops.attention(q, k, v, rows, first=np.full(rows.shape[-1], 25))
        assert not got.o[:, :25].any()
        assert not got.l[..., :25].any()
        assert np.all(got.m[..., :25] == -np.inf)
        want = ops.attention(q[:, :, 25:], k, v, rows, causal=False)
        np.testing.assert_allclose(got.o[:, 25:], want.o, rtol=0, atol=ROUNDING[isa] * 10)

    def test_causal_is_a_list_of_them(self, rng: np.random.Generator, isa: str) -> None:
        q, k, v, rows = random_inputs(rng, Sizes(n_q=45, memory=20))
        first = np.maximum(np.arange(65) - 20, 0)
        for x, y in zip(ops.attention(q, k, v, rows, first=first), ops.attention(q, k, v, rows), strict=True):
            np.testing.assert_array_equal(x, y)


def test_same_bits_without_column_sums(rng: np.random.Generator, isa: str) -> None:
    q, k, v, rows = random_inputs(rng, Sizes(n_q=70, memory=30, n_block=2))
    q[0, 1, 3, 0] = np.inf  # the scalar path too
    first = np.maximum(np.arange(100) - 30, 0).astype(np.int32)
    arguments = (q, k, v, "f32", rows.astype(np.int32), first, None, 1.0)
    o, sums, m, l = _core.ops_attention(*arguments, True, "cpu", 2)  # noqa: E741
    without = _core.ops_attention(*arguments, False, "cpu", 2)
    assert sums is not None
    assert without[1] is None
    for x, y in zip((o, m, l), (without[0], *without[2:]), strict=True):
        np.testing.assert_array_equal(x, y)


def limited_inputs(rng: np.random.Generator, sizes: Sizes) -> tuple[tuple[Array, Array, Array, Array], Array]:
    """random_inputs with ascending rows, and limits that are negative, inside and beyond, in any order."""
    q, k, v, rows = random_inputs(rng, sizes)
    limits = rng.integers(-sizes.n_k // 2, 3 * sizes.n_k // 2, (sizes.n_block, sizes.n_q))
    special = rng.choice([0, 1, 2, 3], limits.shape, p=[0.7, 0.1, 0.1, 0.1])
    limits = np.choose(special, [limits, -(2**31), -1, 2**31 - 1])
    return (q, k, v, np.sort(rows, axis=-1)), limits


def assert_equal_but_sums(got: ops.Attention, want: ops.Attention) -> None:
    for x, y in zip((got.o, got.m, got.l), (want.o, want.m, want.l), strict=True):
        np.testing.assert_array_equal(x, y)


class TestLimits:
    """Which queries count in the sums: o, m and l keep their bits."""

    def check(self, inputs: tuple[Array, Array, Array, Array], limits: Array, isa: str, causal: bool = True) -> None:
        got = ops.attention(*inputs, limits=limits, causal=causal, n_threads=2)
        assert_equal_but_sums(got, ops.attention(*inputs, causal=causal))
        want = reference(*inputs, causal=causal, limits=limits)
        delta = 3 * ROUNDING[isa]  # of the weights: that of the logits, whose size is up to about 2
        np.testing.assert_allclose(got.sums, want.sums, rtol=delta, atol=0.01 * delta)
        np.testing.assert_array_equal(got.sums == 0, want.sums == 0)

    @pytest.mark.parametrize("causal", [True, False])
    @pytest.mark.parametrize("group", [1, 2, 3, 7])
    def test_groups(self, rng: np.random.Generator, isa: str, group: int, causal: bool) -> None:
        inputs, limits = limited_inputs(rng, Sizes(3, group, 45, 52, n_block=2))
        self.check(inputs, limits, isa, causal)

    @pytest.mark.parametrize(("n_q", "memory"), [(1, 0), (1, 300), (2, 31), (33, 0), (200, 333)])
    def test_sizes(self, rng: np.random.Generator, isa: str, n_q: int, memory: int) -> None:
        inputs, limits = limited_inputs(rng, Sizes(n_q=n_q, memory=memory, d_k=40, d_v=72))
        self.check(inputs, limits, isa)

    @pytest.mark.parametrize("isa_name", ISAS)
    @given(data=st.data())
    @settings(max_examples=30, deadline=None, derandomize=True)
    def test_random_sizes(self, isa_name: str, data: st.DataObject) -> None:
        draw: Callable[[int, int], int] = lambda low, high: data.draw(st.integers(low, high))  # noqa: E731
        sizes = Sizes(draw(1, 3), draw(1, 5), draw(1, 70), draw(0, 140), draw(1, 70), draw(1, 70), draw(1, 2))
        causal, seed = data.draw(st.booleans()), draw(0, 1000)
        inputs, limits = limited_inputs(np.random.default_rng(seed), sizes)
        _core.ops_set_attention_isa(isa_name)
        try:
            self.check(inputs, limits, isa_name, causal)
        finally:
            _core.ops_set_attention_isa(ISAS[0])

    @pytest.mark.parametrize("distance", [0, 1, 17, 64, 200])
    def test_queries_a_distance_later(self, rng: np.random.Generator, isa: str, distance: int) -> None:
        """The keys are 96 memory rows and the chunk [160, 288); its queries count for keys at least that far back."""
        q, k, v, _ = random_inputs(rng, Sizes(n_q=128, memory=160))
        memory = np.sort(np.argsort(rng.random((1, 2, 160)), axis=-1)[..., :96], axis=-1)
        positions = np.arange(160, 288)
        rows = np.concatenate([memory, np.broadcast_to(positions, (1, 2, 128))], axis=-1)
        self.check((q, k, v, rows), positions[None] - distance, isa)

    @pytest.mark.parametrize("window", [0, 1, 16, 100])
    def test_last_queries(self, rng: np.random.Generator, isa: str, window: int) -> None:
        """Limits of -1 or beyond: the sums of the last queries alone."""
        (q, k, v, rows), _ = limited_inputs(rng, Sizes(n_q=100))
        limits = np.where(np.arange(100) < 100 - window, -1, 1000)[None]
        self.check((q, k, v, rows), limits, isa)
        got = ops.attention(q, k, v, rows, limits=limits).sums
        assert got.sum(dtype=np.float64) == pytest.approx(4 * window, rel=ROUNDING[isa])

    def test_that_exclude_nothing(self, rng: np.random.Generator, isa: str) -> None:
        """The same bits as without limits."""
        inputs, limits = limited_inputs(rng, Sizes(3, 2, 130, 75))
        want = ops.attention(*inputs)
        for limit in (inputs[1].shape[1] - 1, 2**31 - 1):
            for x, y in zip(ops.attention(*inputs, limits=np.full_like(limits, limit)), want, strict=True):
                np.testing.assert_array_equal(x, y)

    def test_equal_rows_count_together(self, rng: np.random.Generator, isa: str) -> None:
        (q, k, v, rows), limits = limited_inputs(rng, Sizes())
        self.check((q, k, v, rows // 9), limits // 9, isa)

    def test_without_blocks(self, rng: np.random.Generator) -> None:
        (q, k, v, rows), limits = limited_inputs(rng, Sizes())
        got, want = ops.attention(q[0], k, v, rows[0], limits=limits[0]), ops.attention(q, k, v, rows, limits=limits)
        for x, y in zip(got, want, strict=True):
            np.testing.assert_array_equal(x, y[0])

    @pytest.mark.parametrize("bad", [np.nan, np.inf])
    @pytest.mark.parametrize("where", ["q", "k", "v"])
    def test_not_finite(self, rng: np.random.Generator, isa: str, where: str, bad: float) -> None:
        """NaN does not reach the sums through a query that does not count."""
        (q, k, v, rows), limits = limited_inputs(rng, Sizes(n_q=60, memory=3))
        if where == "q":
            q[0, 2, 30, 7] = bad
        else:
            (k if where == "k" else v)[1, rows[0, 1, 40], 7] = bad
        got = ops.attention(q, k, v, rows, limits=limits)
        assert_equal_but_sums(got, ops.attention(q, k, v, rows))
        np.testing.assert_allclose(got.sums, reference(q, k, v, rows, limits=limits).sums, rtol=1e-4, atol=1e-4)


class TestThreads:
    @pytest.mark.parametrize("sizes", [Sizes(), Sizes(3, 5, 130, 70, 33, 100, 2), Sizes(1, 1, 1, 5)], ids=str)
    def test_same_bits_on_any_number_of_threads(self, rng: np.random.Generator, isa: str, sizes: Sizes) -> None:
        inputs, limits = limited_inputs(rng, sizes)
        want = ops.attention(*inputs, limits=limits, n_threads=1)
        for n_threads in (2, 3, 8):
            for x, y in zip(ops.attention(*inputs, limits=limits, n_threads=n_threads), want, strict=True):
                np.testing.assert_array_equal(x, y)

    def test_same_bits_for_a_head_alone(self, rng: np.random.Generator, isa: str) -> None:
        """With so many keys, one thread packs one KV head at a time, two threads two and then one, others all three."""
        (q, k, v, _), limits = limited_inputs(rng, Sizes(3, 2, 5, 0, 256, 256, n_block=2))
        rows = np.sort(rng.integers(0, k.shape[1], (2, 3, 17_000)), axis=-1)
        alone = [
            ops.attention(q[:, 2 * h : 2 * h + 2], k[h : h + 1], v[h : h + 1], rows[:, h : h + 1], limits=limits)
            for h in range(3)
        ]
        want = [
            np.concatenate(parts, axis=axis) for parts, axis in zip(zip(*alone, strict=True), (2, 1, 1, 1), strict=True)
        ]
        for n_threads in (1, 2, 3, 8):
            for x, y in zip(ops.attention(q, k, v, rows, limits=limits, n_threads=n_threads), want, strict=True):
                np.testing.assert_array_equal(x, y)

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

    def test_float16(self, rng: np.random.Generator, isa: str) -> None:
        q, k, v, rows = random_inputs(rng, Sizes(d_k=80))
        k, v = k.astype(np.float16), v.astype(np.float16)
        got = ops.attention(q, k, v, rows)
        for x, y in zip(got, ops.attention(q, k.astype(np.float32), v.astype(np.float32), rows), strict=True):
            np.testing.assert_array_equal(x, y)

    @pytest.mark.parametrize("type", ["bf16", "q4_0", "q4_1", "q5_0", "q5_1", "q8_0"])
    def test_types_without_a_dtype(self, rng: np.random.Generator, isa: str, type: str) -> None:
        q, k, v, rows = random_inputs(rng, Sizes(d_v=96))
        gguf_type = gguf.GGMLQuantizationType[type.upper()]
        k, v = (gguf.quants.quantize(x, gguf_type) for x in (k, v))
        got = ops.attention(q, k.view(np.uint8), v.view(np.uint8), rows, type=type)
        widened = (gguf.quants.dequantize(x, gguf_type) for x in (k, v))
        for x, y in zip(got, ops.attention(q, *widened, rows), strict=True):
            np.testing.assert_array_equal(x, y)

    def test_views(self, rng: np.random.Generator, isa: str) -> None:
        """Heads of a token stand together, as in a model; rows are part of a larger array."""
        q, k, v, rows = random_inputs(rng, Sizes(n_block=2))
        want = ops.attention(q, k, v, rows)
        q = q.transpose(0, 2, 1, 3).copy().transpose(0, 2, 1, 3)
        k, v = (x.swapaxes(0, 1).copy().swapaxes(0, 1) for x in (k, v))
        rows = np.concatenate([rows, rows], axis=-1).astype(np.int32)[..., : rows.shape[-1]]
        for x, y in zip(ops.attention(q, k, v, rows), want, strict=True):
            np.testing.assert_array_equal(x, y)
        wide = np.concatenate([v, v], axis=-1)
        got = ops.attention(q[:, ::2], k, wide[..., : v.shape[-1]], rows)
        np.testing.assert_array_equal(got.o, want.o[:, :, ::2])
        np.testing.assert_array_equal(got.l, want.l[:, ::2])


class TestExtremes:
    @pytest.mark.parametrize("magnitude", [100.0, 1e4, 1e15, 1e30])
    @pytest.mark.parametrize("through", ["q", "k", "scale"])
    def test_large_logits(self, rng: np.random.Generator, isa: str, magnitude: float, through: str) -> None:
        """The kernel's own largest logits decide which weights remain: compared with a softmax of those."""
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
        for x, y in zip(got, want, strict=True):
            np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-5)

    def test_some_logits_minus_infinity(self, rng: np.random.Generator, isa: str) -> None:
        q, k, v, rows = random_inputs(rng, Sizes())
        q[..., 0] = 1
        k[:, 3::5, 0] = -np.inf
        for x, y in zip(ops.attention(q, k, v, rows), reference(q, k, v, rows), strict=True):
            np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-5)

    @pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
    @pytest.mark.parametrize("where", ["q", "k", "v"])
    def test_not_finite(self, rng: np.random.Generator, isa: str, where: str, bad: float) -> None:
        """NaN arrives where NumPy has it, and nowhere else: what a query does not see has no effect on it."""
        q, k, v, rows = random_inputs(rng, Sizes(n_q=60, memory=3))
        if where == "q":
            q[0, 2, 30, 7] = bad
        else:
            (k if where == "k" else v)[1, rows[0, 1, 40], 7] = bad
        for x, y in zip(ops.attention(q, k, v, rows), reference(q, k, v, rows), strict=True):
            np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-4)

    def test_a_nan_that_no_row_names(self, rng: np.random.Generator, isa: str) -> None:
        q, k, v, rows = random_inputs(rng, Sizes())
        want = ops.attention(q, k, v, rows)
        for head in range(len(k)):
            unused = np.setdiff1d(np.arange(k.shape[1]), rows[0, head])
            k[head, unused] = v[head, unused] = np.nan
        for x, y in zip(ops.attention(q, k, v, rows), want, strict=True):
            np.testing.assert_array_equal(x, y)

    @pytest.mark.parametrize("tiny", [1e-20, 1e-38, 1e-42])
    def test_tiny_numbers(self, rng: np.random.Generator, isa: str, tiny: float) -> None:
        """Numbers that a kernel may take for 0 are as good as 0 next to logits and weights of size 1."""
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


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: ops.attention(Q.astype(np.float64), K, K, ROWS), r"^\[attention\] q must be float32, got float64"),
        (lambda: ops.attention(Q[0, 0], K, K, ROWS), r"^\[attention\] q must have 3 to 4 axes, got 2"),
        (lambda: ops.attention(Q[:, :, :0], K, K, ROWS), r"^\[attention\] q must not be empty"),
        (lambda: ops.attention(Q, K[None], K, ROWS), r"^\[attention\] k must have 3 axes, got 4"),
        (
            lambda: ops.attention(Q, K.astype(np.int32), K, ROWS),
            r"^\[attention\] k must be float32 or float16, got int",
        ),
        (lambda: ops.attention(Q, K, K.astype(np.float16), ROWS), r"^\[attention\] v must be float32, got float16"),
        (
            lambda: ops.attention(Q, K[..., :7], K, ROWS),
            r"^\[attention\] k must have rows of 8 elements, as q has, got 7",
        ),
        (
            lambda: ops.attention(Q, K, K[:, :9], ROWS),
            r"^\[attention\] v must be of shape \[2, 10, 'd_v'\], got \[2, 9, 8",
        ),
        (
            lambda: ops.attention(Q[:, :3], K, K, ROWS),
            r"^\[attention\] the heads of k must divide the 3 heads of q, got 2",
        ),
        (
            lambda: ops.attention(Q, K, K, ROWS[0]),
            r"^\[attention\] rows must be of shape \[2, 2, 'n_k'\], got \[2, 5\]",
        ),
        (lambda: ops.attention(Q[0], K, K, ROWS), r"^\[attention\] rows must be of shape \[2, 'n_k'\]"),
        (lambda: ops.attention(Q, K, K, ROWS[:1]), r"^\[attention\] rows must be of shape"),
        (lambda: ops.attention(Q, K, K, ROWS + 10), r"^\[attention\] rows must be from 0 to 9, got 10 to 10"),
        (lambda: ops.attention(Q, K, K, ROWS - 1), r"^\[attention\] rows must be from 0 to 9, got -1 to -1"),
        (lambda: ops.attention(Q, K, K, ROWS * 1.0), r"^\[attention\] rows must be integers, got float64"),
        (lambda: ops.attention(Q, K, K, ROWS[..., :0], causal=False), r"^\[attention\] rows must not be empty"),
        (
            lambda: ops.attention(Q, K, K, ROWS[..., :2]),
            r"^\[attention\] rows must hold at least .* queries \(3\) when causal",
        ),
        (
            lambda: ops.attention(Q, K, K, ROWS, limits=LIMITS * 1.0),
            r"^\[attention\] limits must be integers, got float64",
        ),
        (
            lambda: ops.attention(Q, K, K, ROWS, limits=LIMITS[0]),
            r"^\[attention\] limits must be of shape \[2, 3\], got \[3\]",
        ),
        (
            lambda: ops.attention(Q, K, K, ROWS, limits=LIMITS[:, :2]),
            r"^\[attention\] limits must be of shape \[2, 3\]",
        ),
        (lambda: ops.attention(Q[0], K, K, ROWS[0], limits=LIMITS), r"^\[attention\] limits must be of shape \[3\]"),
        (
            lambda: ops.attention(Q, K, K, ROWS, limits=LIMITS + 2**31),
            r"^\[attention\] limits must be int32 numbers, got 2147483648 to 2147483648",
        ),
        (
            lambda: ops.attention(Q, K, K, ROWS + np.arange(5, 0, -1), limits=LIMITS),
            r"^\[attention\] rows must ascend in each head when there are limits",
        ),
        (
            lambda: ops.attention(Q, K, K, ROWS, first=[0, 0, 1, 0, 1]),
            r"^\[attention\] first must hold 5 ascending numbers from 0 to 3",
        ),
        (lambda: ops.attention(Q, K, K, ROWS, first=[0, 0, 1, 2, 4]), r"^\[attention\] first must hold 5 ascending"),
        (lambda: ops.attention(Q, K, K, ROWS, first=[0, 0]), r"^\[attention\] first must hold 5 ascending"),
        (lambda: ops.attention(Q, K, K, ROWS, first=[0.5] * 5), r"^\[attention\] first must be integers"),
        (lambda: ops.attention(Q, K, K, ROWS, causal=1), r"^\[attention\] causal must be True or False"),  # type: ignore[arg-type]
        (lambda: ops.attention(Q, K, K, ROWS, scale=np.inf), r"^\[attention\] scale must be a finite number"),
        (lambda: ops.attention(Q, K, K, ROWS, scale=1e39), r"^\[attention\] scale must be a finite number"),
        (lambda: ops.attention(Q, K, K, ROWS, type="q8_0"), r"^\[attention\] k must be uint8, got float32"),
        (lambda: ops.attention(Q, K, K, ROWS, type="f8"), r"^\[attention\] type must be one of"),
        (lambda: ops.attention(Q, K, K, ROWS, backend="abacus"), r"^\[attention\] there is no backend 'abacus'"),
        (lambda: ops.attention(Q, K, K, ROWS, n_threads=0), r"^\[attention\] n_threads must be"),
        (lambda: _core.ops_set_attention_isa("abacus"), r"^\[attention\] this CPU has no kernel 'abacus'"),
    ],
)
def test_bad_arguments(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()
