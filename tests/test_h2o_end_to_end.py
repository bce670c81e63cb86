"""The memory-set seed's integration test: 4,096 tokens, 4 chunks of 1,024, L = H = 256; then what users do next."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import numpy as np
import pytest

import h2o_llama
from inputs import is_external
from llamas import Config, assert_history_is_well_formed

N, S, L, H = 4096, 1024, 256, 256


@pytest.fixture(scope="module")
def config(schedule: str, model_path: Path) -> Config:
    """The seed's sizes; a real model takes minutes for them on one thread, and has a quarter of each."""
    part = 4 if is_external(model_path) else 1
    return Config(S // part, L // part, H // part, schedule=schedule)


@pytest.fixture(scope="module")
def tokens() -> list[int]:
    """The seed's prompt, i % 1000 + 1, with byte-sized ids."""
    return [i % 250 + 1 for i in range(N)]


@pytest.fixture(scope="module")
def prefilled(config: Config, model_path: Path, tokens: list[int]) -> Iterator[h2o_llama.Llama]:
    with h2o_llama.Llama(str(model_path), n_ctx=8192, n_batch=N, n_threads=1, h2o=config.h2o, record=True) as llm:
        llm.eval(tokens[: 4 * config.S])
        yield llm


def test_prefill_of_4096_tokens(schedule: str, config: Config, prefilled: h2o_llama.Llama) -> None:
    kv = prefilled.kv
    assert kv.chunk_index == 4
    assert kv.n_tokens == 4 * config.S
    assert kv.memory_initialized
    assert kv.chunk_size == config.S
    assert kv.memory_size == config.M
    runs = (kv.stats.single_pass_runs, kv.stats.phase1_runs, kv.stats.phase2_runs)
    assert runs == {"single_pass": (4, 0, 0), "two_phase": (0, 1, 4)}[schedule]
    assert np.all(np.isfinite(prefilled.logits))
    assert prefilled.logits.shape == (1, prefilled.n_vocab)


def test_every_layer_has_memory_sets(config: Config, prefilled: h2o_llama.Llama) -> None:
    """M_0 to M_2: the prompt's last chunk builds none, as nothing has followed it yet."""
    kv = prefilled.kv
    assert len(kv.history) == 3
    assert_history_is_well_formed(prefilled, config)
    for il in kv.layers:
        np.testing.assert_array_equal(kv.memory_indices(il), kv.history[2][il])


def test_scores_add_up_to_the_number_of_queries(config: Config, prefilled: h2o_llama.Llama) -> None:
    """Each softmax row sums to 1; a KV head's group size is whole and the same for all its rows."""
    for il in prefilled.kv.layers:
        scores = prefilled.kv.scores(il)
        assert scores.shape[1] == prefilled.n_tokens
        assert np.all(np.isfinite(scores))
        assert np.all(scores >= 0)
        group = scores.sum(axis=1) / config.softmax_rows(prefilled.n_tokens)
        np.testing.assert_allclose(group, np.round(group[0]), rtol=1e-3)
        assert group[0] > 0.5


def test_generation_second_prompt_and_reset(schedule: str, model_path: Path, tokens: list[int]) -> None:
    """The life of a context: prompt, generation over a chunk's end, a second prompt, reset, the first prompt again."""
    with h2o_llama.Llama(
        str(model_path),
        n_ctx=1024,
        n_batch=512,
        n_threads=1,
        h2o=h2o_llama.H2OConfig(local_window=16, heavy_budget=16, schedule=schedule, chunk_size=64),
    ) as llm:
        llm.eval(tokens[:250])
        first = np.array(llm.logits)
        assert llm.kv.chunk_index == 4
        generated = list(islice(llm.generate(tokens[250:255], seed=1), 20))
        n = llm.kv.n_tokens
        # The model may end its text before, by chance.
        assert n == 255 + len(generated)
        assert all(0 <= t < llm.n_vocab for t in generated)
        assert llm.kv.chunk_index == -(-n // 64)
        llm.eval(tokens[:100])
        assert llm.kv.n_tokens == n + 100
        assert np.all(np.isfinite(llm.logits))

        llm.reset()
        assert llm.kv.n_tokens == 0
        assert llm.kv.chunk_index == 0
        assert not llm.kv.memory_initialized
        llm.eval(tokens[:250])
        np.testing.assert_array_equal(llm.logits, first)
