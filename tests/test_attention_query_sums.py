"""The attention operator with sums of each query, against a float64 NumPy reference."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any, Literal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from compare import assert_all_close, case
from h2o_llama import ops
from kernels import ISAS, using
from test_attention_op import (
    Lists,
    Sizes,
    assert_close,
    assert_equal_but_sums,
    assert_same_bits_on_threads,
    compute,
    further_reference,
    list_inputs,
    spoil,
)
from test_attention_query_rows import query_inputs

Array = NDArray[Any]
Inputs = tuple[Array, Array, Array, Array]
Further = Literal["none", "of lists", "of queries"]

QUERY_SUMS = 2


class Case:
    """Arguments of the operator: for all queries, or by the reference for one after the other."""

    def __init__(self, rng: np.random.Generator, sizes: Sizes, further: Further, n: int, size: int = 4) -> None:
        self.lists: Lists | None = None
        self.query_rows: Array | None = None
        if further == "of lists":
            self.inputs, self.first, self.lists = list_inputs(rng, sizes, size, size // 2, n)
        else:
            self.inputs, self.first, query_rows = query_inputs(rng, sizes, n)
            self.query_rows = query_rows if further == "of queries" else None
        self.limits: Array | None = None

    def limit(self, rng: np.random.Generator) -> None:
        """Some queries count for no row, some for all."""
        self.limits = rng.integers(-20, self.inputs[1].shape[1] + 20, (1, self.inputs[0].shape[2]))

    def attend(self, sums: int = QUERY_SUMS, n_threads: int = 2) -> ops.Attention:
        more: dict[str, Any] = {} if self.lists is None else self.lists.params
        if self.query_rows is not None:
            more = {"further_rows": self.query_rows}
        limits = self.limits if sums else None
        return compute(self.inputs, sums=sums, n_threads=n_threads, first=self.first, limits=limits, **more)

    def further(self, kv: int, i: int) -> Array:
        if self.lists is not None:
            seen = self.lists.seen_by(i)
            return seen[~np.isin(seen, self.inputs[3][0, kv])]
        if self.query_rows is not None:
            return self.query_rows[kv, i][self.query_rows[kv, i] >= 0]
        return np.zeros(0, dtype=np.int64)

    def reference(self) -> ops.Attention:
        q, k, v, rows = self.inputs
        parts = []
        for i in range(q.shape[2]):
            limits = None if self.limits is None else self.limits[:, i : i + 1]
            inputs = (q[:, :, i : i + 1], k, v, rows)
            parts.append(further_reference(inputs, self.first > i, lambda kv, _, i=i: self.further(kv, i), limits))
        o, sums, m, l = zip(*parts, strict=True)  # noqa: E741
        axes = ((o, 1), (sums, 0), (m, 2), (l, 2))
        return ops.Attention(*(np.concatenate(x, axis=axis) for x, axis in axes))

    def check(self, isa: str) -> None:
        assert_close(self.attend(), self.reference(), *self.inputs[:3], 1.0, isa)


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
    problem = Case(rng, sizes, data.draw(st.sampled_from(["none", "of lists", "of queries"])), draw(1, 150), draw(1, 6))
    if data.draw(st.booleans()):
        problem.limit(rng)
    with using(isa_name):
        problem.check(isa_name)


def test_sizes(rng: np.random.Generator, isa: str) -> None:
    """Several runs of blocks; more heads in a group than rows in a tile; as many keys as are packed in blocks."""
    for sizes in [Sizes(2, 3, 1, 1500), Sizes(1, 71, 3, 60), Sizes(1, 16, 1, 4200)]:
        with case(sizes=sizes):
            problem = Case(rng, sizes, "of lists", 30)
            problem.limit(rng)
            problem.check(isa)


def test_same_bits_on_any_number_of_threads(rng: np.random.Generator, isa: str) -> None:
    for sizes in [Sizes(3, 3, 2, 700, 64, 64), Sizes(3, 3, 24, 300, 64, 64)]:
        with case(sizes=sizes):
            assert_same_bits_on_threads(Case(rng, sizes, "of lists", 200).attend)


def test_output_is_as_without_sums(rng: np.random.Generator, isa: str) -> None:
    """The same bits where few rows are read in place."""
    problem = Case(rng, Sizes(3, 3, 4, 500, 64, 64), "of lists", 100)
    assert_equal_but_sums(problem.attend(), problem.attend(sums=0))


def test_not_finite(rng: np.random.Generator, isa: str) -> None:
    """NaN arrives where NumPy has it, and nowhere else: a row that is hidden from a query has no part in its sums."""
    for bad, where, n_q in product([np.nan, np.inf, -np.inf], ["q", "k", "v"], [3, 24]):
        with case(bad=bad, where=where, n_q=n_q):
            problem = Case(rng, Sizes(2, 3, n_q, 200, 64, 64), "none", 1)
            q, k, v, rows = problem.inputs
            problem.first = np.maximum(np.arange(rows.shape[-1]) - 200, 0)
            spoil((q, k, v), where, bad, (0, 2, 1, 7), (1, rows[0, 1, 201], 7))
            got = problem.attend()
            assert_all_close(got, problem.reference(), 1e-4)
            assert np.isfinite(got.sums[0]).all()
