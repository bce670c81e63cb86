"""Lengths and budgets at the edges, and the known stumbling stones of chunked prefill, on logits and token counts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import models
from compare import assert_logits_close, case
from inputs import is_external, random_tokens, split
from llamas import (
    Config,
    assert_agrees_with_oracle,
    assert_history_is_well_formed,
    eval_calls,
    open_llama,
)
from oracle import DenseOracle, GGUFModel, read_model
from pairwise import pairwise
from tolerances import SELF_LOGITS_F32, tolerance

S = 16


@pytest.fixture(scope="module")
def config(schedule: str) -> Config:
    return Config(S=S, L=4, H=6, A=1, schedule=schedule)


# --- stumbling stones, by name


def test_non_uniform_chunks(config: Config, model_path: Path, oracle_model: GGUFModel) -> None:
    """Calls that end anywhere: the grid stays absolute, whatever their lengths."""
    sizes = [7, 20, 2, 13, 22] if is_external(model_path) else [7, 20, 2, 33, 13, 48, 16, 5]
    tokens = random_tokens(sum(sizes), oracle_model.hparams.n_vocab, seed=1)
    assert_agrees_with_oracle(model_path, oracle_model, config, split(tokens, sizes))


def test_exact_sequence_of_chunks(config: Config, model_path: Path, oracle_model: GGUFModel) -> None:
    """N = 4S, at once and chunk by chunk: the last chunk builds no memory set until a token follows."""
    tokens = random_tokens(4 * S, oracle_model.hparams.n_vocab, seed=2)
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
        assert_agrees_with_oracle(model_path, oracle_model, config, calls)


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


# --- lengths


def test_every_length(config: Config, tiny_model: Path) -> None:
    """N = 1 is a decode step on an empty cache; N ≤ S has no memory set."""
    for n in [*range(1, 2 * S + 3), 3 * S - 1, 3 * S, 3 * S + 1, 10 * S]:
        with case(n=n):
            assert_agrees_with_oracle(tiny_model, read_model(tiny_model), config, [random_tokens(n, seed=n)])


def test_contexts_of_any_size(config: Config, tiny_model: Path) -> None:
    """Full to the last cell, also when a chunk does not fit into the rest."""
    for n_ctx in [16, 17, 33, 100, 257]:
        with case(n_ctx=n_ctx):
            assert_agrees_with_oracle(tiny_model, read_model(tiny_model), config, [random_tokens(n_ctx)], n_ctx=n_ctx)


# --- shapes of heads


@pairwise(
    "schedule",
    "flash_attn",
    heads=[(16, 4, 4), (40, 6, 2), (66, 3, 3), (80, 5, 1), (128, 4, 2), (256, 3, 1), (32, 16, 1)],
)
def test_head_sizes_and_groups(config: Config, flash_attn: str, tmp_path: Path, heads: tuple[int, int, int]) -> None:
    """Sizes that are no multiple of a SIMD register or tile, and groups that are none either."""
    head_dim, n_head, n_head_kv = heads
    spec = models.ModelSpec("heads", "llama", 64, head_dim, (n_head,) * 2, (n_head_kv,) * 2)
    path = tmp_path / spec.file_name
    models.write_model(spec, path)
    config = replace(config, flash_attn=flash_attn)
    assert_agrees_with_oracle(path, read_model(path), config, split(random_tokens(90, seed=11), [50, 7, 33]))


# --- budgets


def test_budgets_at_the_edges(schedule: str, tiny_model: Path) -> None:
    """M from 1 to more than the whole prompt. M ≥ S warns that it costs more than it saves."""
    for budgets in [
        Config(S=S, L=1, H=0),
        Config(S=S, L=0, H=1),
        Config(S=S, L=0, H=0, A=1),
        Config(S=S, L=S, H=S),
        Config(S=S, L=S, H=0, A=S),
        Config(S=S, L=0, H=0, A=40),
        Config(S=S, L=3, H=1000),
        Config(S=1, L=1, H=0),
        Config(S=1, L=0, H=3, A=1),
        Config(S=2, L=1, H=1),
        Config(S=2, L=2, H=3, A=1),
        Config(S=5, L=0, H=9),
    ]:
        with case(budgets=budgets):
            config = replace(budgets, schedule=schedule)
            calls = split(random_tokens(100, seed=6), [60, 1, 1, 38])
            assert_agrees_with_oracle(tiny_model, read_model(tiny_model), config, calls)


def test_one_layer_with_everything_in_memory_is_dense(schedule: str, one_layer_model: Path) -> None:
    """H ≥ N gives dense attention in two_phase too: with one layer both its phases have the same hidden states."""
    tokens = random_tokens(150)
    expected = DenseOracle(read_model(one_layer_model), "f32").logits(np.array(tokens))
    for sizes in ([150], [40, 110], [75, 75]):
        with open_llama(one_layer_model, Config(S=S, L=0, H=200, schedule=schedule)) as llm:
            logits = np.concatenate(eval_calls(llm, split(tokens, sizes)))
            assert_logits_close(logits, expected, tolerance("F32", "F32").logits)


# --- generation


@pairwise("schedule", "model_path")
def test_generated_tokens_fill_chunks(config: Config, model_path: Path, oracle_model: GGUFModel) -> None:
    """Decode steps build the memory sets of the chunks that they complete, from scores that are 0 for generated tokens;
    a second prompt after them attends to those sets."""
    sizes = [10, *[1] * 8, 22] if is_external(model_path) else [10, *[1] * 30, 24]
    tokens = random_tokens(sum(sizes), oracle_model.hparams.n_vocab, seed=7)
    assert_agrees_with_oracle(model_path, oracle_model, config, split(tokens, sizes))


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
