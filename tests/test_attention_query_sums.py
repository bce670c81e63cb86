"""The attention operator with sums of each query, where test_attention_logits.py does not reach."""

from __future__ import annotations

from functools import partial
from itertools import product

import numpy as np

from compare import assert_all_close, case
from test_attention_logits import NO_SUMS, QUERY_SUMS, Problem
from test_attention_op import Sizes, assert_close, assert_equal_but_sums, assert_same_bits_on_threads, spoil


def test_sizes(rng: np.random.Generator, isa: str) -> None:
    """Several runs of blocks; more heads in a group than rows in a tile; as many keys as are packed in blocks."""
    for sizes in [Sizes(2, 3, 1, 1500), Sizes(1, 71, 3, 60), Sizes(1, 16, 1, 4200)]:
        with case(sizes=sizes):
            problem = Problem(rng, sizes, "of the text", 30)
            problem.limits = rng.integers(-20, problem.inputs[1].shape[1] + 20, (1, sizes.n_q))
            got, want = problem.attend(QUERY_SUMS), problem.reference(QUERY_SUMS)
            assert_close(got, want, *problem.inputs[:3], 1.0, isa)


def test_same_bits_on_any_number_of_threads(rng: np.random.Generator, isa: str) -> None:
    for sizes in [Sizes(3, 3, 2, 700, 64, 64), Sizes(3, 3, 24, 300, 64, 64)]:
        with case(sizes=sizes):
            assert_same_bits_on_threads(partial(Problem(rng, sizes, "of heads", 200).attend, QUERY_SUMS))


def test_output_is_as_without_sums(rng: np.random.Generator, isa: str) -> None:
    """The same bits where few rows are read in place."""
    problem = Problem(rng, Sizes(3, 3, 4, 500, 64, 64), "of the text", 100)
    assert_equal_but_sums(problem.attend(QUERY_SUMS), problem.attend(NO_SUMS))


def test_not_finite(rng: np.random.Generator, isa: str) -> None:
    """NaN arrives where NumPy has it, and nowhere else: a row that is hidden from a query has no part in its sums."""
    for bad, where, n_q in product([np.nan, np.inf, -np.inf], ["q", "k", "v"], [3, 24]):
        with case(bad=bad, where=where, n_q=n_q):
            problem = Problem(rng, Sizes(2, 3, n_q, 200, 64, 64), "none", 1)
            q, k, v, rows = problem.inputs
            problem.first = np.maximum(np.arange(rows.shape[-1]) - 200, 0)
            spoil((q, k, v), where, bad, (0, 2, 1, 7), (1, rows[0, 1, 201], 7))
            got = problem.attend(QUERY_SUMS)
            assert_all_close(got, problem.reference(QUERY_SUMS), 1e-4)
            assert np.isfinite(got.sums[0]).all()
