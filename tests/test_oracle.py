"""The oracle's parts by themselves. Needs no build of the library."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from compare import assert_all_equal, case
from oracle import empty_state, fuse, select_memory, softmax_state
from oracle.kv_rounding import CacheRounding, hadamard, round_bf16, round_q8_0
from selection_table import SELECTION_TABLE

F64 = np.float64


# --- softmax states


@given(st.integers(1, 5), st.lists(st.integers(0, 6), min_size=1, max_size=5), st.integers(0, 2**32 - 1))
@settings(deadline=None, derandomize=True)
def test_fused_blocks_equal_one_softmax(n_q: int, sizes: list[int], seed: int) -> None:
    rng = np.random.default_rng(seed)
    logits = rng.uniform(-100, 100, (n_q, sum(sizes)))
    v = rng.standard_normal((sum(sizes), 3))
    state = empty_state((n_q,), 3, F64)
    for rows in np.split(np.arange(sum(sizes)), np.cumsum(sizes)[:-1]):
        state = fuse(state, softmax_state(logits[:, rows], v[rows])[0])
    whole, _ = softmax_state(logits, v)
    for got, want in zip(state, whole, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-12, atol=1e-12)


def test_softmax_state_of_known_values() -> None:
    state, weights = softmax_state(np.log([[1.0, 3.0]]), np.array([[0.0, 4.0], [8.0, 0.0]]))
    np.testing.assert_allclose(weights, [[0.25, 0.75]])
    np.testing.assert_allclose(state.m, np.log([3.0]))
    np.testing.assert_allclose(state.l, [4 / 3])
    np.testing.assert_allclose(state.o, [[6.0, 1.0]])


def test_empty_block_is_neutral_and_two_empty_blocks_are_empty() -> None:
    state, _ = softmax_state(np.array([[5.0, -3.0]]), np.eye(2))
    nothing, weights = softmax_state(np.zeros((1, 0)), np.zeros((0, 2)))
    assert weights.shape == (1, 0)
    for fused in (fuse(state, nothing), fuse(nothing, state)):
        assert_all_equal(fused, state)
    fused = fuse(nothing, nothing)
    assert fused.m == -np.inf
    assert fused.l == 0
    assert not fused.o.any()


# --- rounding


def test_bf16_rounds_to_nearest_even() -> None:
    step = 2.0**-7
    x = np.array([1.0, 1 + step / 2, 1 + 3 * step / 2, 1 + step / 2 + 2**-20, -np.inf, np.nan])
    want = np.array([1.0, 1.0, 1 + 2 * step, 1 + step, -np.inf, np.nan])
    np.testing.assert_array_equal(round_bf16(x), want)


def test_q8_0_has_one_scale_per_32_values(rng: np.random.Generator) -> None:
    x = rng.standard_normal((3, 96)).astype(np.float32)
    x[:, 32:64] *= 1000
    x[0, 64:] = 0
    error = np.abs(round_q8_0(x) - x).reshape(3, 3, 32)
    largest = np.abs(x).reshape(3, 3, 32).max(axis=-1)
    # Half a step, and the F16 rounding of the scale.
    assert np.all(error.max(axis=-1) <= largest * (0.5 / 127 + 2.0**-11))
    assert not error[0, 2].any()


def test_cache_rotation_is_undone_when_read(rng: np.random.Generator) -> None:
    np.testing.assert_allclose(hadamard(64) @ hadamard(64), np.eye(64), atol=1e-12)
    x = rng.standard_normal((2, 5, 128))
    x[..., 7] = 50  # an outlier that plain Q8_0 would pay for
    for keys in (True, False):
        rounding = CacheRounding("q8_0", 128, keys=keys)
        rotated_error = np.abs(rounding(x) - x).mean()
        assert rotated_error < np.abs(round_q8_0(x) - x).mean() / 2
    assert CacheRounding("q8_0", 32, keys=True).rotation == 0
    assert CacheRounding("f16", 64, keys=True).rotation == 0


# --- layers


# --- selection


def test_selection_of_hand_computed_tables() -> None:
    for scores, previous, S, c, L, H, A, kept in SELECTION_TABLE:
        with case(scores=scores, previous=previous, S=S, c=c, L=L, H=H, A=A, kept=kept):
            memory = select_memory(
                np.array(scores, dtype=F64),
                np.array([*previous, -1], dtype=np.int32),
                c * S,
                (c + 1) * S,
                L=L,
                H=H,
                A=A,
            )
            assert memory.tolist() == kept
