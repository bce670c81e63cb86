"""Online-softmax state and fusion, as the library computes them, against one softmax in float64."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from compare import assert_all_equal, case
from h2o_llama import _ops as ops
from tolerances import FUSION


def assert_is_one_softmax(state: ops.SoftmaxState, logits: Any, v: Any) -> None:
    """Of logits [..., n_q, n_k] and v [..., n_k, d]."""
    x = logits.astype(np.float64)
    m = x.max(axis=-1)
    e = np.exp(x - m[..., None])
    l = e.sum(axis=-1)  # noqa: E741
    for name, got, want in zip("mlo", state, (m, l, e / l[..., None] @ v.astype(np.float64)), strict=True):
        assert got.dtype == np.float32
        np.testing.assert_allclose(got, want, rtol=FUSION, atol=FUSION, err_msg=name)


def blocks_of(logits: Any, v: Any, sizes: list[int]) -> list[ops.SoftmaxState]:
    """States of consecutive blocks of keys."""
    blocks = np.split(np.arange(sum(sizes)), np.cumsum(sizes)[:-1])
    return [ops.softmax_state(logits[..., block], v[..., block, :]) for block in blocks]


def random_block(rng: np.random.Generator, heads: int, n_q: int, n_k: int, d: int, bound: float = 100) -> Any:
    logits = rng.uniform(-bound, bound, (heads, n_q, n_k)).astype(np.float32)
    return logits, rng.standard_normal((heads, n_k, d)).astype(np.float32)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    heads=st.integers(1, 3),
    n_q=st.integers(1, 9),
    sizes=st.lists(st.integers(0, 40) | st.just(1), min_size=1, max_size=5).filter(any),
    d=st.integers(1, 70),
    bound=st.sampled_from([0.0, 1.0, 30.0, 100.0]),
    seed=st.integers(0, 2**32 - 1),
)
def test_fused_blocks_equal_one_softmax(
    heads: int, n_q: int, sizes: list[int], d: int, bound: float, seed: int
) -> None:
    """In any order."""
    rng = np.random.default_rng(seed)
    logits, v = random_block(rng, heads, n_q, sum(sizes), d, bound)
    states = blocks_of(logits, v, sizes)
    while len(states) > 1:
        a, b = (states.pop(int(rng.integers(len(states)))) for _ in range(2))
        states.append(ops.fuse(a, b))
    assert_is_one_softmax(states[0], logits, v)


def test_maxima_far_apart(rng: np.random.Generator) -> None:
    """Up to 200: exp underflows long before, and exp of the wrong sign would overflow."""
    for difference, larger_first in product([0, 1, 50, 80, 87, 88, 89, 100, 104, 200], [True, False]):
        with case(difference=difference, larger_first=larger_first):
            logits, v = random_block(rng, 2, 5, 24, 16, bound=1)
            logits[..., 12:] += difference / 2
            logits[..., :12] -= difference / 2
            if larger_first:
                logits, v = logits[..., ::-1], v[..., ::-1, :]
            assert_is_one_softmax(ops.fuse(*blocks_of(logits, v, [12, 12])), logits, v)


def test_empty_blocks_are_neutral(rng: np.random.Generator) -> None:
    """Without keys, or with all of them masked."""
    logits, v = random_block(rng, 2, 3, 7, 4)
    state = ops.softmax_state(logits, v)
    for nothing in (
        ops.softmax_state(logits[..., :0], v[..., :0, :]),
        ops.softmax_state(np.full_like(logits, -np.inf), v),
    ):
        for pair in ((state, nothing), (nothing, state)):
            assert_all_equal(ops.fuse(*pair), state)
        for empty in (nothing, ops.fuse(nothing, nothing)):
            assert_all_equal(empty, (np.full((2, 3), -np.inf), np.zeros((2, 3)), np.zeros((2, 3, 4))))


def test_one_element(rng: np.random.Generator) -> None:
    logits, v = random_block(rng, 2, 3, 1, 4)
    want = (logits[..., 0], np.ones((2, 3)), np.broadcast_to(v, (2, 3, 4)))
    assert_all_equal(ops.softmax_state(logits, v), want)
