"""The oracle's schedules by themselves: what the library is compared with must be right first. Needs no build of it.

single_pass is compared with a loop over queries, heads and keys in test_oracle_lookup.py, with lookups and without.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import models
from compare import relative_error
from inputs import ModelByName, random_tokens
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
