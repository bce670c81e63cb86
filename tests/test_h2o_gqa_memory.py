"""Grouped heads: memory sets and scores belong to KV heads; query heads' column sums are added up into them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import h2o_llama
import models
from compare import assert_memory_is_well_formed
from inputs import ModelByName, random_tokens
from llamas import Config, assert_agrees_with_oracle, eval_calls, open_llama
from models import FIXTURE_MODELS
from oracle import read_model
from standalone import kept, make_cache

# The seed's sizes.
KV_SIZE, S, L, H = 32, 8, 2, 2


def cache_and_heads(path: Path, spec: models.ModelSpec) -> tuple[h2o_llama.KVCache, int, int]:
    cache = make_cache(path, kv_size=KV_SIZE, chunk_size=S, local_window=L, heavy_budget=H)
    return cache, spec.n_head[0], spec.n_head_kv[0]


@pytest.fixture(params=[spec.name for spec in (*models.ARCHITECTURES, models.DECI_MIXED)])
def spec(request: pytest.FixtureRequest) -> models.ModelSpec:
    return FIXTURE_MODELS[f"{request.param}-f32"]


def test_query_heads_are_reduced_to_their_kv_head(model_by_name: ModelByName, spec: models.ModelSpec) -> None:
    """The seed's test: each KV head's queries agree on a hot token, different from the other KV heads'."""
    path = model_by_name(f"{spec.name}-f32")
    cache, n_head, n_head_kv = cache_and_heads(path, spec)
    group = n_head // n_head_kv
    hot = [(kv_head * 2) % (S - L) for kv_head in range(n_head_kv)]
    colsum = np.full((n_head, S), 0.1, dtype=np.float32)
    for query_head in range(n_head):
        colsum[query_head, hot[query_head // group]] = 10.0
    cache.init_chunk_scores(0, 0, colsum)
    cache.build_memory_set(0, S)
    cache.next_chunk(S)

    assert cache.memory_indices(0).shape == (n_head_kv, L + H)
    expected = np.full((n_head_kv, S), 0.1 * group)
    expected[np.arange(n_head_kv), hot] = 10.0 * group
    np.testing.assert_allclose(cache.scores(0), expected, rtol=1e-6)
    for kv_head in range(n_head_kv):
        assert set(range(S - L, S)) <= set(kept(cache, kv_head))
        assert hot[kv_head] in kept(cache, kv_head)


def test_the_group_decides_together(model_by_name: ModelByName) -> None:
    """One query head of a group is outvoted: 0.9 from one head is less than 4 times 0.3."""
    spec = FIXTURE_MODELS["qwen3-gqa4-f32"]
    cache, n_head, _ = cache_and_heads(model_by_name("qwen3-gqa4-f32"), spec)
    colsum = np.zeros((n_head, S), dtype=np.float32)
    colsum[0, 1] = 0.9
    colsum[:4, 2] = colsum[:4, 4] = 0.3
    cache.init_chunk_scores(0, 0, colsum)
    cache.build_memory_set(0, S)
    assert kept(cache, 0) == [2, 4, 6, 7]
    assert kept(cache, 1) == [0, 1, 6, 7]


def test_inter_column_sums_of_query_heads_are_reduced_too(
    model_by_name: ModelByName, spec: models.ModelSpec, rng: np.random.Generator
) -> None:
    cache, n_head, n_head_kv = cache_and_heads(model_by_name(f"{spec.name}-f32"), spec)
    cache.init_chunk_scores(0, 0, np.ones((n_head_kv, S), dtype=np.float32))
    cache.build_memory_set(0, S)
    cache.next_chunk(S)
    colsum = rng.random((n_head, L + H), dtype=np.float32)
    cache.accumulate_memory_scores(0, colsum)
    expected = np.ones((n_head_kv, S))
    reduced = colsum.reshape(n_head_kv, -1, L + H).sum(axis=1)
    np.put_along_axis(expected, cache.memory_indices(0), 1 + reduced, axis=1)
    np.testing.assert_allclose(cache.scores(0), expected, rtol=1e-6)


@pytest.mark.parametrize("name", ["deci-mixed-f32", "deci-linear-f32"])
def test_every_layer_has_its_own_head_counts(schedule: str, model_by_name: ModelByName, name: str) -> None:
    """deci-mixed: groups of 4, 1 and 4; deci-linear: a layer without KV heads, which is no layer of the cache."""
    path, spec = model_by_name(name), FIXTURE_MODELS[name]
    config = Config(S=16, L=4, H=6, schedule=schedule)
    tokens = random_tokens(100, seed=1)
    with open_llama(path, config) as llm:
        eval_calls(llm, [tokens])
        assert list(llm.kv.layers) == [il for il, n in enumerate(spec.n_head_kv) if n]
        for il in llm.kv.layers:
            assert llm.kv.memory_indices(il).shape == (spec.n_head_kv[il], config.M)
            assert llm.kv.scores(il).shape == (spec.n_head_kv[il], len(tokens))
            assert llm.kv.keys(il).shape == llm.kv.values(il).shape == (spec.n_head_kv[il], 100, spec.head_dim)
            assert_memory_is_well_formed(llm.kv.memory_indices(il), end=96, L=config.L, H=config.H, A=0)
    assert_agrees_with_oracle(path, read_model(path), config, [tokens, [1], [2, 3]])
