"""The attention operator, against a float64 NumPy reference, with every CPU kernel that this machine has."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attention import (
    ALL_SUMS,
    COLUMN_SUMS,
    FURTHER,
    NO_SUMS,
    QUERY_SUMS,
    ROUNDING,
    Array,
    Inputs,
    Lists,
    Problem,
    Sizes,
    as_in_a_model,
    assert_close,
    assert_same_bits_on_threads,
    compute,
    random_inputs,
    random_limits,
    random_problem,
    random_sinks,
    reference,
    stored_and_wide,
)
from compare import assert_all_equal, case
from h2o_llama import ops
from kernels import ISAS, using

# Read in place. Query heads times queries: as many as a kernel holds at once (3 or 6), fewer, and up to 16. Keys: as
# many as a block has, one more, and several blocks.
DECODE = [
    Sizes(3, 3, 1, 8191, 64, 64),
    Sizes(2, 7, 1, 127, 128, 128),
    Sizes(1, 1, 1, 128, 16, 48),
    Sizes(2, 4, 3, 1000, 80, 112),
    Sizes(2, 16, 1, 300, 64, 64),
    Sizes(8, 2, 2, 700, 128, 128),
]
# Keys are packed; the last one is computed in two parts of its rows.
PACKED = [
    Sizes(2, 3, 40, 4100, 64, 80),
    Sizes(1, 2, 300, 4096, 33, 100),
    Sizes(2, 1, 1, 4500, 40, 24),
    Sizes(1, 3, 683, 4096, 16, 16),
]


def check(inputs: Inputs, isa: str, scale: float = 1.0, causal: bool = True) -> None:
    """With column sums and without: few queries take another way then."""
    q, k, v, rows = inputs
    want = reference(q, k, v, rows, scale, causal)
    got = ops.attention(q, k, v, rows, scale=scale, causal=causal, n_threads=2)
    assert_close(got, want, q, k, v, scale, isa)
    group = q.shape[1] // len(k)
    # Every query gives away a weight of 1.
    np.testing.assert_allclose(got.sums.sum(axis=-1, dtype=np.float64), q.shape[2] * group, rtol=ROUNDING[isa])
    first = np.maximum(np.arange(rows.shape[-1]) - (rows.shape[-1] - q.shape[2]), 0) if causal else None
    got = compute(inputs, first=first, scale=scale)
    assert_close(got, want._replace(sums=got.sums), q, k, v, scale, isa)


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
        """Several blocks of keys, of queries, and so many keys that tiles have fewer rows."""
        for n_q, memory in [(1, 0), (1, 4096), (2048, 0), (1024, 512), (300, 2100)]:
            with case(n_q=n_q, memory=memory):
                check(random_inputs(rng, Sizes(1, 2, n_q, memory, 128, 128)), isa, scale=3.0)
        check(random_inputs(rng, Sizes(8, 2, 256, 128, 128, 128, 4)), isa)
        check(random_inputs(rng, Sizes(1, 2, 20, 200_000, 16, 16)), isa)

    def test_few_queries_and_many_keys(self, rng: np.random.Generator, isa: str) -> None:
        for sizes, causal in product(DECODE + PACKED, [True, False]):
            with case(sizes=sizes, causal=causal):
                check(random_inputs(rng, sizes), isa, causal=causal)

    @pytest.mark.parametrize("isa_name", ISAS)
    @given(data=st.data())
    @settings(max_examples=60, deadline=None, derandomize=True)
    def test_random_sizes(self, isa_name: str, data: st.DataObject) -> None:
        draw: Callable[[int, int], int] = lambda low, high: data.draw(st.integers(low, high))  # noqa: E731
        sizes = Sizes(draw(1, 3), draw(1, 5), draw(1, 70), draw(0, 140), draw(1, 70), draw(1, 70), draw(1, 2))
        causal, seed = data.draw(st.booleans()), draw(0, 1000)
        with using(isa_name):
            check(random_inputs(np.random.default_rng(seed), sizes), isa_name, causal=causal)

    @pytest.mark.parametrize("isa_name", ISAS)
    @pytest.mark.parametrize("multiple", [1, 16])
    @given(data=st.data())
    @settings(max_examples=100, deadline=None, derandomize=True)
    def test_random_problems(self, isa_name: str, multiple: int, data: st.DataObject) -> None:
        """Read in place, which takes head sizes that are multiples of 16 and few queries, and packed."""
        draw: Callable[[int, int], int] = lambda low, high: data.draw(st.integers(low, high))  # noqa: E731
        d_k, d_v = (multiple * draw(1, 96 // multiple) for _ in range(2))
        n_q = draw(1, data.draw(st.sampled_from([5, 18, 70])))
        sizes = Sizes(draw(1, 3), draw(1, 9), n_q, draw(0, 300), d_k, d_v)
        size = draw(1, data.draw(st.sampled_from([6, 80])))
        rng = np.random.default_rng(draw(0, 1000))
        further = data.draw(st.sampled_from(FURTHER))
        problem = random_problem(rng, sizes, further, draw(1, 150), size, draw(0, size - 1))
        if data.draw(st.booleans()):
            problem = replace(problem, limits=random_limits(rng, problem))
        if data.draw(st.booleans()):
            problem = replace(problem, sinks=random_sinks(rng, problem))
        problem = replace(problem, softcap=data.draw(st.sampled_from([0.0, 0.3, 2.0, 30.0])))
        with using(isa_name):
            problem.check(isa_name)

    @pytest.mark.parametrize("further", FURTHER)
    def test_large_problems(self, rng: np.random.Generator, isa: str, further: str) -> None:
        """Several tiles; keys in blocks that are packed; several blocks in place; more heads than rows of a tile."""
        for sizes, n in [
            (Sizes(2, 3, 70, 100, 33, 50), 40),
            (Sizes(1, 2, 20, 4200, 32, 32), 40),
            (Sizes(2, 3, 2, 700, 64, 64), 300),
            (Sizes(2, 3, 1, 1500), 30),
            (Sizes(1, 71, 3, 60), 30),
            (Sizes(1, 16, 1, 4200), 30),
        ]:
            with case(sizes=sizes):
                problem = random_problem(rng, sizes, further, n, 16)
                sinks, limits = random_sinks(rng, problem), random_limits(rng, problem)
                replace(problem, sinks=sinks, softcap=1.5, limits=limits).check(isa)

    @pytest.mark.parametrize("further", FURTHER[1:])
    def test_numbers_of_further_rows(self, rng: np.random.Generator, isa: str, further: str) -> None:
        for n, n_q in product([1, 15, 16, 17, 31, 32, 33, 128, 255, 257, 700], [1, 3, 50]):
            with case(n=n, n_q=n_q):
                random_problem(rng, Sizes(n_q=n_q), further, n, 20, 7).check(isa, NO_SUMS, COLUMN_SUMS)

    @pytest.mark.parametrize("further", FURTHER[1:])
    def test_heads_of_further_rows(self, rng: np.random.Generator, isa: str, further: str) -> None:
        """Groups that do not divide the rows of a kernel's tile, or are more than these; and sizes of heads."""
        groups = [Sizes(group=group, n_q=10) for group in (1, 2, 3, 5, 7, 8, 16, 50, 71)]
        for sizes in [*groups, *(Sizes(d_k=d, d_v=257 - d) for d in (1, 31, 33, 64, 80, 127, 128, 256))]:
            with case(sizes=sizes):
                random_problem(rng, sizes, further, 30, 16, 3).check(isa, NO_SUMS, COLUMN_SUMS)

    @pytest.mark.parametrize("further", ["shared", "of queries"])
    def test_prefill(self, rng: np.random.Generator, isa: str, further: str) -> None:
        """A memory set, a chunk that is causal, and rows that are older than the chunk."""
        q, k, v, _ = random_inputs(rng, Sizes(8, 2, 200, 400, 128, 128))
        order = np.argsort(rng.random((8, 400)), axis=-1)
        chunk = np.broadcast_to(np.arange(400, 600), (8, 200))
        inputs = q, k, v, np.concatenate([np.sort(order[:, :64], axis=-1), chunk], axis=-1)[None]
        problem = Problem(inputs, np.maximum(np.arange(264) - 64, 0), limits=chunk[:1] - 100)
        if further == "shared":
            list_rows = np.argsort(rng.random((4, 400)), axis=-1)[:, :96]
            first = np.sort(rng.integers(-64, 64, (4, 96)) + np.arange(0, 256, 64)[:, None], axis=-1).clip(0)
            problem = replace(problem, lists=Lists(list_rows, first, np.minimum(first + 50, 200), 64))
        else:
            others = rng.permuted(np.repeat(order[:, None, 64:], 200, axis=1), axis=-1)
            problem = replace(problem, query_rows=np.sort(others[..., :128], axis=-1))
        problem.check(isa, NO_SUMS, COLUMN_SUMS)

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


def test_blocks_of_queries(rng: np.random.Generator, isa: str) -> None:
    q, k, v, rows = random_inputs(rng, Sizes(3, 2, 45, 52, n_block=2))
    more: dict[str, Any] = {"sinks": rng.standard_normal(6, dtype=np.float32), "softcap": 2.0}
    got = ops.attention(q, k, v, rows, **more)
    assert_close(got, reference(q, k, v, rows, **more), q, k, v, 1.0, isa)


def test_causal_is_a_list_of_first_queries(rng: np.random.Generator, isa: str) -> None:
    inputs = random_inputs(rng, Sizes(n_q=45, memory=20))
    first = np.maximum(np.arange(65) - 20, 0)
    assert_all_equal(ops.attention(*inputs, first=first), ops.attention(*inputs))


def limited_inputs(rng: np.random.Generator, sizes: Sizes) -> tuple[Inputs, Array]:
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

    def check(self, inputs: Inputs, limits: Array, isa: str, causal: bool = True) -> None:
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

    def test_that_exclude_nothing(self, rng: np.random.Generator, isa: str) -> None:
        """The same bits as without limits."""
        inputs, limits = limited_inputs(rng, Sizes(3, 2, 130, 75))
        want = ops.attention(*inputs)
        for limit in (inputs[1].shape[1] - 1, 2**31 - 1):
            assert_all_equal(ops.attention(*inputs, limits=np.full_like(limits, limit)), want)

    def test_equal_rows_count_together(self, rng: np.random.Generator, isa: str) -> None:
        (q, k, v, rows), limits = limited_inputs(rng, Sizes())
        self.check((q, k, v, rows // 9), limits // 9, isa)

    @pytest.mark.parametrize("further", FURTHER[1:])
    def test_beside_further_keys(self, rng: np.random.Generator, further: str, isa: str) -> None:
        problem = random_problem(rng, Sizes(n_q=70), further, 40, 16, 3)
        limited = replace(problem, limits=random_limits(rng, problem))
        assert_equal_but_sums(limited.attend(), problem.attend())


class TestFurtherKeys:
    """In lists that some queries share, or of each query, in the same softmax."""

    def test_sliding_window(self, rng: np.random.Generator, isa: str) -> None:
        """Rows that come and go, and come back: a query sees as many as any other, its list has more."""
        for window, n_alive in [(1, 1), (5, 40), (40, 300), (48, 700)]:
            with case(window=window, n_alive=n_alive):
                q, k, v, rows = random_inputs(rng, Sizes(2, 3, 150, 900))
                rows, starts = np.sort(rows, axis=-1), np.arange(5)[:, None] * 32 - 7
                first = np.arange(-window, 32).repeat(n_alive // window)
                list_rows = np.argsort(rng.random(k.shape[1]))[np.arange(len(first)) % (n_alive + 2)]
                list_first = (starts + first).clip(0, 150)
                lists = Lists(np.tile(list_rows, (5, 1)), list_first, starts + first + window, 32, 7)
                assert len(np.unique(list_rows)) < len(list_rows)
                assert len({len(lists.seen_by(0, i)) for i in range(150)}) == 1
                Problem((q, k, v, rows[..., :200]), np.arange(200) // 2, lists).check(isa, NO_SUMS, COLUMN_SUMS)

    def test_rows_of_a_head_are_ignored_for_it(self, rng: np.random.Generator, isa: str) -> None:
        """All for head 0, none for head 1, seen or not."""
        q, k, v, _ = random_problem(rng, Sizes(), "shared", 40, 16).inputs
        rows = np.stack([np.arange(70), np.arange(70, 140)])[None]
        first = np.where(np.arange(70) < 10, 0, 40)  # most rows are never seen
        lists = Lists(np.tile(np.arange(5, 45), (3, 1)), np.zeros((3, 40), int), np.full((3, 40), 40), 16)
        without = Problem((q, k, v, rows), first)
        problem = replace(without, lists=lists)
        problem.check(isa)
        got, plain = problem.attend(), without.attend()
        for x, y in ((got.o[:, :, :2], plain.o[:, :, :2]), (got.l[:, :2], plain.l[:, :2])):
            np.testing.assert_array_equal(x, y)
        assert np.all(got.l[:, 2:] * np.exp(got.m[:, 2:]) > plain.l[:, 2:] * np.exp(plain.m[:, 2:]))

    def test_padding_alone(self, rng: np.random.Generator, isa: str) -> None:
        """The same bits as without further keys; sums are added up in other runs."""
        problem = random_problem(rng, Sizes(3, 3, 90, 50), "shared", 40, 20, 7)
        assert problem.lists is not None
        plain = replace(problem, lists=None)
        want, rows = plain.attend(), problem.lists.rows
        # what no query of the list sees is not read either: the next list's first query
        ends = np.arange(1, 6)[:, None] * 20 - 7
        for padding, row in product((90, 2**31 - 1, ends), (-1, 2**31 - 1)):
            first = np.broadcast_to(padding, rows.shape)
            lists = Lists(np.full_like(rows, row), first, np.full_like(rows, 90), 20, 7)
            got = replace(plain, lists=lists).attend()
            assert_equal_but_sums(got, want)
            np.testing.assert_allclose(got.sums, want.sums, rtol=ROUNDING[isa])
        none = Lists(rows[:, :0], rows[:, :0], rows[:, :0], 20, 7)
        assert_all_equal(replace(plain, lists=none).attend(), want)
        assert_equal_but_sums(replace(plain, query_rows=np.full((3, 90, 20), -1)).attend(), want)

    def test_queries_that_see_nothing(self, rng: np.random.Generator, isa: str) -> None:
        """Queries 0 to 9 see nothing, 10 to 24 further keys only."""
        inputs = random_problem(rng, Sizes(), "shared", 20, 16, 3).inputs
        further = np.setdiff1d(np.arange(inputs[1].shape[1]), inputs[3])[:8]
        assert len(further) > 0
        begin, end = np.full((3, len(further)), 10), np.full((3, len(further)), 40)
        plain = Problem(inputs, np.full(inputs[3].shape[-1], 25))
        of_queries = random_problem(rng, Sizes(), "of queries", 20).query_rows
        assert of_queries is not None
        of_queries = np.where(np.isin(of_queries, inputs[3]), -1, of_queries)
        of_queries = np.take_along_axis(of_queries, np.argsort(of_queries < 0, axis=-1, kind="stable"), axis=-1)
        of_queries[:, :25] = -1
        of_queries[:, 10:25, 0] = further[0]
        for problem in (
            replace(plain, lists=Lists(np.tile(further, (3, 1)), begin, end, 16, 3)),
            replace(plain, query_rows=of_queries),
        ):
            got = problem.attend()
            assert not got.o[:, :10].any()
            assert not got.l[..., :10].any()
            assert np.all(got.m[..., :10] == -np.inf)
            assert np.all(got.l[..., 10:25] > 0)
            problem.check(isa)

    def test_seen_keys_are_few(self, rng: np.random.Generator, isa: str) -> None:
        """Padding, as of a decode step: none of it is read, and a query may see nothing at all."""
        for sizes, n_seen in product([Sizes(2, 3, 2, 300), Sizes(2, 3, 20, 4200)], (0, 1, 5, 129)):
            with case(sizes=sizes, n_seen=n_seen):
                q, k, v, rows = random_inputs(rng, sizes)
                problem = Problem((q, k, v, rows), np.where(np.arange(sizes.n_k) < n_seen, 1, sizes.n_q))
                problem.check(isa, NO_SUMS)
                got = problem.attend(NO_SUMS)
                assert not got.o[:, 0].any()
                k_bad, v_bad = np.full_like(k, np.nan), np.full_like(v, np.nan)
                for h in range(sizes.n_head_kv):
                    seen = rows[0, h, :n_seen]
                    k_bad[h, seen], v_bad[h, seen] = k[h, seen], v[h, seen]
                assert_all_equal(replace(problem, inputs=(q, k_bad, v_bad, rows)).attend(NO_SUMS), got)


class TestSameBits:
    def test_without_sums(self, rng: np.random.Generator, isa: str) -> None:
        for further in FURTHER:
            with case(further=further):
                problem = random_problem(rng, Sizes(n_q=70), further, 40, 16, 3)
                problem.inputs[0][0, 1, 3, 0] = np.inf  # the scalar path too
                assert_equal_but_sums(problem.attend(NO_SUMS), problem.attend())
                # few rows are read in place
                problem = random_problem(rng, Sizes(3, 3, 4, 500, 64, 64), further, 100)
                assert_equal_but_sums(problem.attend(NO_SUMS), problem.attend(QUERY_SUMS))

    def test_on_any_number_of_threads(self, rng: np.random.Generator, isa: str) -> None:
        for sizes in [Sizes(), Sizes(3, 5, 130, 70, 33, 100, 2), Sizes(1, 1, 1, 5)]:
            with case(sizes=sizes):
                inputs, limits = limited_inputs(rng, sizes)
                assert_same_bits_on_threads(partial(ops.attention, *inputs, limits=limits))

    @pytest.mark.parametrize("further", FURTHER)
    def test_of_problems_on_any_number_of_threads(self, rng: np.random.Generator, isa: str, further: str) -> None:
        for sizes, size, offset, n in [
            (Sizes(3, 5, 130, 70, 33, 100), 50, 49, 40),
            (Sizes(1, 2, 300), 300, 0, 40),  # slices of a list
            (Sizes(2, 3, 200), 1, 0, 40),  # more lists than items
            (Sizes(1, 1, 1, 5), 4, 2, 40),
            (Sizes(3, 3, 4, 700), 3, 1, 300),
            (Sizes(3, 3, 1, 5000), 4, 2, 40),
            (Sizes(2, 2, 30, 4200), 4, 2, 40),
        ]:
            problem = random_problem(rng, sizes, further, n, size, offset)
            problem = replace(problem, limits=random_limits(rng, problem))
            if n == 40:
                problem = replace(problem, sinks=random_sinks(rng, problem), softcap=3.0)
            for sums in ALL_SUMS:
                with case(sizes=sizes, sums=sums):
                    assert_same_bits_on_threads(partial(problem.attend, sums))

    def test_for_a_head_alone(self, rng: np.random.Generator, isa: str) -> None:
        """With so many keys, one thread packs one KV head at a time, two threads two and then one, others all three."""
        sizes = Sizes(3, 2, 5, 0, 256, 256)
        lists = random_problem(rng, sizes, "shared", 8, 2, 1).lists
        q, k, v, _ = random_inputs(rng, Sizes(3, 2, 5, 20, 256, 256))
        rows = np.sort(rng.integers(0, k.shape[1], (1, 3, 17_000)), axis=-1)
        rows[rows == 3] = 2  # some further row is new
        for problem in (
            Problem((q, k, v, rows), np.zeros(17_000, int), lists),
            Problem((q, k, v, rows), np.maximum(np.arange(17_000) - 16_995, 0), limits=rng.integers(0, 20, (1, 5))),
        ):
            alone = [
                replace(problem, inputs=(q[:, 2 * h : 2 * h + 2], k[[h]], v[[h]], rows[:, [h]])).attend()
                for h in range(3)
            ]
            want = assert_same_bits_on_threads(problem.attend)
            for got, parts, axis in zip(want, zip(*alone, strict=True), (2, 1, 1, 1), strict=True):
                np.testing.assert_array_equal(got, np.concatenate(parts, axis=axis))

    @pytest.mark.parametrize("further", FURTHER)
    def test_for_queries_alone(self, rng: np.random.Generator, isa: str, further: str) -> None:
        """A list's queries, one query, queries of two lists: as with all others."""
        problem = random_problem(rng, Sizes(n_q=150, group=3), further, 60, 40, 13)
        want = problem.attend()
        for start, end in ((0, 27), (27, 67), (147, 150), (0, 1), (77, 78), (149, 150), (50, 80), (20, 130)):
            got = problem.of_queries(start, end).attend()
            np.testing.assert_array_equal(got.o, want.o[:, start:end])
            np.testing.assert_array_equal(got.m, want.m[..., start:end])
            np.testing.assert_array_equal(got.l, want.l[..., start:end])

    def test_of_types(self, rng: np.random.Generator, isa: str) -> None:
        """K and V are widened to float32: as with these. Subnormal, infinite and negative numbers are among them."""
        ways = [(Sizes(2, 3, 1, 500, 64, 96), "none"), (Sizes(2, 3, 20, 4200, 64, 96), "none")]
        ways += [(Sizes(d_v=96, n_q=n_q), further) for n_q, further in product((2, 40), FURTHER[1:])]
        types = ["f16", "bf16", "q4_0", "q4_1", "q5_0", "q5_1", "q8_0"]
        for (sizes, further), type in product(ways, types):
            with case(sizes=sizes, further=further, type=type):
                problem = random_problem(rng, sizes, further, 150, 16, 3)
                q, k, v, rows = problem.inputs
                k[:, ::3] *= 1e-6
                v[:, ::5] *= 1e-7
                if further == "none" and type in ("f16", "bf16"):
                    v[1, rows[0, 1, 7], 3] = -np.inf
                stored, wide = stored_and_wide(k, v, type)
                name = None if type == "f16" else type
                for sums in (NO_SUMS, COLUMN_SUMS):
                    got = replace(problem, inputs=(q, *stored, rows)).attend(sums, type=name)
                    assert_all_equal(got, replace(problem, inputs=(q, *wide, rows)).attend(sums))
        check_sizes = random_inputs(rng, Sizes(d_k=80, d_v=96))
        stored, wide = stored_and_wide(*check_sizes[1:3], "f16")
        got = ops.attention(check_sizes[0], *stored, check_sizes[3])
        assert_all_equal(got, ops.attention(check_sizes[0], *wide, check_sizes[3]))

    def test_of_views(self, rng: np.random.Generator, isa: str) -> None:
        """Heads of a token stand together, as in a model; rows and lists are part of a larger array."""
        for further, n_q in product(FURTHER, (2, 40)):
            with case(further=further, n_q=n_q):
                problem = random_problem(rng, Sizes(n_q=n_q), further, 40, 16, 3)
                q, k, v, rows = problem.inputs
                view = replace(problem, inputs=(*as_in_a_model(q, k, v), part_of_more(rows)))
                if view.lists is not None:
                    x = view.lists
                    arrays = (part_of_more(array) for array in (x.rows, x.first, x.last))
                    view = replace(view, lists=Lists(*arrays, x.size, x.offset))
                for sums in (NO_SUMS, COLUMN_SUMS):
                    assert_all_equal(view.attend(sums), problem.attend(sums))
        q, k, v, rows = random_inputs(rng, Sizes(n_block=2))
        want = ops.attention(q, k, v, rows)
        got = ops.attention(q[:, ::2], k, np.concatenate([v, v], axis=-1)[..., : v.shape[-1]], rows)
        np.testing.assert_array_equal(got.o, want.o[:, :, ::2])
        np.testing.assert_array_equal(got.l, want.l[:, ::2])


def part_of_more(x: Array) -> Array:
    return np.concatenate([x, x], axis=-1).astype(np.int32)[..., : x.shape[-1]]


class TestOwnKeysInOrder:
    """Without rows, own keys are 0 to n_k - 1: the same bits as with a list of them."""

    @pytest.mark.parametrize("sums", ALL_SUMS)
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
                want = compute((q, *stored, rows), sums, type, first=first, limits=limits)
                got = compute((q, *stored, None), sums, type, first=first, limits=limits, n_k=n_k)  # type: ignore[arg-type]
                assert_all_equal(got, want)

    def test_with_further_keys(self, rng: np.random.Generator, isa: str) -> None:
        """Those that are among them are ignored."""
        for n_q in (3, 60):
            with case(n_q=n_q):
                problem = random_problem(rng, Sizes(n_q=n_q), "shared", 40, 16, 3)
                (q, k, v, _), x = problem.inputs, problem.lists
                assert x is not None
                params: dict[str, Any] = {"further_rows": x.rows, "further_queries": np.stack([x.first, x.last])}
                params |= {"list_size": x.size, "offset": x.offset}
                n_k = n_q + 30
                rows = np.broadcast_to(np.arange(n_k), (1, len(k), n_k))
                for sums in (NO_SUMS, COLUMN_SUMS):
                    want = compute((q, k, v, rows), sums=sums, **params)
                    got = compute((q, k, v, None), sums=sums, n_k=n_k, **params)  # type: ignore[arg-type]
                    assert_all_equal(got, want)

    def test_all_rows_by_default(self, rng: np.random.Generator) -> None:
        q, k, v, _ = random_inputs(rng, Sizes())
        rows = np.broadcast_to(np.arange(k.shape[1]), (1, len(k), k.shape[1]))
        assert_all_equal(ops.attention(q, k, v), ops.attention(q, k, v, rows))
