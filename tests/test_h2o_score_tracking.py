"""Scores: column sums of the softmax weights, added up per KV head. By hand, then on a model."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from inputs import random_tokens
from llamas import Config, eval_calls, open_llama
from standalone import M, S, add_chunk, first_layer, make_cache, n_head_kv, per_head

# --- the stand-alone cache


def test_scores_start_at_zero_and_are_set_where_the_chunk_lies(model_path: Path, rng: np.random.Generator) -> None:
    with_chunk = make_cache(model_path)
    colsum = rng.random((n_head_kv(with_chunk), S), dtype=np.float32)
    add_chunk(with_chunk, colsum)
    with_chunk.next_chunk(S)  # a chunk that nobody scored
    scores = with_chunk.scores(first_layer(with_chunk))
    assert scores.dtype == np.float32
    assert scores.shape == (n_head_kv(with_chunk), 2 * S)
    np.testing.assert_array_equal(scores[:, :S], colsum)
    assert not scores[:, S:].any()


def test_intra_column_sums_of_a_chunk_add_up_over_calls(tiny_model: Path, rng: np.random.Generator) -> None:
    """The second call's queries score the keys of both calls' tokens."""
    cache = make_cache(tiny_model)
    first = rng.random((n_head_kv(cache), 20), dtype=np.float32)
    second = rng.random((n_head_kv(cache), S), dtype=np.float32)
    cache.init_chunk_scores(first_layer(cache), 0, first)
    cache.next_chunk(20)
    cache.init_chunk_scores(first_layer(cache), 0, second)
    cache.next_chunk(S - 20)
    expected = second.copy()
    expected[:, :20] += first
    np.testing.assert_allclose(cache.scores(first_layer(cache)), expected, rtol=1e-6)


def test_inter_column_sums_go_to_the_memory_positions_only(model_path: Path, rng: np.random.Generator) -> None:
    cache = make_cache(model_path)
    n_kv = n_head_kv(cache)
    add_chunk(cache, rng.random((n_kv, S), dtype=np.float32))
    before = cache.scores(first_layer(cache)).copy()
    memory = cache.memory_indices(first_layer(cache))
    inter = rng.random((n_kv, M), dtype=np.float32)
    cache.accumulate_memory_scores(first_layer(cache), inter)
    expected = before.copy()
    for head in range(n_kv):
        expected[head, memory[head]] += inter[head]
    np.testing.assert_allclose(cache.scores(first_layer(cache)), expected, rtol=1e-6)
    assert np.sum(cache.scores(first_layer(cache)) != before) == n_kv * M


def test_padding_columns_are_ignored(tiny_model: Path) -> None:
    """A memory set with fewer positions than columns: what stands under the padding goes nowhere."""
    cache = make_cache(tiny_model, chunk_size=8, local_window=4, heavy_budget=12)
    add_chunk(cache, per_head(cache, np.ones(8)))
    assert np.all(cache.memory_indices(first_layer(cache))[:, 8:] == -1)
    cache.accumulate_memory_scores(first_layer(cache), per_head(cache, [1.0] * 8 + [1000.0] * 8))
    cache.next_chunk(8)
    np.testing.assert_array_equal(cache.scores(first_layer(cache)), per_head(cache, [2.0] * 8 + [0.0] * 8))


# --- a model


@pytest.fixture(scope="module")
def config(schedule: str) -> Config:
    return Config(S=16, L=4, H=6, schedule=schedule)


def test_threads_do_not_change_the_scores(config: Config, tiny_model: Path) -> None:
    with open_llama(tiny_model, config) as one, open_llama(tiny_model, config, n_threads=3) as many:
        for llm in (one, many):
            eval_calls(llm, [random_tokens(40, seed=5)])
        for il in one.kv.layers:
            np.testing.assert_allclose(many.kv.scores(il), one.kv.scores(il), rtol=1e-4)
