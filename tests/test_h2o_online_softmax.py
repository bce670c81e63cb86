"""Online-softmax state and fusion, as the library computes them, against one softmax in float64."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

import h2o_llama
from compare import assert_all_equal, case
from tolerances import FUSION

ops = h2o_llama.ops


def one_softmax(logits: Any, v: Any) -> tuple[Any, Any, Any]:
    """Reference state (m, l, o) in float64, of logits [..., n_q, n_k] and v [..., n_k, d]."""
    x = logits.astype(np.float64)
    m = x.max(axis=-1)
    exponentials = np.exp(x - m[..., None])
    return m, exponentials.sum(axis=-1), exponentials / exponentials.sum(axis=-1, keepdims=True) @ v.astype(np.float64)


def assert_is_one_softmax(state: Any, logits: Any, v: Any) -> None:
    for name, got, want in zip("mlo", state, one_softmax(logits, v), strict=True):
        got = np.asarray(got)
        assert got.dtype == np.float32
        assert got.shape == want.shape
        np.testing.assert_allclose(got, want, rtol=FUSION, atol=FUSION, err_msg=name)


def fused(logits: Any, v: Any, sizes: list[int]) -> Any:
    """State of consecutive blocks of keys of these sizes, fused from left to right."""
    state = None
    for block in np.split(np.arange(sum(sizes)), np.cumsum(sizes)[:-1]):
        part = ops.softmax_state(np.ascontiguousarray(logits[..., block]), np.ascontiguousarray(v[..., block, :]))
        state = part if state is None else ops.fuse(state, part)
    return state


def random_block(rng: np.random.Generator, heads: int, n_q: int, n_k: int, d: int, bound: float = 100) -> Any:
    logits = rng.uniform(-bound, bound, (heads, n_q, n_k)).astype(np.float32)
    return logits, rng.standard_normal((heads, n_k, d)).astype(np.float32)


@settings(max_examples=25, deadline=None, derandomize=True)
@given(
    heads=st.integers(1, 3),
    n_q=st.integers(1, 9),
    sizes=st.lists(st.integers(0, 40), min_size=1, max_size=4).filter(any),
    d=st.integers(1, 70),
    bound=st.sampled_from([0.0, 1.0, 30.0, 100.0]),
    seed=st.integers(0, 2**32 - 1),
)
def test_fused_blocks_equal_one_softmax(
    heads: int, n_q: int, sizes: list[int], d: int, bound: float, seed: int
) -> None:
    logits, v = random_block(np.random.default_rng(seed), heads, n_q, sum(sizes), d, bound)
    assert_is_one_softmax(fused(logits, v, sizes), logits, v)


def test_maxima_far_apart(rng: np.random.Generator) -> None:
    """Up to 200: exp underflows long before, and exp of the wrong sign would overflow."""
    for difference, larger_first in product([0, 1, 50, 80, 87, 88, 89, 100, 104, 200], [True, False]):
        with case(difference=difference, larger_first=larger_first):
            logits, v = random_block(rng, 2, 5, 24, 16, bound=1)
            logits[..., 12:] += difference / 2
            logits[..., :12] -= difference / 2
            if larger_first:
                logits, v = logits[..., ::-1], v[..., ::-1, :]
            assert_is_one_softmax(fused(logits, v, [12, 12]), logits, v)


def test_large_logits_are_not_clamped(rng: np.random.Generator) -> None:
    """Two logits of 90 and 100 are 10 apart, wherever a clamp would have put them."""
    logits = np.array([[[90.0, 100.0, -100.0, -90.0]]], dtype=np.float32)
    v = rng.standard_normal((1, 4, 8)).astype(np.float32)
    assert_is_one_softmax(fused(logits, v, [1, 3]), logits, v)
    assert_is_one_softmax(fused(logits - 100, v, [2, 2]), logits - 100, v)


def test_empty_block_is_neutral(rng: np.random.Generator) -> None:
    logits, v = random_block(rng, 2, 3, 7, 4)
    state = ops.softmax_state(logits, v)
    nothing = ops.softmax_state(logits[..., :0], v[..., :0, :])
    m, l, o = (np.asarray(x) for x in nothing)  # noqa: E741
    assert m.shape == l.shape == (2, 3)
    assert o.shape == (2, 3, 4)
    assert np.all(np.isneginf(m))
    assert not l.any()
    assert not o.any()
    for pair in ((state, nothing), (nothing, state)):
        assert_all_equal(ops.fuse(*pair), state)


def test_two_empty_blocks_are_empty(rng: np.random.Generator) -> None:
    logits, v = random_block(rng, 1, 3, 0, 4)
    nothing = ops.softmax_state(logits, v)
    m, l, o = ops.fuse(nothing, nothing)  # noqa: E741
    assert np.all(np.isneginf(m))
    assert not np.asarray(l).any()
    assert not np.asarray(o).any()


def test_one_element_blocks(rng: np.random.Generator) -> None:
    logits, v = random_block(rng, 2, 3, 6, 4)
    state = ops.softmax_state(logits[..., :1], v[..., :1, :])
    np.testing.assert_array_equal(state[0], logits[..., 0])
    np.testing.assert_array_equal(state[1], np.ones((2, 3)))
    np.testing.assert_array_equal(state[2], np.broadcast_to(v[..., :1, :], (2, 3, 4)))
    assert_is_one_softmax(fused(logits, v, [1] * 6), logits, v)


def test_fusion_is_commutative_and_associative(rng: np.random.Generator) -> None:
    logits, v = random_block(rng, 2, 4, 30, 8)
    a, b, c = (ops.softmax_state(logits[..., block], v[..., block, :]) for block in np.split(np.arange(30), [7, 8]))
    orders = [
        ops.fuse(ops.fuse(a, b), c),
        ops.fuse(a, ops.fuse(b, c)),
        ops.fuse(ops.fuse(c, a), b),
    ]
    for state in orders:
        assert_is_one_softmax(state, logits, v)


def test_block_with_all_keys_masked_is_empty(rng: np.random.Generator) -> None:
    logits, v = random_block(rng, 1, 2, 5, 4)
    masked = np.full_like(logits, -np.inf)
    state = ops.softmax_state(logits, v)
    assert_all_equal(ops.fuse(state, ops.softmax_state(masked, v)), state)


def test_leading_axes_may_be_missing_or_many(rng: np.random.Generator) -> None:
    logits, v = random_block(rng, 6, 3, 5, 4)
    assert_is_one_softmax(ops.softmax_state(logits[0], v[0]), logits[0], v[0])
    many = logits.reshape(2, 3, 3, 5), v.reshape(2, 3, 5, 4)
    assert_is_one_softmax(ops.softmax_state(*many), *many)
