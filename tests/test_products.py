"""H2O's products with Q8_0 weights, against upstream's and NumPy, with every CPU kernel that this machine has.

In whole models, the oracle's tests use them: some of these models have such weights.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gguf
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from compare import case
from h2o_llama import _core
from kernels import ALL_ISAS, using

Array = NDArray[Any]

Q8_0 = gguf.GGMLQuantizationType.Q8_0

every_isa = pytest.mark.parametrize("isa", ALL_ISAS, indirect=True)


def numbers(rng: np.random.Generator, n_rows: int, n: int) -> Array:
    return rng.standard_normal((n_rows, n), dtype=np.float32)


def weights_of(rng: np.random.Generator, n_rows: int, n: int) -> Array:
    """Bytes of Q8_0: -128 to 127, as a file may hold, with scales of all sizes."""
    blocks = rng.integers(0, 256, (n_rows, n // 32, 34), dtype=np.uint8)
    blocks[..., :2] = np.float16(rng.standard_normal((n_rows, n // 32, 1))).view(np.uint8)
    return blocks.reshape(n_rows, -1)


def product(weights: Array, x: Array, n_threads: int = 1) -> Array:
    return _core.ops_product(weights, x, True, n_threads)


def sizes_of_terms(weights: Array, x: Array) -> Array:
    """What the rounding of a sum is in proportion to."""
    return np.abs(x) @ np.abs(gguf.quants.dequantize(weights, Q8_0)).T


@pytest.mark.parametrize("isa_name", ALL_ISAS)
@given(data=st.data())
@settings(max_examples=60, deadline=None, derandomize=True)
def test_any_sizes(isa_name: str, data: st.DataObject) -> None:
    draw: Callable[[int, int], int] = lambda low, high: data.draw(st.integers(low, high))  # noqa: E731
    rng = np.random.default_rng(draw(0, 1000))
    n = 32 * draw(1, 150)  # more than a slice of blocks, too
    weights, x = weights_of(rng, draw(1, 70), n), numbers(rng, draw(1, 70), n)
    with using(isa_name):
        got = product(weights, x, n_threads=draw(1, 3))
        upstream = _core.ops_product(weights, x, False, 1)
    assert np.all(np.abs(got - upstream) <= 1e-6 * sizes_of_terms(weights, x))


@every_isa
def test_numpy(rng: np.random.Generator, isa: str) -> None:
    """Columns that are in Q8_0 as they are: 127 is the largest number of each block, and scales are powers of two."""
    weights = weights_of(rng, 203, 4800)
    expected_weights = gguf.quants.dequantize(weights, Q8_0).astype(np.float64)
    for n_columns in (1, 2, 4, 7, 100):
        with case(n_columns=n_columns):
            x = rng.integers(-127, 128, (n_columns, 150, 32)).astype(np.float32)
            x[..., 5] = 127
            x *= rng.choice(np.float32([0.25, 1, 8]), (n_columns, 150, 1))
            x = x.reshape(n_columns, -1)
            error = np.abs(product(weights, x, n_threads=2) - x @ expected_weights.T)
            assert np.all(error <= 1e-6 * sizes_of_terms(weights, x))


@every_isa
def test_a_column_does_not_depend_on_others_or_threads(rng: np.random.Generator, isa: str) -> None:
    weights, x = weights_of(rng, 75, 2400), numbers(rng, 70, 2400)
    whole = product(weights, x, n_threads=3)
    for start, end in ((0, 8), (5, 17), (30, 70)):
        np.testing.assert_array_equal(product(weights, x[start:end]), whole[start:end])


@every_isa
def test_what_is_not_finite_stays_in_its_column_or_row(rng: np.random.Generator, isa: str) -> None:
    weights, x = weights_of(rng, 21, 128), numbers(rng, 19, 128)
    expected = product(weights, x)
    odd_x, odd_weights = x.copy(), weights.copy()
    odd_x[3, 70], odd_x[18, 127] = np.inf, 1e30  # whose scale is no F16
    odd_weights[5, 34:36] = np.float16([np.nan]).view(np.uint8)
    odd_weights[20, :2] = np.float16([np.inf]).view(np.uint8)
    for i, got in ((0, product(weights, odd_x).T), (1, product(odd_weights, x))):
        odd = [[3, 18], [5, 20]][i]
        rest = np.setdiff1d(np.arange(got.shape[1]), odd)
        assert not np.isfinite(got[:, odd]).any()
        np.testing.assert_array_equal(got[:, rest], (expected.T if i == 0 else expected)[:, rest])
