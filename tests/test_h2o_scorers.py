"""Scorers and pooling: tables computed by hand, then whole models against the oracle."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from compare import case
from h2o_llama.config import SCORERS
from inputs import ModelByName, random_tokens, split
from llamas import POSITION_SCORERS, Config, assert_agrees_with_oracle, eval_calls, open_llama
from oracle import read_model
from oracle.attention import attend
from oracle.scorers import SCORERS as ORACLE_SCORERS
from oracle.scorers import key_difference
from pairwise import pairwise
from standalone import LAYER, add_chunk, kept, make_cache, n_head_kv, per_head


def test_distant_by_hand(tiny_model: Path) -> None:
    """Positions 0 to 3 before a local window of 2: divided by 4, 3, 2 and 1 queries that are at least 2 later."""
    cache = make_cache(tiny_model, chunk_size=6, local_window=2, heavy_budget=2, scorer="distant")
    add_chunk(cache, per_head(cache, [8, 5, 4.2, 1.9, 99, 99]))
    assert kept(cache) == [0, 2, 4, 5]


def test_key_diff_by_hand(tiny_model: Path) -> None:
    """Six keys: four along one axis, one across, one against. The last two differ most, whatever their length."""
    cache = make_cache(tiny_model, chunk_size=6, local_window=0, heavy_budget=2, scorer="key_diff", type_k="f32")
    k = np.zeros((n_head_kv(cache), 6, cache.gather_k_memory(LAYER).shape[2]), np.float32)
    k[:, :4, 0] = [1, 2, 3, 4]
    k[:, 4, 1] = 100
    k[:, 5, 0] = -0.01
    cache.set_kv(LAYER, 0, k, np.zeros_like(k))
    add_chunk(cache, np.zeros((n_head_kv(cache), 6), np.float32))
    assert kept(cache) == [4, 5]
    # The mean direction is (4 - 1)/6 along the axis, 1/6 across.
    np.testing.assert_allclose(cache.scores(LAYER)[0], [-0.5] * 4 + [-1 / 6, 0.5], rtol=1e-6)


def test_a_key_of_zeros_is_like_any_other(tiny_model: Path) -> None:
    cache = make_cache(tiny_model, chunk_size=4, local_window=0, heavy_budget=2, scorer="key_diff", type_k="f32")
    add_chunk(cache, np.zeros((n_head_kv(cache), 4), np.float32))
    assert kept(cache) == [0, 1]
    np.testing.assert_array_equal(cache.scores(LAYER), np.zeros((n_head_kv(cache), 4), np.float32))


POOLING_TABLE = [
    ([0, 0, 9, 0, 0, 5, 0, 0], 0, [2, 5, 7]),  # none
    # 1, 2 and 3 all rank 9: ties go to the lower position.
    ([0, 0, 9, 0, 0, 5, 0, 0], 1, [1, 2, 7]),  # radius 1
    ([7, 0, 9, 0, 0, 5, 0, 0], 2, [0, 1, 7]),  # radius 2
    # A position in the local window lends nothing: it is no candidate.
    ([0, 0, 0, 3, 2, 1, 0, 99], 1, [2, 3, 7]),  # local window
    ([np.nan, 1, np.nan, 3, 0, 0, 0, 0], 1, [2, 3, 7]),  # NaN takes its neighbour's rank
    ([1, 2, 3, 4, 5, 6, 7, 8], 2**31 - 1, [0, 1, 7]),  # a radius beyond everything
]


def test_pooling_by_hand(tiny_model: Path) -> None:
    for scores, pooling, expected in POOLING_TABLE:
        with case(scores=scores, pooling=pooling, expected=expected):
            cache = make_cache(tiny_model, chunk_size=8, local_window=1, heavy_budget=2, pooling=pooling)
            add_chunk(cache, per_head(cache, scores))
            assert kept(cache) == expected


def test_pooling_measures_positions_not_places(tiny_model: Path) -> None:
    """1 and 4 are next to each other among the candidates, but three positions apart: only 5 is pooled with 4."""
    cache = make_cache(tiny_model, chunk_size=8, local_window=0, heavy_budget=4, pooling=1)
    add_chunk(cache, per_head(cache, [9, 0, 0, 0, 0, 8, 0, 0]))
    assert kept(cache) == [0, 1, 4, 5]
    cache.accumulate_memory_scores(LAYER, per_head(cache, [-9, 0, 5, -8]))
    add_chunk(cache, per_head(cache, [0, 0, 3, 0, 0, 0, 0, 0]))
    assert kept(cache) == [4, 5, 9, 10]


# --- the oracle's own


def test_oracle_counts_by_a_naive_loop(rng: np.random.Generator) -> None:
    """Weights of one chunk's queries, counted pair by pair."""
    S, L, n_head, n_head_kv_, d = 80, 7, 4, 2, 8
    queries, keys = np.arange(S, 2 * S), np.arange(60, 2 * S)
    q, k, v = (rng.standard_normal((h, n, d)) for h, n in ((n_head, S), (n_head_kv_, 100), (n_head_kv_, 100)))
    allowed = keys <= queries[:, None]
    for name, scorer in ORACLE_SCORERS.items():
        _, colsum = attend(q, k, v, allowed, scorer.counts(queries[:, None], keys[None, :], S, L))
        expected = np.zeros((n_head_kv_, len(keys)))
        for head in range(n_head):
            for i, x in enumerate(queries):
                logits = np.array([q[head, i] @ k[head // 2, j] if keys[j] <= x else -np.inf for j in range(len(keys))])
                weights = np.exp(logits - logits.max())
                for j, p in enumerate(keys):
                    is_counted = name != "distant" or x - p >= L
                    expected[head // 2, j] += is_counted * weights[j] / weights.sum()
        np.testing.assert_allclose(colsum, expected, rtol=1e-10, atol=1e-12, err_msg=name)


def test_oracle_key_difference_by_a_naive_loop(rng: np.random.Generator) -> None:
    k = rng.standard_normal((2, 9, 5))
    for head, scores in enumerate(key_difference(k)):
        directions = [row / np.sqrt((row**2).sum()) for row in k[head]]
        mean = sum(directions) / 9
        np.testing.assert_allclose(scores, [-(direction @ mean) for direction in directions], rtol=1e-12)


# --- whole models


def test_the_oracle_knows_every_scorer() -> None:
    assert set(ORACLE_SCORERS) == set(SCORERS)


@pairwise("schedule", "flash_attn", scorer=POSITION_SCORERS, score_type=["f32", "bf16"])
def test_scorers_in_several_calls(
    scorer: str, score_type: str, schedule: str, flash_attn: str, tiny_model: Path
) -> None:
    """With decode steps in between."""
    config = Config(
        S=96, L=10, H=20, scorer=scorer, score_type=score_type, pooling=3, flash_attn=flash_attn, schedule=schedule
    )
    calls = split(random_tokens(400, seed=6), [50, 1, 150, 1, 2, 196])
    assert_agrees_with_oracle(tiny_model, read_model(tiny_model), config, calls)


@pytest.mark.parametrize("scorer", POSITION_SCORERS)
def test_layers_side_by_side_keep_what_one_thread_keeps(scorer: str, tiny_model: Path) -> None:
    """The threads that compute also build the memory sets, one layer each."""
    config = Config(S=32, L=4, H=8, scorer=scorer, pooling=1)
    tokens = random_tokens(300, seed=10)
    found = []
    for n_threads in (1, 3):
        with open_llama(tiny_model, config, n_threads=n_threads) as llm:
            eval_calls(llm, [tokens])
            found.append(llm.kv.history)
    for one, three in zip(*found, strict=True):
        for il, expected in one.items():
            np.testing.assert_array_equal(three[il], expected)


@pytest.mark.parametrize("name", ["qwen3-gqa4-f32", "llama-gqa2-f32"])
def test_key_diff_does_not_see_where_in_its_chunk_a_key_is(name: str, model_by_name: ModelByName) -> None:
    """In the first layer a key depends on its token and RoPE only: equal tokens have equal scores."""
    tokens = [5] * 64
    tokens[1] = tokens[30] = 9
    with open_llama(model_by_name(name), Config(S=32, L=0, H=2, scorer="key_diff")) as llm:
        llm.eval(tokens)
        scores = llm.kv.scores(0)[:, :32]
        np.testing.assert_array_equal(llm.kv.memory_indices(0), np.tile([1, 30], (len(scores), 1)))
    common = np.delete(scores, [1, 30], axis=1)
    assert np.ptp(common, axis=1).max() < 1e-5
    np.testing.assert_allclose(scores[:, 1], scores[:, 30], atol=1e-5)
    assert np.all(scores[:, 1] > common.max(axis=1) + 0.1)
