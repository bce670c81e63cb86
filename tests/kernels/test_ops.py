"""Rows' maxima on the CPU, against NumPy. All else of composed attention: test_h2o_oracle."""

from typing import Any

import numpy as np
import pytest

from compare import case
from h2o_llama import _core


def max_rows(a: Any, n_threads: int = 1) -> Any:
    return _core.ops_max_rows(a, "f32", "cpu", n_threads)


@pytest.mark.parametrize("n_threads", [1, 3, 8])
def test_equal_numpy(rng: np.random.Generator, n_threads: int) -> None:
    for shape in [(31, 1), (1, 64), (3, 1000), (5, 3, 129), (2, 3, 5, 67)]:
        with case(shape=shape):
            a = (100 * rng.standard_normal(shape)).astype(np.float32)
            np.testing.assert_array_equal(max_rows(a, n_threads), a.max(axis=-1, keepdims=True))


def test_maximum_nan_and_infinities_at_every_place(rng: np.random.Generator) -> None:
    for n in (1, 16, 65, 300):
        with case(n=n):
            a = np.full((n, n), -2, dtype=np.float32)
            np.fill_diagonal(a, -1)
            np.testing.assert_array_equal(max_rows(a), np.full((n, 1), -1))
            np.fill_diagonal(a, np.nan)
            assert np.isnan(max_rows(a)).all()
            a = rng.standard_normal((4, n)).astype(np.float32)
            a[0] = a[1, n // 2 :] = -np.inf
            a[2, n // 2] = np.inf
            a[3] = np.finfo(np.float32).min
            np.testing.assert_array_equal(max_rows(a), a.max(axis=-1, keepdims=True))
