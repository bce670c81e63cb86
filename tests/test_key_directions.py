"""The kernels behind `key_diff`, against NumPy, with every CPU kernel that this machine has.

In whole models, test_h2o_scorers.py has them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from h2o_llama import _core
from kernels import ISAS, using

Array = NDArray[Any]


def turned_back(k: Array, angles: Array, is_interleaved: bool) -> Array:
    """Keys [n, n_head, d] without RoPE's rotations by angles [n, n_pairs]."""
    n_pairs = angles.shape[1]
    firsts = np.arange(n_pairs) * (2 if is_interleaved else 1)
    seconds = firsts + (1 if is_interleaved else n_pairs)
    cos, sin = np.cos(angles)[:, None], np.sin(angles)[:, None]
    res = k.copy()
    res[..., firsts] = k[..., firsts] * cos + k[..., seconds] * sin
    res[..., seconds] = k[..., seconds] * cos - k[..., firsts] * sin
    return res


def directions(k: Array, angles: Array, is_interleaved: bool) -> tuple[Array, Array]:
    angles = angles.astype(np.float32)
    return _core.ops_key_directions(k, np.cos(angles), np.sin(angles), is_interleaved)


@pytest.mark.parametrize("isa_name", ISAS)
@given(data=st.data())
@settings(max_examples=80, deadline=None, derandomize=True)
def test_any_sizes(isa_name: str, data: st.DataObject) -> None:
    def draw(low: int, high: int) -> int:
        return data.draw(st.integers(low, high))

    n, n_head, d = draw(1, 19), draw(1, 3), draw(1, 150)
    rng = np.random.default_rng(draw(0, 1000))
    angles = rng.uniform(0, 7, (n, draw(0, d // 2)))
    is_interleaved = data.draw(st.booleans())
    # Of the largest keys, squares do not fit 16 bits.
    k = rng.standard_normal((n, n_head, d)) * 10.0 ** rng.integers(-2, 4, (n, n_head, 1))
    k[rng.integers(n)] = 0
    k = np.ascontiguousarray(k, dtype=data.draw(st.sampled_from([np.float16, np.float32])))

    with using(isa_name):
        inv_norms, dots = directions(k, angles, is_interleaved)
    exact = turned_back(k.astype(np.float64), angles, is_interleaved)
    norms = np.linalg.norm(exact, axis=2)
    inverse = np.divide(1, norms, where=norms > 0, out=np.zeros_like(norms))
    np.testing.assert_allclose(inv_norms, inverse, rtol=1e-6)
    expected = np.einsum("nhd,hd->nh", exact, np.einsum("nhd,nh->hd", exact, inverse))
    assert np.all(np.abs(dots - expected) <= 2e-6 * n * norms)


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
@pytest.mark.parametrize("isa_name", ISAS)
def test_keys_that_are_no_numbers_spoil_their_head_only(isa_name: str, dtype: type) -> None:
    k = np.random.default_rng(0).standard_normal((9, 3, 40)).astype(dtype)
    angles = np.zeros((9, 12))
    with using(isa_name):
        of_numbers = directions(k, angles, False)
        k[4, 0, 33], k[7, 1, 2] = np.nan, np.inf
        spoilt = directions(k, angles, False)
    for got, expected in zip(spoilt, of_numbers, strict=True):
        np.testing.assert_array_equal(got[:, 2], expected[:, 2])
    inv_norms, dots = spoilt
    assert inv_norms[7, 1] == 0
    assert np.isnan(dots[4, 0])
    assert np.isnan(dots[7, 1])
