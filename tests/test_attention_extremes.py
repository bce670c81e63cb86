"""The attention operator on numbers that are large, tiny, equal or not finite, against a float64 NumPy reference."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from attention import (
    ALL_SUMS,
    COLUMN_SUMS,
    NO_SUMS,
    ROUNDING,
    Array,
    Lists,
    Problem,
    Sizes,
    gather,
    random_inputs,
    random_limits,
    random_problem,
    reference,
    spoil,
)
from compare import assert_all_close, assert_all_equal, case
from h2o_llama import ops
from test_attention_op import check

BAD = [np.nan, np.inf, -np.inf]
IN_PLACE, PACKED = Sizes(2, 2, 2, 300), Sizes(2, 2, 30, 4200)


def causal(rng: np.random.Generator, sizes: Sizes) -> Problem:
    inputs = random_inputs(rng, sizes)
    inputs[3].sort(axis=-1)
    return Problem(inputs, np.maximum(np.arange(sizes.n_k) - sizes.memory, 0))


def seen_by_one_query(query_rows: Array, row: int, head: int) -> Array:
    """The same lists, but that query 2 of this head sees the row, and no other query does."""
    kept = np.where(query_rows == row, -1, query_rows)
    kept = np.take_along_axis(kept, np.argsort(kept < 0, axis=-1, kind="stable"), axis=-1)
    kept[head, 2, 0] = row
    return kept


def spoiled(rng: np.random.Generator, where: str, bad: float) -> Iterator[tuple[str, Problem]]:
    """Problems with a number that some queries see and others do not."""
    for sizes, query, key in [
        (Sizes(n_q=60, memory=3), 30, 40),
        (Sizes(2, 3, 3, 200, 64, 64), 1, 201),
        (IN_PLACE, 1, 150),
        (IN_PLACE, 1, -1),
        (PACKED, 1, 150),
        (PACKED, 1, -1),
    ]:
        problem = causal(rng, sizes)
        spoil(problem.inputs[:3], where, bad, (0, 2, query, 7), (1, problem.inputs[3][0, 1, key], 7))
        yield f"{sizes}, key {key}", problem

    # in a list, beside others, for a head that has it and one that has not, and again later
    q, k, v, _ = random_problem(rng, Sizes(), "shared", 20, 16).inputs
    rows = np.stack([np.arange(60), np.arange(60, 120)])[None]
    first = np.tile(np.arange(20), (3, 1))
    lists = Lists(np.tile(np.arange(30, 50), (3, 1)), first, first + 15, 16, 3)
    lists.rows[1, 11], lists.rows[:, 9] = lists.rows[1, 9], np.arange(100, 103)
    spoil((q, k, v), where, bad, (0, 2, 17, 7), (slice(None), lists.rows[1, 11], 7))
    yield "shared", Problem((q, k, v, rows), np.where(np.arange(60) < 20, 0, 40), lists)

    for n_q in (3, 40):
        problem = random_problem(rng, Sizes(n_q=n_q, group=3), "of queries", 30)
        q, k, v, rows = problem.inputs
        row = np.setdiff1d(np.arange(k.shape[1]), rows[0, 1])[0]
        assert problem.query_rows is not None
        spoil((q, k, v), where, bad, (0, slice(3, 6), 2, 7), (1, row, 7))
        yield f"of {n_q} queries", replace(problem, query_rows=seen_by_one_query(problem.query_rows, row, head=1))


def test_what_is_not_finite_arrives_where_numpy_has_it(rng: np.random.Generator, isa: str) -> None:
    """And nowhere else: what a query does not see, or does not count in, has no effect."""
    for bad, where in product(BAD, ["q", "k", "v"]):
        for name, problem in spoiled(rng, where, bad):
            for sums in ALL_SUMS:
                with case(bad=bad, where=where, problem=name, sums=sums):
                    got, want = problem.attend(sums), problem.solution(sums)
                    assert where != "v" or not np.isfinite(want.o).all()
                    assert_all_close(got, want, 1e-4)
            with case(bad=bad, where=where, problem=name, limits=True):
                limited = replace(problem, limits=random_limits(rng, problem))
                assert_all_equal(limited.attend()[::2], problem.attend()[::2])
                np.testing.assert_allclose(limited.attend().sums, limited.solution().sums, rtol=1e-4, atol=1e-4)


class TestLargeNumbers:
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

    def test_large_logits_of_problems(self, rng: np.random.Generator, isa: str) -> None:
        """The largest logit is in one block, among the first keys or a query's own: the others' weights become 0."""
        for magnitude, (sizes, further) in product(
            [1e4, 1e20, 1e37], [(IN_PLACE, "none"), (PACKED, "none"), (Sizes(), "of queries")]
        ):
            with case(magnitude=magnitude, sizes=sizes):
                problem = random_problem(rng, sizes, further, 30)
                q, k, v, _ = problem.inputs
                q[...], k[...] = 0, 0
                q[..., 0] = rng.choice([-1.0, -0.5, 0.5, 1.0], q.shape[:-1])
                power = np.float32(2.0 ** np.round(np.log2(magnitude)))
                k[..., 0] = power * (rng.integers(-8, 9, k.shape[:-1]) / 8)  # products are exact, and ties are
                for sums in (NO_SUMS, COLUMN_SUMS):
                    got, want = problem.attend(sums), problem.solution(sums)
                    np.testing.assert_array_equal(got.m, want.m)
                    np.testing.assert_allclose(got.l, want.l, rtol=1e-6)
                    np.testing.assert_allclose(got.o, want.o, rtol=0, atol=1e-5 * np.abs(v).max())
                    np.testing.assert_allclose(got.sums, want.sums, rtol=1e-5, atol=1e-30)

    def test_products_that_overflow(self, rng: np.random.Generator, isa: str) -> None:
        """Of a further key alone."""
        problem = random_problem(rng, Sizes(), "shared", 20, 16, 3)
        q, k, _, rows = problem.inputs
        assert problem.lists is not None
        seen = np.concatenate([problem.lists.seen_by(0, i) for i in range(40)])
        q[0, 1, :, 0] = 1e20
        k[0, np.setdiff1d(seen, rows[0, 0])[0], 0] = 1e20
        got, want = problem.attend(), problem.solution()
        np.testing.assert_allclose(got.o[:, :, [0, 2, 3]], want.o[:, :, [0, 2, 3]], rtol=0, atol=1e-4)
        overflows = want.m[0, 1] > 1e39
        assert overflows.any()
        np.testing.assert_array_equal(np.isinf(got.m[0, 1]), overflows)

    def test_sums_of_products_that_overflow(self, rng: np.random.Generator, isa: str) -> None:
        """Of a query's own key, whose value is next to the largest number."""
        for n_q in [3, 40]:
            with case(n_q=n_q):
                problem = random_problem(rng, Sizes(n_q=n_q), "of queries", 30)
                q, k, v, rows = problem.inputs
                row = np.setdiff1d(np.arange(k.shape[1]), rows[0, 0])[0]
                assert problem.query_rows is not None
                problem = replace(problem, query_rows=seen_by_one_query(problem.query_rows, row, head=0))
                k[0, row] = 3e37 * np.sign(q[0, 0, 2])  # the largest logit of one head
                v[0, row] = 3e38
                got, want = problem.attend(), problem.solution()
                assert want.m[0, 0, 2] > 1e38
                np.testing.assert_allclose(got.o[0, 2, 0], 3e38, rtol=1e-5)
                np.testing.assert_allclose(np.delete(got.o, 2, axis=1), np.delete(want.o, 2, axis=1), rtol=0, atol=1e-4)
                np.testing.assert_allclose(got.sums[0, 1], want.sums[0, 1], rtol=1e-4, atol=1e-5)

    @pytest.mark.parametrize("sizes", [IN_PLACE, PACKED], ids=str)
    def test_values_next_to_the_largest_float32(self, rng: np.random.Generator, isa: str, sizes: Sizes) -> None:
        """Their average is no larger."""
        problem = causal(rng, sizes)
        problem.inputs[2][...] = 3e38
        np.testing.assert_allclose(problem.attend(NO_SUMS).o, 3e38, rtol=1e-5)


class TestEqualAndTinyNumbers:
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

    def test_a_nan_that_no_row_names(self, rng: np.random.Generator, isa: str) -> None:
        q, k, v, rows = random_inputs(rng, Sizes())
        want = ops.attention(q, k, v, rows)
        for head in range(len(k)):
            unused = np.setdiff1d(np.arange(k.shape[1]), rows[0, head])
            k[head, unused] = v[head, unused] = np.nan
        assert_all_equal(ops.attention(q, k, v, rows), want)


@pytest.mark.parametrize("sizes", [Sizes(), IN_PLACE, PACKED], ids=str)
class TestLogitsOfMinusInfinity:
    def test_of_a_query(self, rng: np.random.Generator, isa: str, sizes: Sizes) -> None:
        problem = causal(rng, sizes)
        q, k, _, rows = problem.inputs
        q[..., 0], k[..., 0], q[..., 1], k[..., 1] = 1, 1, 1, 1
        q[:, 1, 1, 0] = -np.inf
        k[:, rows[0, :, 128:256].ravel(), 1] = -np.inf  # and a block of keys for all
        for sums in (NO_SUMS, COLUMN_SUMS):
            got = problem.attend(sums)
            assert got.m[0, 1, 1] == -np.inf
            assert got.l[0, 1, 1] == 0
            assert not got.o[0, 1, 1].any()
            assert_all_close(got, problem.solution(sums), 1e-4)

    def test_of_keys(self, rng: np.random.Generator, isa: str, sizes: Sizes) -> None:
        problem = causal(rng, sizes)
        problem.inputs[0][..., 0] = 1
        problem.inputs[1][:, 3::5, 0] = -np.inf
        for sums in (NO_SUMS, COLUMN_SUMS):
            assert_all_close(problem.attend(sums), problem.solution(sums), 1e-4)


@pytest.mark.parametrize("sizes", [Sizes(2, 2, 3, 200), Sizes(2, 2, 30, 100)], ids=["in place", "packed"])
class TestSinksAndCaps:
    def problem(self, rng: np.random.Generator, sizes: Sizes) -> Problem:
        problem = random_problem(rng, sizes, "shared", 20)
        return replace(problem, sinks=np.zeros(4, dtype=np.float32))

    def test_a_sink_of_minus_infinity_is_none(self, rng: np.random.Generator, isa: str, sizes: Sizes) -> None:
        problem = replace(self.problem(rng, sizes), sinks=np.full(4, -np.inf, dtype=np.float32))
        for sums in ALL_SUMS:
            got = problem.attend(sums)
            assert_all_close(got, problem.solution(sums), 1e-4)

    def test_large_sinks(self, rng: np.random.Generator, isa: str, sizes: Sizes) -> None:
        """They take all the weight, or none of it."""
        sinks = np.array([1e30, -1e30, 90.0, -90.0], dtype=np.float32)
        problem = replace(self.problem(rng, sizes), sinks=sinks)
        problem.check(isa)
        got = problem.attend(COLUMN_SUMS)
        assert not got.o[:, :, 0].any()
        np.testing.assert_array_equal(got.l[:, 0], 1)

    def test_sinks_that_are_not_finite(self, rng: np.random.Generator, isa: str, sizes: Sizes) -> None:
        """They reach their own head only."""
        for bad in (np.nan, np.inf):
            problem = replace(self.problem(rng, sizes), sinks=np.array([0.0, bad, 1.0, 2.0], dtype=np.float32))
            for sums in ALL_SUMS:
                got, want = problem.attend(sums), problem.solution(sums)
                assert not np.isfinite(got.l[:, 1]).any()
                for x, y, axis in ((got.o, want.o, 2), (got.m, want.m, 1), (got.l, want.l, 1)):
                    others = [np.delete(z, 1, axis=axis) for z in (x, y)]
                    np.testing.assert_allclose(*others, rtol=1e-4, atol=1e-4)

    def test_queries_that_see_nothing_but_a_sink(self, rng: np.random.Generator, isa: str, sizes: Sizes) -> None:
        problem = random_problem(rng, sizes)
        sinks = np.array([0.5, -3.0, 7.0, -np.inf], dtype=np.float32)
        problem = replace(problem, sinks=sinks, first=np.full_like(problem.first, 1))
        for sums in ALL_SUMS:
            got = problem.attend(sums)
            np.testing.assert_array_equal(got.m[0, :, 0], sinks)
            np.testing.assert_array_equal(got.l[0, :, 0], [1, 1, 1, 0])
            assert not got.o[:, 0].any()
            assert_all_close(got, problem.solution(sums), 1e-4)

    def test_caps(self, rng: np.random.Generator, isa: str, sizes: Sizes) -> None:
        """So small that all logits are as good as equal, so large that it changes nothing; logits beyond it."""
        for softcap, size in [(1e-30, 1.0), (1e-3, 1.0), (1e9, 1.0), (5.0, 1e3), (5.0, 1e15)]:
            with case(softcap=softcap, size=size):
                problem = replace(self.problem(rng, sizes), softcap=softcap, sinks=None)
                problem.inputs[0][...] *= np.float32(size)
                for sums in ALL_SUMS:
                    # logits that are near 0 beside their size have an error of that size
                    bound = 1e-4 if size == 1.0 else 2e-3
                    got, want = problem.attend(sums), problem.solution(sums)
                    assert np.abs(got.m[np.isfinite(got.m)]).max() <= softcap
                    if size < 1e10:
                        assert_all_close(got, want, bound)

    def test_not_finite(self, rng: np.random.Generator, isa: str, sizes: Sizes) -> None:
        """An infinite logit is capped, NaN stays."""
        for bad in BAD:
            with case(bad=bad):
                problem = replace(self.problem(rng, sizes), softcap=2.0)
                q, k, _, rows = problem.inputs
                problem.first[:] = 0
                q[..., 7] = np.abs(q[..., 7]) + 0.1
                k[1, rows[0, 1, 40], 7] = bad
                got, want = problem.attend(COLUMN_SUMS), problem.solution(COLUMN_SUMS)
                assert_all_close(got, want, 1e-4)
                assert np.isfinite(got.o[:, :, :2]).all()
                assert np.isfinite(got.o).all() == (not np.isnan(bad))
