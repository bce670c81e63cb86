"""The oracle's schedules by themselves: what the library is compared with must be right first. Needs no build of it.

single_pass is compared with a loop over queries, heads and keys in test_oracle_lookup.py, with lookups and without.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import models
from compare import assert_memory_is_well_formed, relative_error
from inputs import ModelByName, chunk_ends, random_tokens, split
from oracle import SCHEDULES, DenseOracle, GGUFModel, OracleSequence, read_model
from oracle.arrays import Array
from pairwise import MODELS

F64 = np.float64


def sequence(schedule: str, model: GGUFModel, **kwargs: Any) -> OracleSequence:
    defaults: dict[str, Any] = {"S": 16, "L": 4, "H": 4, "dtype": F64, "kv_type": "f32"}
    return SCHEDULES[schedule](model, **(defaults | kwargs))


def dense_logits(model: GGUFModel, tokens: list[int]) -> Array:
    return DenseOracle(model, "f32", F64).logits(np.array(tokens))


# --- both schedules


@pytest.mark.parametrize("name", [name for name in MODELS if name in models.FIXTURE_MODELS])
def test_models_have_distinct_heavy_hitters(schedule: str, model_by_name: ModelByName, name: str) -> None:
    """Otherwise tests of the selection on these models would prove nothing."""
    model = read_model(model_by_name(name))
    oracle = sequence(schedule, model, S=64, L=8, H=8)
    oracle.eval(random_tokens(64, models.N_VOCAB))
    for il in model.hparams.attention_layers:
        scores = oracle.scores(il)
        assert np.all(scores.max(axis=1) > 5 * np.median(scores, axis=1))


def test_one_chunk_is_dense_attention(schedule: str, fixture_model: GGUFModel) -> None:
    tokens = random_tokens(16, models.N_VOCAB)
    oracle = sequence(schedule, fixture_model)
    oracle.eval(tokens)
    assert relative_error(oracle.logits, dense_logits(fixture_model, tokens)) < 1e-12
    assert not oracle.history
    assert np.all(oracle.memory_indices(0) == -1)


def test_memory_changes_the_logits(schedule: str, fixture_model: GGUFModel) -> None:
    """The bounds in tolerances.py are worth something only if H2O's effect is far above them."""
    tokens = random_tokens(32, models.N_VOCAB)
    logits = []
    for H in (0, 12):
        oracle = sequence(schedule, fixture_model, L=1, H=H)
        oracle.eval(tokens)
        logits.append(oracle.logits[16:])
    assert relative_error(*logits) > 0.05


def test_the_schedules_differ(fixture_model: GGUFModel) -> None:
    """From the second chunk and the second layer on: a test that takes one for the other must fail."""
    logits = []
    for schedule in SCHEDULES:
        oracle = sequence(schedule, fixture_model)
        oracle.eval(random_tokens(48, models.N_VOCAB))
        logits.append(oracle.logits)
    assert relative_error(logits[0][:16], logits[1][:16]) < 1e-12
    assert relative_error(logits[0][16:], logits[1][16:]) > 0.05


@given(
    sizes=st.lists(st.integers(2, 25), min_size=2, max_size=6),
    S=st.integers(4, 20),
    L=st.integers(0, 4),
    H=st.integers(1, 10),
    A=st.integers(0, 3),
    seed=st.integers(0, 1000),
)
@settings(deadline=None, derandomize=True, max_examples=25)
def test_split_invariance_and_index_properties(
    schedule: str, model_by_name: ModelByName, sizes: list[int], S: int, L: int, H: int, A: int, seed: int
) -> None:
    model = read_model(model_by_name("qwen3-gqa4-f32"))
    tokens = random_tokens(sum(sizes), models.N_VOCAB, seed)
    whole = sequence(schedule, model, S=S, L=L, H=H, A=A)
    whole.eval(tokens)
    parts = sequence(schedule, model, S=S, L=L, H=H, A=A)
    logits = []
    for part in split(tokens, sizes):
        parts.eval(part)
        logits.append(parts.logits)

    assert relative_error(np.concatenate(logits), whole.logits) < 1e-10
    assert parts.chunk_index == whole.chunk_index == -(-len(tokens) // S)
    ends = chunk_ends(len(tokens), S)
    assert len(whole.history) == len(parts.history) == len(ends)
    for end, a, b in zip(ends, whole.history, parts.history, strict=True):
        for il in model.hparams.attention_layers:
            np.testing.assert_array_equal(a[il], b[il])
            assert_memory_is_well_formed(a[il], end=int(end), L=L, H=H, A=A)


def test_decode_is_dense_and_leaves_scores_alone(schedule: str, fixture_model: GGUFModel) -> None:
    """In chunk 0 the cache is a dense one; and a decode step that begins a chunk builds the memory set before it."""
    tokens = random_tokens(20, models.N_VOCAB)
    oracle = sequence(schedule, fixture_model)
    oracle.eval(tokens[:10])
    before = {il: oracle.scores(il).copy() for il in fixture_model.hparams.attention_layers}
    dense = dense_logits(fixture_model, tokens)
    for position in range(10, 20):
        oracle.decode_step(tokens[position])
        assert relative_error(oracle.logits, dense[position : position + 1]) < 1e-12
        assert len(oracle.history) == (position >= 16)
    for il, scores in before.items():
        np.testing.assert_array_equal(oracle.scores(il)[:, :10], scores)
        assert not oracle.scores(il)[:, 10:].any()


# --- two_phase


def test_two_phase_with_one_layer_and_everything_in_memory_is_dense(one_layer_model: Path) -> None:
    """With one layer there are no hidden states that differ between the phases: H ≥ N must give dense attention."""
    model = read_model(one_layer_model)
    tokens = random_tokens(50)
    oracle = sequence("two_phase", model, L=0, H=64)
    oracle.eval(tokens)
    assert relative_error(oracle.logits, dense_logits(model, tokens)) < 1e-12


def test_two_phase_scores_add_up_to_the_number_of_queries(fixture_model: GGUFModel) -> None:
    """Each softmax row sums to 1: one row per query and head in its chunk, one more to the memory set."""
    N, S = 60, 16
    oracle = sequence("two_phase", fixture_model, S=S)
    oracle.eval(random_tokens(N, models.N_VOCAB))
    for il in fixture_model.hparams.attention_layers:
        group = fixture_model.hparams.n_head[il] // fixture_model.hparams.n_head_kv[il]
        np.testing.assert_allclose(oracle.scores(il).sum(axis=1), group * (N + (N - S)))
