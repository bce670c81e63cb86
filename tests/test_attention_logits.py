"""The attention operator with sinks, softcap, and own keys that follow one another, against float64 in NumPy."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from compare import assert_all_close, assert_all_equal, case
from h2o_llama import ops
from kernels import ISAS, using
from test_attention_op import (
    Lists,
    Sizes,
    as_in_a_model,
    assert_close,
    assert_same_bits_on_threads,
    compute,
    list_inputs,
    lists_reference,
    random_inputs,
    reference,
    stored_and_wide,
)

Array = NDArray[Any]
Further = Literal["none", "of the text", "of heads"]

NO_SUMS, COLUMN_SUMS, QUERY_SUMS = range(3)


class Problem:
    """Queries, keys, further keys, and what changes their logits."""

    def __init__(self, rng: np.random.Generator, sizes: Sizes, further: Further, n: int, tile: int = 4) -> None:
        of_heads = further == "of heads"
        self.inputs, self.first, self.lists = list_inputs(rng, sizes, tile, tile // 2, n, of_heads, not of_heads)
        if further == "none":
            self.lists = Lists(self.lists.rows[..., :0], None, tile, tile // 2)
        self.limits: Array | None = None
        self.sinks: Array | None = None
        self.softcap = 0.0

    def attend(self, sums: int, n_threads: int = 2) -> ops.Attention:
        limits = self.limits if sums != NO_SUMS else None
        more: dict[str, Any] = {"limits": limits, "sinks": self.sinks, "softcap": self.softcap}
        more |= self.lists.arguments if self.lists.rows.size else {}
        return compute(self.inputs, sums=sums, n_threads=n_threads, first=self.first, **more)

    def reference(self, sums: int) -> ops.Attention:
        q, k, v, rows = self.inputs
        logits: dict[str, Any] = {"sinks": self.sinks, "softcap": self.softcap}
        if sums != QUERY_SUMS:
            want = lists_reference(self.inputs, self.first, self.lists, self.limits, **logits)
            return want if sums == COLUMN_SUMS else want._replace(sums=np.zeros(0))
        parts = []
        for i in range(q.shape[2]):
            limits = None if self.limits is None else self.limits[:, i : i + 1]
            alone = ((q[:, :, i : i + 1], k, v, rows), (self.first - i).clip(0), self.lists.of_queries(i, i + 1))
            parts.append(lists_reference(*alone, limits, **logits))
        o, query_sums, m, l = zip(*parts, strict=True)  # noqa: E741
        axes = ((o, 1), (query_sums, 0), (m, 2), (l, 2))
        return ops.Attention(*(np.concatenate(x, axis=axis) for x, axis in axes))

    def check(self, isa: str) -> None:
        for sums in (NO_SUMS, COLUMN_SUMS, QUERY_SUMS):
            with case(sums=sums):
                assert_close(self.attend(sums), self.reference(sums), *self.inputs[:3], 1.0, isa)


FURTHER: list[Further] = ["none", "of the text", "of heads"]


@pytest.mark.parametrize("isa_name", ISAS)
@pytest.mark.parametrize("multiple", [1, 16])
@given(data=st.data())
@settings(max_examples=60, deadline=None, derandomize=True)
def test_random_sizes(isa_name: str, multiple: int, data: st.DataObject) -> None:
    """Read in place, which takes head sizes that are multiples of 16 and few queries, and packed."""
    draw: Callable[[int, int], int] = lambda low, high: data.draw(st.integers(low, high))  # noqa: E731
    d_k, d_v = (multiple * draw(1, 96 // multiple) for _ in range(2))
    sizes = Sizes(draw(1, 3), draw(1, 9), draw(1, 18), draw(0, 300), d_k, d_v)
    rng = np.random.default_rng(draw(0, 1000))
    problem = Problem(rng, sizes, data.draw(st.sampled_from(FURTHER)), draw(1, 100), draw(1, 6))
    if data.draw(st.booleans()):
        problem.limits = rng.integers(-20, problem.inputs[1].shape[1] + 20, (1, sizes.n_q))
    if data.draw(st.booleans()):
        problem.sinks = rng.normal(0, 3, sizes.n_head_kv * sizes.group).astype(np.float32)
    problem.softcap = data.draw(st.sampled_from([0.0, 0.3, 2.0, 30.0]))
    with using(isa_name):
        problem.check(isa_name)


@pytest.mark.parametrize("further", FURTHER)
def test_sizes(rng: np.random.Generator, isa: str, further: Further) -> None:
    """Several tiles; keys in blocks that are packed; several blocks in place."""
    for sizes in [Sizes(2, 3, 70, 100, 33, 50), Sizes(1, 2, 20, 4200, 32, 32), Sizes(2, 3, 2, 700, 64, 64)]:
        with case(sizes=sizes):
            problem = Problem(rng, sizes, further, 40, 16)
            problem.sinks = rng.normal(0, 3, sizes.n_head_kv * sizes.group).astype(np.float32)
            problem.softcap = 1.5
            problem.check(isa)


def test_blocks_of_queries(rng: np.random.Generator, isa: str) -> None:
    q, k, v, rows = random_inputs(rng, Sizes(3, 2, 45, 52, n_block=2))
    more: dict[str, Any] = {"sinks": rng.standard_normal(6, dtype=np.float32), "softcap": 2.0}
    got = ops.attention(q, k, v, rows, **more)
    assert_close(got, reference(q, k, v, rows, **more), q, k, v, 1.0, isa)


def test_same_bits_on_any_number_of_threads(rng: np.random.Generator, isa: str) -> None:
    for sizes, sums in [
        (Sizes(3, 3, 2, 700, 64, 64), 2),
        (Sizes(3, 3, 24, 300, 64, 64), 1),
        (Sizes(2, 2, 30, 4200), 0),
    ]:
        with case(sizes=sizes):
            problem = Problem(rng, sizes, "none", 1)
            problem.sinks, problem.softcap = rng.standard_normal(sizes.n_head_kv * sizes.group, dtype=np.float32), 3.0
            assert_same_bits_on_threads(partial(problem.attend, sums))


@pytest.mark.parametrize("sizes", [Sizes(2, 2, 3, 200), Sizes(2, 2, 30, 100)], ids=["in place", "packed"])
class TestExtremes:
    def problem(self, rng: np.random.Generator, sizes: Sizes) -> Problem:
        problem = Problem(rng, sizes, "of the text", 20)
        problem.sinks = np.zeros(4, dtype=np.float32)
        return problem

    def test_a_sink_of_minus_infinity_is_none(self, rng: np.random.Generator, isa: str, sizes: Sizes) -> None:
        problem = self.problem(rng, sizes)
        problem.sinks = np.full(4, -np.inf, dtype=np.float32)
        for sums in (NO_SUMS, COLUMN_SUMS, QUERY_SUMS):
            got = problem.attend(sums)
            assert_all_close(got, problem.reference(sums), 1e-4)

    def test_large_sinks(self, rng: np.random.Generator, isa: str, sizes: Sizes) -> None:
        """They take all the weight, or none of it."""
        problem = self.problem(rng, sizes)
        problem.sinks = np.array([1e30, -1e30, 90.0, -90.0], dtype=np.float32)
        problem.check(isa)
        got = problem.attend(COLUMN_SUMS)
        assert not got.o[:, :, 0].any()
        np.testing.assert_array_equal(got.l[:, 0], 1)

    def test_sinks_that_are_not_finite(self, rng: np.random.Generator, isa: str, sizes: Sizes) -> None:
        """They reach their own head only."""
        for bad in (np.nan, np.inf):
            problem = self.problem(rng, sizes)
            problem.sinks = np.array([0.0, bad, 1.0, 2.0], dtype=np.float32)
            for sums in (NO_SUMS, COLUMN_SUMS, QUERY_SUMS):
                got, want = problem.attend(sums), problem.reference(sums)
                assert not np.isfinite(got.l[:, 1]).any()
                for x, y, axis in ((got.o, want.o, 2), (got.m, want.m, 1), (got.l, want.l, 1)):
                    others = [np.delete(z, 1, axis=axis) for z in (x, y)]
                    np.testing.assert_allclose(*others, rtol=1e-4, atol=1e-4)

    def test_queries_that_see_nothing_but_a_sink(self, rng: np.random.Generator, isa: str, sizes: Sizes) -> None:
        problem = Problem(rng, sizes, "none", 1)
        problem.sinks = np.array([0.5, -3.0, 7.0, -np.inf], dtype=np.float32)
        problem.first = np.full_like(problem.first, 1)
        for sums in (NO_SUMS, COLUMN_SUMS, QUERY_SUMS):
            got = problem.attend(sums)
            np.testing.assert_array_equal(got.m[0, :, 0], problem.sinks)
            np.testing.assert_array_equal(got.l[0, :, 0], [1, 1, 1, 0])
            assert not got.o[:, 0].any()
            assert_all_close(got, problem.reference(sums), 1e-4)

    def test_caps(self, rng: np.random.Generator, isa: str, sizes: Sizes) -> None:
        """So small that all logits are as good as equal, so large that it changes nothing; logits beyond it."""
        for softcap, size in [(1e-30, 1.0), (1e-3, 1.0), (1e9, 1.0), (5.0, 1e3), (5.0, 1e15)]:
            with case(softcap=softcap, size=size):
                problem = self.problem(rng, sizes)
                problem.softcap = softcap
                problem.inputs[0][...] *= np.float32(size)
                problem.sinks = None
                for sums in (NO_SUMS, COLUMN_SUMS, QUERY_SUMS):
                    # logits that are near 0 beside their size have an error of that size
                    bound = 1e-4 if size == 1.0 else 2e-3
                    got, want = problem.attend(sums), problem.reference(sums)
                    assert np.abs(got.m[np.isfinite(got.m)]).max() <= softcap
                    if size < 1e10:
                        assert_all_close(got, want, bound)

    def test_not_finite(self, rng: np.random.Generator, isa: str, sizes: Sizes) -> None:
        """An infinite logit is capped, NaN stays."""
        for bad in (np.nan, np.inf, -np.inf):
            with case(bad=bad):
                problem = self.problem(rng, sizes)
                problem.softcap = 2.0
                q, k, _, rows = problem.inputs
                problem.first[:] = 0
                q[..., 7] = np.abs(q[..., 7]) + 0.1
                k[1, rows[0, 1, 40], 7] = bad
                got, want = problem.attend(COLUMN_SUMS), problem.reference(COLUMN_SUMS)
                assert_all_close(got, want, 1e-4)
                assert np.isfinite(got.o[:, :, :2]).all()
                assert np.isfinite(got.o).all() == (not np.isnan(bad))


class TestOwnKeysInOrder:
    """Without rows, own keys are 0 to n_k - 1: the same bits as with a list of them."""

    @pytest.mark.parametrize("sums", [NO_SUMS, COLUMN_SUMS, QUERY_SUMS])
    def test_same_bits(self, rng: np.random.Generator, isa: str, sums: int) -> None:
        for sizes, type in [
            (Sizes(2, 3, 1, 900, 64, 64), "f16"),
            (Sizes(2, 3, 4, 300, 64, 64), "q4_0"),
            (Sizes(2, 2, 30, 4200, 32, 32), "f16"),
            (Sizes(2, 2, 70, 30, 33, 50), "f16"),
        ]:
            with case(sizes=sizes, type=type):
                q, k, v, _ = random_inputs(rng, sizes)
                q, *wide = as_in_a_model(q, k, v)
                stored, _ = stored_and_wide(*wide, type)
                stored = tuple(x.swapaxes(0, 1).copy().swapaxes(0, 1) for x in stored)
                n_k = sizes.n_k
                rows = np.broadcast_to(np.arange(n_k), (1, sizes.n_head_kv, n_k))
                first = np.maximum(np.arange(n_k) - sizes.memory, 0)
                limits = rng.integers(-9, n_k + 9, (1, sizes.n_q)) if sums else None
                want = compute((q, *stored, rows), type, sums, first=first, limits=limits)
                got = compute((q, *stored, None), type, sums, first=first, limits=limits, n_k=n_k)  # type: ignore[arg-type]
                assert_all_equal(got, want)

    def test_with_further_keys(self, rng: np.random.Generator, isa: str) -> None:
        """Those that are among them are ignored."""
        for n_q in (3, 60):
            with case(n_q=n_q):
                (q, k, v, _), _, lists = list_inputs(rng, Sizes(n_q=n_q), 16, 3, 40)
                n_k = n_q + 30
                rows = np.broadcast_to(np.arange(n_k), (1, len(k), n_k))
                for sums in (NO_SUMS, COLUMN_SUMS):
                    want = compute((q, k, v, rows), sums=sums, **lists.arguments)
                    got = compute((q, k, v, None), sums=sums, n_k=n_k, **lists.arguments)  # type: ignore[arg-type]
                    assert_all_equal(got, want)

    def test_all_rows_by_default(self, rng: np.random.Generator) -> None:
        q, k, v, _ = random_inputs(rng, Sizes())
        rows = np.broadcast_to(np.arange(k.shape[1]), (1, len(k), k.shape[1]))
        assert_all_equal(ops.attention(q, k, v), ops.attention(q, k, v, rows))
