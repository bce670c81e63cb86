"""The oracle's parts by themselves. Needs no build of the library."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import models
from compare import assert_all_equal, case, relative_error
from inputs import random_tokens
from models import FIXTURE_MODELS
from oracle import DenseOracle, GGUFModel, empty_state, fuse, select_memory, softmax_state
from oracle.hparams import Rope
from oracle.kv_rounding import CacheRounding, hadamard, round_bf16, round_q8_0, round_q8_k, round_to
from oracle.norm import rms_norm
from oracle.rope import rotated
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


def test_q8_k_has_one_scale_per_256_values_and_keeps_the_largest(rng: np.random.Generator) -> None:
    x = rng.standard_normal((3, 512)).astype(np.float32)
    x[0, 256:] = 0
    blocks, rounded = x.reshape(3, 2, 256), round_q8_k(x).reshape(3, 2, 256)
    largest = np.abs(blocks).argmax(axis=-1)[..., None]
    np.testing.assert_allclose(*(np.take_along_axis(a, largest, axis=-1) for a in (rounded, blocks)), rtol=1e-6)
    # Half a step.
    error = np.abs(rounded - blocks).max(axis=-1, keepdims=True)
    assert np.all(error <= np.abs(np.take_along_axis(blocks, largest, axis=-1)) * (0.5 / 127 + 1e-6))


def test_rounding_keeps_the_dtype_and_knows_its_types() -> None:
    x = np.linspace(-1, 1, 32)
    for name in ("f32", "F16", "bf16", "q8_0"):
        assert round_to(x, name).dtype == F64
    np.testing.assert_array_equal(round_to(x, "f16"), x.astype(np.float16))
    with pytest.raises(ValueError, match="q4_0"):
        round_to(x, "q4_0")


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


def test_rms_norm_and_rope_of_known_values() -> None:
    np.testing.assert_allclose(rms_norm(np.array([[3.0, 4.0]]), np.array([1.0, 2.0]), 0.0), [[3, 8]] / np.sqrt(12.5))
    x = np.array([1.0, 2.0, 3.0, 4.0]).reshape(1, 1, 4)
    positions = np.array([2], dtype=np.int32)
    c0, s0, c1, s1 = np.cos(2), np.sin(2), np.cos(0.02), np.sin(0.02)
    neox = [c0 - 3 * s0, 2 * c1 - 4 * s1, s0 + 3 * c0, 2 * s1 + 4 * c1]
    normal = [c0 - 2 * s0, s0 + 2 * c0, 3 * c1 - 4 * s1, 3 * s1 + 4 * c1]
    np.testing.assert_allclose(rotated(x, positions, Rope(1e4, 1.0), neox=True).ravel(), neox)
    np.testing.assert_allclose(rotated(x, positions, Rope(1e4, 1.0), neox=False).ravel(), normal)
    halved = rotated(x, positions * 2, Rope(1e4, 0.5), neox=True)
    np.testing.assert_allclose(halved.ravel(), neox)


def test_float32_agrees_with_float64(fixture_model: GGUFModel) -> None:
    tokens = np.array(random_tokens(48), dtype=np.int32)
    expected = DenseOracle(fixture_model, "f32", F64).logits(tokens)
    bound = {"F32": 1e-5, "F16": 2e-3, "Q8_0": 2e-2}[fixture_model.activation_type]
    assert relative_error(DenseOracle(fixture_model, "f32", np.float32).logits(tokens), expected) < bound
    assert 1 < np.abs(expected).max() < 40, "logits of a fixture model are of order 1 to 10"


def test_weights_are_read_as_written(tmp_path: Path) -> None:
    """The weight types share their values, so their dequantised matrices differ only by rounding."""
    matrices = {}
    for weight_type in models.WEIGHT_TYPES:
        spec = FIXTURE_MODELS[f"llama-gqa2-{weight_type}"]
        models.write_model(spec, tmp_path / spec.file_name)
        loaded = GGUFModel(tmp_path / spec.file_name)
        assert loaded.activation_type == weight_type.upper()
        matrices[weight_type] = loaded.layers[0].wo.weight(np.float32)
        assert matrices[weight_type].shape == (
            loaded.hparams.n_embd,
            loaded.hparams.n_head[0] * loaded.hparams.head_dim,
        )
        np.testing.assert_array_equal(
            loaded.tok_embd.rows(np.array([7, 3]), np.float32), loaded.tok_embd.weight(np.float32)[[7, 3]]
        )
    np.testing.assert_array_equal(matrices["f16"], round_to(matrices["f32"], "f16"))
    np.testing.assert_allclose(matrices["q8_0"], round_q8_0(matrices["f32"]), atol=1e-6)


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
