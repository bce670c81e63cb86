"""Lengths and budgets at the edges, and the known stumbling stones of chunked prefill, on logits and token counts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from compare import assert_logits_close
from inputs import random_tokens, split
from llamas import (
    Config,
    assert_history_is_well_formed,
    eval_calls,
    open_llama,
)
from oracle import DenseOracle, read_model
from tolerances import SELF_LOGITS_F32, tolerance

S = 16


@pytest.fixture(scope="module")
def config(schedule: str) -> Config:
    return Config(S=S, L=4, H=6, A=1, schedule=schedule)


# --- stumbling stones, by name


def test_exact_sequence_of_chunks(config: Config, model_path: Path) -> None:
    """N = 4S, at once and chunk by chunk: the last chunk builds no memory set until a token follows."""
    tokens = random_tokens(4 * S, seed=2)
    for calls in ([tokens], split(tokens, [S] * 4), split(tokens, [2 * S] * 2)):
        with open_llama(model_path, config) as llm:
            eval_calls(llm, calls)
            assert llm.kv.n_tokens == 4 * S
            assert llm.kv.chunk_index == 4
            assert len(llm.kv.history) == 3
            eval_calls(llm, [[1]])
            assert llm.kv.n_tokens == 4 * S + 1
            assert llm.kv.chunk_index == 5
            assert len(llm.kv.history) == 4


def test_last_logits_are_the_last_row_of_all_logits(config: Config, tiny_model: Path) -> None:
    for n in (2, S, S + 1, 2 * S, 2 * S + 2, 5 * S - 1):
        tokens = random_tokens(n, seed=5)
        with open_llama(tiny_model, config) as llm:
            llm.eval(tokens)
            assert llm.logits.shape == (1, llm.n_vocab)
            assert llm.logits.dtype == np.float32
            last = np.array(llm.logits)
            llm.reset()
            (logits,) = eval_calls(llm, [tokens])
            assert_logits_close(last, logits[-1:], SELF_LOGITS_F32)


# --- shapes of heads


# --- budgets


def test_one_layer_with_everything_in_memory_is_dense(schedule: str, one_layer_model: Path) -> None:
    """H ≥ N gives dense attention in two_phase too: with one layer both its phases have the same hidden states."""
    tokens = random_tokens(150)
    expected = DenseOracle(read_model(one_layer_model), "f32").logits(np.array(tokens))
    for sizes in ([150], [40, 110], [75, 75]):
        with open_llama(one_layer_model, Config(S=S, L=0, H=200, schedule=schedule)) as llm:
            logits = np.concatenate(eval_calls(llm, split(tokens, sizes)))
            assert_logits_close(logits, expected, tolerance("F32", "F32").logits)


# --- generation


def test_decode_from_an_empty_cache(config: Config, tiny_model: Path) -> None:
    """A sequence of decode steps alone is ordinary dense attention."""
    config = replace(config, flash_attn="off")
    tokens = random_tokens(40, seed=8)
    expected = DenseOracle(read_model(tiny_model), "f32").logits(np.array(tokens))
    with open_llama(tiny_model, config) as llm:
        logits = np.concatenate(eval_calls(llm, [[token] for token in tokens]))
        assert_logits_close(logits, expected, tolerance("F32", "F32").logits)
        assert_history_is_well_formed(llm, config)
        for il in llm.kv.layers:
            assert not llm.kv.scores(il).any()
