"""Layers that attend to everything, between others that have memory sets."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compare import case
from h2o_llama import H2OConfig, H2OError
from inputs import ModelByName, limited, repetitive_tokens, split
from llamas import POSITION_SCORERS, Config, assert_agrees_with_oracle, open_llama
from oracle import GGUFModel, read_model
from pairwise import pairwise
from test_h2o_properties import CALLS, SEEDS, small

CONFIG = Config(S=16, L=4, H=6, A=1, B=6, T=4, scorer="distant")


@pairwise("flash_attn", "model_path", evict=(False, True))
def test_every_model(model_path: Path, oracle_model: GGUFModel, flash_attn: str, evict: bool) -> None:
    """The first layer with attention."""
    dense = tuple(oracle_model.hparams.attention_layers[:1])
    if len(oracle_model.hparams.attention_layers) == 1:
        with pytest.raises(H2OError, match="no layer is left for H2O"):
            open_llama(model_path, replace(CONFIG, dense_layers=dense))
        return
    config = replace(CONFIG, dense_layers=dense, flash_attn=flash_attn, B=0, evict=evict)
    if evict:
        config = replace(config, decode="memory")
    tokens = repetitive_tokens(limited(100, model_path), oracle_model.hparams.n_vocab)
    assert_agrees_with_oracle(model_path, oracle_model, config, split(tokens, [41, 1, 20, len(tokens) - 62]))


@small
@given(
    dense=st.sampled_from([(0,), (1,)]),
    scorer=st.sampled_from(POSITION_SCORERS),
    sizes=CALLS,
    dense_tail=st.integers(0, 8),
    lookup_budget=st.sampled_from([0, 7]),
    seed=SEEDS,
)
def test_any_calls(
    model_by_name: ModelByName,
    dense: tuple[int, ...],
    scorer: str,
    sizes: list[int],
    dense_tail: int,
    lookup_budget: int,
    seed: int,
) -> None:
    path = model_by_name("qwen3-gqa4-f32")
    config = replace(CONFIG, dense_layers=dense, scorer=scorer, B=lookup_budget)
    calls = split(repetitive_tokens(sum(sizes), seed=seed), sizes)
    assert_agrees_with_oracle(path, read_model(path), config, calls, dense_tail)


def test_a_number_means_the_first_layers() -> None:
    assert H2OConfig(dense_layers=3) == H2OConfig(dense_layers=[2, 0, 1, 0])
    assert H2OConfig(dense_layers=0) == H2OConfig()


def test_bad_values(tiny_model: Path) -> None:
    for value in [-1, 513, 1.0, True, "0", [512], [-1], [0, 1.5], [[0]], None]:
        with case(value=value), pytest.raises(ValueError, match=r"^\[H2OConfig\] dense_layers must be an integer"):
            H2OConfig(dense_layers=value)
    with pytest.raises(ValueError, match="dense_layers need schedule single_pass"):
        H2OConfig(dense_layers=1, schedule="two_phase")
    with pytest.raises(ValueError, match="dense_layers must be layers of this model, from 0 to 2, got 99"):
        open_llama(tiny_model, replace(CONFIG, dense_layers=(0, 99)))
    with open_llama(tiny_model, replace(CONFIG, dense_layers=(0,))) as llm, pytest.raises(ValueError, match="layer"):
        llm.kv.memory_indices(0)
