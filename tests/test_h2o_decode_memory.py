"""decode="memory": generated tokens attend to what a prompt's do. For their scores: test_generated_scores.py."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from compare import assert_all_equal, assert_logits_close
from inputs import ModelByName, is_external, limited, repetitive_tokens, split
from llamas import Config, assert_agrees_with_oracle, lookups_of, open_llama
from oracle import DenseOracle, GGUFModel
from pairwise import in_turn, pairwise
from test_h2o_decode import assert_graphs_are_used_again, decode_calls
from tolerances import SELF_LOGITS_F32

S = 16
CONFIG = Config(S=S, L=4, H=6, A=1, decode="memory")
LOOKUP = replace(CONFIG, B=6, T=4)
CONFIGS = {
    "plain": CONFIG,
    "lookup": LOOKUP,
    # More rows for a token than the operator reads in a block, and fewer queries in a tile than there are.
    "many lookups": replace(CONFIG, B=200, T=1),
    "dense layer": replace(LOOKUP, dense_layers=(0,)),
    "long chunks": replace(LOOKUP, S=40, scorer="distant"),
    "composed": replace(LOOKUP, flash_attn="off"),
    "composed, dense layer": replace(LOOKUP, flash_attn="off", dense_layers=(0,)),
    "two_phase": replace(LOOKUP, schedule="two_phase"),
}


@pytest.fixture(params=CONFIGS)
def config(request: pytest.FixtureRequest) -> Config:
    return CONFIGS[request.param]


def chunk_calls(n: int) -> list[int]:
    """A prompt, tokens over the ends of chunks, a prompt again, and tokens after it."""
    return [20, *[1] * (n // 2 - 20), 7, *[1] * (n - n // 2 - 7)]


@in_turn(CONFIGS)
def test_agrees_with_the_oracle(model_path: Path, oracle_model: GGUFModel, config: Config) -> None:
    n = 44 if is_external(model_path) else 90
    tokens = repetitive_tokens(n, oracle_model.hparams.n_vocab, seed=1)
    oracle = assert_agrees_with_oracle(model_path, oracle_model, config, split(tokens, chunk_calls(n)))
    assert is_external(model_path) or not config.B or any(query >= 83 for _, query in oracle.log)


def test_any_split(tiny_model: Path, config: Config) -> None:
    """Several tokens at once, causal among themselves, over the ends of chunks."""
    tokens = repetitive_tokens(110, seed=3)
    results: list[Any] = []
    with open_llama(tiny_model, config) as llm:
        for sizes in ([1] * 70, [3, 1, 5, S + 3, 1, 41], [70]):
            llm.reset()
            llm.eval(tokens[:40])
            got = decode_calls(llm, split(tokens[40:], sizes))
            results.append((got, [*lookups_of(llm), *(llm.kv.memory_indices(il) for il in llm.kv.layers)]))
    for got, found in results[1:]:
        assert_logits_close(got, results[0][0], SELF_LOGITS_F32)
        assert_all_equal(found, results[0][1])


@pairwise("flash_attn", "model_path")
def test_everything_in_memory_is_dense(flash_attn: str, model_path: Path, oracle_model: GGUFModel) -> None:
    config = Config(S=S, L=4, H=1024, B=8, T=4, flash_attn=flash_attn, decode="memory")
    n = limited(60, model_path)
    tokens = repetitive_tokens(n, oracle_model.hparams.n_vocab, seed=4)
    expected = DenseOracle(oracle_model, "f32").logits(np.array(tokens))
    with open_llama(model_path, config) as llm:
        llm.eval(tokens[:20])
        got = decode_calls(llm, [[token] for token in tokens[20:]])
    assert_logits_close(got, expected[20:], config.tolerance(oracle_model, [[0]]).logits)


@pytest.mark.parametrize(("dense_layers", "n_built"), [((), 1), ((1,), 2)], ids=["", "dense layer"])
def test_graphs_are_used_again(
    model_by_name: ModelByName, monkeypatch: pytest.MonkeyPatch, dense_layers: tuple[int, ...], n_built: int
) -> None:
    """While memory set and chunk need no more than 256 rows. A dense layer's grow to 1,024."""
    config = Config(S=300, L=20, H=30, B=8, T=4, kv_type="f16", dense_layers=dense_layers, decode="memory")
    model = model_by_name("llama-gqa2-f32")
    assert_graphs_are_used_again(monkeypatch, model, config, repetitive_tokens(790, seed=7), 690, n_built)
