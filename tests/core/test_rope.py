"""RoPE options: logits and memory sets against the oracle, and what knows of them."""

import copy
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import models
from cases import SMALL
from compare import relative_error
from h2o_llama import H2OConfig, Llama, Model
from inputs import ModelByName, random_tokens
from llamas import assert_agrees_with_oracle
from oracle import read_model
from oracle.model import Rope, Yarn

S = 16
N_TRAINED = models.N_CTX_TRAIN

YARN = {"rope_scaling_type": "yarn", "rope_freq_scale": 0.25, "yarn_orig_ctx": 48}
# Arguments, and the model's RoPE with them.
CASES: dict[str, tuple[dict[str, Any], Callable[[Rope], Rope]]] = {
    "base": ({"rope_freq_base": 700.0}, lambda rope: replace(rope, base=700.0)),
    "linear": (
        {"rope_scaling_type": "linear", "rope_freq_scale": 0.3},
        lambda rope: replace(rope, scale=float(np.float32(0.3))),
    ),
    "linear by default": ({"rope_freq_scale": 0.5}, lambda rope: replace(rope, scale=0.5)),
    "none": ({"rope_scaling_type": "none", "rope_freq_scale": 0.25}, lambda rope: rope),
    "yarn": (YARN, lambda rope: replace(rope, scale=0.25, yarn=Yarn(48))),
    "yarn betas": (
        YARN | {"yarn_beta_fast": 4.0, "yarn_beta_slow": 0.5},
        lambda rope: replace(rope, scale=0.25, yarn=Yarn(48, beta_fast=4.0, beta_slow=0.5)),
    ),
    "yarn half": (
        YARN | {"yarn_ext_factor": 0.5, "rope_freq_base": 900.0},
        lambda rope: replace(rope, base=900.0, scale=0.25, yarn=Yarn(48, extrapolation=0.5)),
    ),
}


@pytest.mark.parametrize(("case", "schedule"), [*((case, "single_pass") for case in CASES), ("yarn half", "two_phase")])
def test_options_reach_every_part_of_attention(case: str, schedule: Any, tiny_model: Path) -> None:
    """Memory sets, the index of keys, dense tails, generated tokens. In every kind of model: test_architectures.py."""
    options, change = CASES[case]
    model = copy.copy(read_model(tiny_model))
    model.hparams = replace(model.hparams, rope=tuple(map(change, model.hparams.rope)))
    tokens = random_tokens(150)
    calls = [tokens[:70], tokens[70:145], *([t] for t in tokens[145:])]
    config = SMALL.but(schedule=schedule, lookup_budget=8)
    assert_agrees_with_oracle(tiny_model, model, config, calls, dense_tail=9, **options)


def logits(model: Path | Model, **options: Any) -> Any:
    with Llama(model, n_ctx=128, n_threads=1, h2o=H2OConfig(chunk_size=S), **options) as llm:
        llm.eval(random_tokens(100))
        return llm.logits


def test_a_factor_of_attention_counts_without_extrapolation(tiny_model: Path) -> None:
    """llama.cpp takes the paper's otherwise."""
    alone = {**YARN, "yarn_ext_factor": 0.0}
    factor = {"yarn_attn_factor": 1.3}
    assert relative_error(logits(tiny_model, **alone, **factor), logits(tiny_model, **alone)) > 0.05
    np.testing.assert_array_equal(logits(tiny_model, **YARN, **factor), logits(tiny_model, **YARN))


def test_a_model_has_them_for_all_its_contexts(tiny_model: Path) -> None:
    """A `Llama` may have others, which are its own."""
    expected = logits(tiny_model, **YARN)
    assert relative_error(logits(tiny_model), expected) > 0.05
    with Model(tiny_model, **YARN) as model, Model(tiny_model) as plain:
        np.testing.assert_array_equal(logits(model), expected)
        np.testing.assert_array_equal(logits(plain, **YARN), expected)
        np.testing.assert_array_equal(logits(plain), logits(tiny_model))
        np.testing.assert_array_equal(logits(model, rope_freq_base=500.0), logits(tiny_model, rope_freq_base=500.0))


@pytest.mark.parametrize(
    ("options", "n"),
    [
        ({}, N_TRAINED),
        ({"rope_scaling_type": "yarn", "rope_freq_scale": 0.25, "yarn_orig_ctx": 4096}, 16384),
        ({"rope_scaling_type": "linear", "rope_freq_scale": 0.5}, 2 * N_TRAINED),
        ({"rope_scaling_type": "none", "rope_freq_scale": 0.25}, N_TRAINED),
        ({"rope_freq_base": 1e7}, N_TRAINED),
    ],
)
def test_scaling_makes_texts_longer(options: dict[str, Any], n: int, tiny_model: Path) -> None:
    """The default of n_ctx follows; a larger one was never refused. Contexts do not change what others know."""
    with Model(tiny_model) as model, Llama(model, n_threads=1, **options) as llm:
        assert llm.n_ctx == llm.model.n_ctx_train == n
        assert model.n_ctx_train == N_TRAINED


def test_a_text_beyond_the_trained_length(model_by_name: ModelByName) -> None:
    """With positions of the text it is warned of, unless scaling says that the model can read it."""
    override = {"qwen3.context_length": 64}
    h2o = H2OConfig(chunk_size=S, evict=True, research={"positions": "text"})
    path = model_by_name("qwen3-gqa4-f32")
    options: dict[str, Any] = {"n_batch": S, "n_threads": 1, "h2o": h2o, "kv_overrides": override}
    with Llama(path, **options) as llm:
        llm.eval(random_tokens(64))
        with pytest.warns(UserWarning, match="trained for texts of 64 tokens"):
            llm.eval([1])
        llm.eval([1])  # once
    with Llama(path, **options, rope_scaling_type="yarn", rope_freq_scale=0.5) as llm:
        llm.eval(random_tokens(100))  # a warning is an error


def test_bad_options_are_refused(tiny_model: Path) -> None:
    bad: dict[str, list[Any]] = {
        "rope_scaling_type": ["longrope", 3],
        "rope_freq_base": [1, float("nan"), "1e6", True],
        "rope_freq_scale": [0, 1e-9],
        "yarn_ext_factor": [-1, 1.5],
        "yarn_attn_factor": [0, float("inf")],
        "yarn_beta_fast": [0],
        "yarn_beta_slow": [0],
        "yarn_orig_ctx": [-1, 1.5, 2**31],
    }
    for name, value in ((name, value) for name, values in bad.items() for value in values):
        with pytest.raises(ValueError, match=rf"\[Llama\] {name} must be"):
            Llama(tiny_model, **{name: value})
