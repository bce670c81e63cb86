"""The attention operator with further rows of each query's own, against a float64 NumPy reference."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from compare import assert_all_close, assert_all_equal, case
from h2o_llama import ops
from kernels import ISAS, using
from test_attention_op import (
    Sizes,
    as_in_a_model,
    assert_close,
    assert_equal_but_sums,
    assert_same_bits_on_threads,
    compute,
    further_reference,
    spoil,
    stored_and_wide,
    type_argument,
)

Array = NDArray[Any]
Inputs = tuple[Array, Array, Array, Array]


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


def query_reference(inputs: Inputs, first: Array, query_rows: Array, limits: Array | None = None) -> ops.Attention:
    return further_reference(inputs, first, lambda kv, i: query_rows[kv, i][query_rows[kv, i] >= 0], limits)


def attend(
    inputs: Inputs, first: Array, query_rows: Array, limits: Array | None = None, n_threads: int = 2
) -> ops.Attention:
    return ops.attention(*inputs, first=first, further_rows=query_rows, limits=limits, n_threads=n_threads)


def attend_without_sums(
    inputs: Inputs, first: Array, query_rows: Array, type: str = "f32", n_threads: int = 2
) -> ops.Attention:
    """Few queries take another way than with column sums."""
    return compute(inputs, type, n_threads=n_threads, first=first, further_rows=query_rows)


def check(inputs: Inputs, first: Array, query_rows: Array, isa: str, limits: Array | None = None) -> None:
    """With and without column sums."""
    q, k, v, _ = inputs
    want = query_reference(inputs, first, query_rows, limits)
    assert_close(attend(inputs, first, query_rows, limits), want, q, k, v, 1.0, isa)
    without_sums = want._replace(sums=np.zeros(0))
    got = attend_without_sums(inputs, first, query_rows)
    assert_close(got, without_sums, q, k, v, 1.0, isa)


class TestEqualsNumpy:
    @pytest.mark.parametrize("isa_name", ISAS)
    @pytest.mark.parametrize("multiple", [1, 16])
    @given(data=st.data())
    @settings(max_examples=50, deadline=None, derandomize=True)
    def test_random_sizes(self, isa_name: str, multiple: int, data: st.DataObject) -> None:
        """Head sizes that are read in place, of which there are multiples of 16, and others."""
        draw: Callable[[int, int], int] = lambda low, high: data.draw(st.integers(low, high))  # noqa: E731
        d_k, d_v = (multiple * draw(1, 96 // multiple) for _ in range(2))
        sizes = Sizes(draw(1, 3), draw(1, 9), draw(1, 40), draw(0, 100), d_k, d_v)
        rng = np.random.default_rng(draw(0, 1000))
        inputs, first, query_rows = query_inputs(rng, sizes, draw(1, 90))
        limits = rng.integers(-20, inputs[1].shape[1] + 20, (1, sizes.n_q)) if data.draw(st.booleans()) else None
        with using(isa_name):
            check(inputs, first, query_rows, isa_name, limits)

    def test_numbers_of_rows(self, rng: np.random.Generator, isa: str) -> None:
        for n, n_q in product([1, 15, 16, 17, 128, 300], [1, 3, 30]):
            with case(n=n, n_q=n_q):
                check(*query_inputs(rng, Sizes(n_q=n_q), n), isa)

    def test_groups(self, rng: np.random.Generator, isa: str) -> None:
        """Some do not divide the rows of a kernel's tile, some are more than these."""
        for group in [1, 2, 5, 7, 8, 50, 71]:
            with case(group=group):
                check(*query_inputs(rng, Sizes(group=group, n_q=10), 30), isa)

    def test_prefill(self, rng: np.random.Generator, isa: str) -> None:
        """A memory set, a chunk that is causal, and rows that are older than the chunk."""
        sizes = Sizes(4, 2, 200, 60, 128, 128)
        (q, k, v, _), _, _ = query_inputs(rng, sizes, 400)
        order = np.argsort(rng.random((4, 400)), axis=-1)
        chunk = np.broadcast_to(np.arange(400, 600), (4, 200))
        rows = np.concatenate([np.sort(order[:, :60], axis=-1), chunk], axis=-1)[None]
        query_rows = np.sort(rng.permuted(np.repeat(order[:, None, 60:], 200, axis=1), axis=-1)[..., :128], axis=-1)
        first = np.maximum(np.arange(260) - 60, 0)
        check((q, k, v, rows), first, query_rows, isa, limits=chunk[:1] - 100)

    def test_padding_alone(self, rng: np.random.Generator, isa: str) -> None:
        """The same bits as without further keys."""
        inputs, first, query_rows = query_inputs(rng, Sizes(3, 3, 90, 50), 20)
        want = ops.attention(*inputs, first=first)
        got = attend(inputs, first, np.full_like(query_rows, -1))
        assert_equal_but_sums(got, want)

    def test_queries_that_see_nothing(self, rng: np.random.Generator, isa: str) -> None:
        """Queries 0 to 9 see nothing, 10 to 24 rows of their own only."""
        inputs, _, query_rows = query_inputs(rng, Sizes(), 20)
        query_rows[:, :10] = -1
        query_rows[:, 10:25, 0] = np.setdiff1d(np.arange(130), inputs[3])[0]
        query_rows[:, 10:25, 1:] = -1
        first = np.full(70, 25)
        got = attend(inputs, first, query_rows)
        assert not got.o[:, :10].any()
        assert not got.l[..., :10].any()
        assert np.all(got.m[..., :10] == -np.inf)
        np.testing.assert_array_equal(got.l[..., 10:25], 1)
        check(inputs, first, query_rows, isa)

    def test_types(self, rng: np.random.Generator, isa: str) -> None:
        """K and V are widened to float32: the same bits."""
        for n_q, type in product([2, 40], ["f16", "bf16", "q4_0", "q8_0"]):
            with case(n_q=n_q, type=type):
                (q, k, v, rows), first, query_rows = query_inputs(rng, Sizes(d_v=96, n_q=n_q), 150)
                stored, wide = stored_and_wide(k, v, type)
                more: dict[str, Any] = {"first": first, "further_rows": query_rows}
                got = ops.attention(q, *stored, rows, **type_argument(type), **more)
                assert_all_equal(got, ops.attention(q, *wide, rows, **more))
                got = attend_without_sums((q, *stored, rows), first, query_rows, type)
                assert_all_equal(got, attend_without_sums((q, *wide, rows), first, query_rows))

    def test_views(self, rng: np.random.Generator, isa: str) -> None:
        """The heads of a token stand together, as in a model."""
        (q, k, v, rows), first, query_rows = query_inputs(rng, Sizes(), 40)
        want = attend((q, k, v, rows), first, query_rows)
        assert_all_equal(attend((*as_in_a_model(q, k, v), rows), first, query_rows), want)


class TestSameBits:
    SIZES = (Sizes(n_q=70), Sizes(3, 5, 130, 70, 33, 100), Sizes(1, 2, 300), Sizes(1, 1, 1, 5), Sizes(2, 3, 4, 700))

    def test_on_any_number_of_threads(self, rng: np.random.Generator, isa: str) -> None:
        for sizes in self.SIZES:
            with case(sizes=sizes):
                inputs, first, query_rows = query_inputs(rng, sizes, 40)
                limits = rng.integers(-20, inputs[1].shape[1] + 20, (1, sizes.n_q))
                assert_same_bits_on_threads(partial(attend, inputs, first, query_rows, limits))
                assert_same_bits_on_threads(partial(attend_without_sums, inputs, first, query_rows))

    def test_for_queries_alone(self, rng: np.random.Generator, isa: str) -> None:
        """One query, or some: as with all others."""
        (q, k, v, rows), first, query_rows = query_inputs(rng, Sizes(n_q=150, group=3), 60)
        want = attend((q, k, v, rows), first, query_rows)
        for start, end in ((0, 1), (77, 78), (149, 150), (50, 80), (20, 130)):
            first_alone = (first - start).clip(0, end - start)
            got = attend((q[:, :, start:end], k, v, rows), first_alone, query_rows[:, start:end])
            np.testing.assert_array_equal(got.o, want.o[:, start:end])
            np.testing.assert_array_equal(got.m, want.m[..., start:end])
            np.testing.assert_array_equal(got.l, want.l[..., start:end])

    def test_with_limits(self, rng: np.random.Generator, isa: str) -> None:
        inputs, first, query_rows = query_inputs(rng, Sizes(n_q=70), 40)
        limits = rng.integers(-20, inputs[1].shape[1] + 20, (1, 70))
        assert_equal_but_sums(attend(inputs, first, query_rows, limits), attend(inputs, first, query_rows))


def seen_by_one_query(query_rows: Array, row: int, head: int) -> Array:
    """The same lists, but that query 2 of this head sees the row, and no other query does."""
    kept = np.where(query_rows == row, -1, query_rows)
    kept = np.take_along_axis(kept, np.argsort(kept < 0, axis=-1, kind="stable"), axis=-1)
    kept[head, 2, 0] = row
    return kept


class TestExtremes:
    def test_not_finite(self, rng: np.random.Generator, isa: str) -> None:
        """It arrives at the one query of the one KV head that sees it, and nowhere else; sums count once."""
        for n_q, bad, where in product([3, 40], [np.nan, np.inf, -np.inf], ["q", "k", "v"]):
            with case(n_q=n_q, bad=bad, where=where):
                (q, k, v, rows), first, query_rows = query_inputs(rng, Sizes(n_q=n_q, group=3), 30)
                row = np.setdiff1d(np.arange(k.shape[1]), rows[0, 1])[0]
                query_rows = seen_by_one_query(query_rows, row, head=1)
                spoil((q, k, v), where, bad, (0, slice(3, 6), 2, 7), (1, row, 7))
                want = query_reference((q, k, v, rows), first, query_rows)
                got = attend((q, k, v, rows), first, query_rows)
                without_sums = attend_without_sums((q, k, v, rows), first, query_rows)
                assert_all_close(got, want, 1e-4)
                assert_all_close(without_sums[::2], want[::2], 1e-4)
                assert where == "k" or not np.isfinite(got.o[:, 2, 3:]).all()
                got.o[:, 2, 3:] = 0
                assert np.isfinite(got.o).all()

    def test_large_numbers(self, rng: np.random.Generator, isa: str) -> None:
        """Sums that overflow float32: of products of a key, and of a value next to the largest number."""
        for n_q in [3, 40]:
            with case(n_q=n_q):
                (q, k, v, rows), first, query_rows = query_inputs(rng, Sizes(n_q=n_q), 30)
                row = np.setdiff1d(np.arange(k.shape[1]), rows[0, 0])[0]
                query_rows = seen_by_one_query(query_rows, row, head=0)
                k[0, row] = 3e37 * np.sign(q[0, 0, 2])  # the largest logit of one head
                v[0, row] = 3e38
                got, want = (
                    attend((q, k, v, rows), first, query_rows),
                    query_reference((q, k, v, rows), first, query_rows),
                )
                assert want.m[0, 0, 2] > 1e38
                np.testing.assert_allclose(got.o[0, 2, 0], 3e38, rtol=1e-5)
                np.testing.assert_allclose(np.delete(got.o, 2, axis=1), np.delete(want.o, 2, axis=1), rtol=0, atol=1e-4)
                np.testing.assert_allclose(got.sums[0, 1], want.sums[0, 1], rtol=1e-4, atol=1e-5)

    def test_large_logits(self, rng: np.random.Generator, isa: str) -> None:
        """The largest logit is among the first keys or a query's own: the others' weights become 0."""
        for magnitude in [1e4, 1e20]:
            with case(magnitude=magnitude):
                inputs, first, query_rows = query_inputs(rng, Sizes(), 30)
                q, k, v, _ = inputs
                q[...], k[...] = 0, 0
                q[..., 0] = rng.choice([-1.0, -0.5, 0.5, 1.0], q.shape[:-1])
                k[..., 0] = 2.0 ** np.round(np.log2(magnitude)) * (
                    rng.integers(-8, 9, k.shape[:-1]) / 8
                )  # ties are exact
                got, want = attend(inputs, first, query_rows), query_reference(inputs, first, query_rows)
                np.testing.assert_array_equal(got.m, want.m)
                np.testing.assert_allclose(got.l, want.l, rtol=1e-6)
                np.testing.assert_allclose(got.o, want.o, rtol=0, atol=1e-5 * np.abs(v).max())
                np.testing.assert_allclose(got.sums, want.sums, rtol=1e-5, atol=1e-30)


Q = np.zeros((2, 4, 3, 8), dtype=np.float32)
K = np.zeros((2, 10, 8), dtype=np.float32)
ROWS = np.tile(np.arange(5), (2, 2, 1))
QUERY_ROWS = np.tile([5, 6, 9, -1], (2, 3, 1))


def call(further_rows: Any, q: Array = Q[:1], rows: Array = ROWS[:1], **kwargs: Any) -> ops.Attention:
    return ops.attention(q, K, K, rows, further_rows=further_rows, **kwargs)


def test_good_arguments() -> None:
    """What test_bad_arguments spoils."""
    call(QUERY_ROWS)
    call(QUERY_ROWS[..., :0])
    ops.attention(Q[0], K, K, ROWS[0], further_rows=QUERY_ROWS)


def test_bad_arguments() -> None:
    for arguments, message in [
        ({"further_rows": QUERY_ROWS, "q": Q, "rows": ROWS}, "further_rows are for one block of queries, got 2"),
        ({"further_rows": QUERY_ROWS * 1.0}, "further_rows must be integers, got float64"),
        ({"further_rows": QUERY_ROWS[0, 0]}, "further_rows must have 2 to 3 axes, got 1"),
        ({"further_rows": QUERY_ROWS[:1]}, r"further_rows must be of shape \[2, 3, 'n'\], got \[1, 3, 4\]"),
        ({"further_rows": QUERY_ROWS[:, :2]}, r"further_rows must be of shape \[2, 3, 'n'\], got \[2, 2, 4\]"),
        ({"further_rows": QUERY_ROWS + 1}, "further_rows must be from 0 to 9, or -1, got 0 to 10"),
        ({"further_rows": QUERY_ROWS - 1}, "further_rows must be from 0 to 9, or -1, got -2 to 8"),
        ({"further_rows": QUERY_ROWS[..., ::-1]}, "further_rows must have -1 at the end of a list only"),
        ({"further_rows": QUERY_ROWS[..., [0, 1, 0]]}, "further_rows of a list must differ from each other"),
        ({"further_rows": QUERY_ROWS - (QUERY_ROWS == 5)}, "further_rows must differ from the head's rows, got some"),
    ]:
        with case(message=message), pytest.raises(ValueError, match=rf"^\[attention\] {message}"):
            call(**arguments)
