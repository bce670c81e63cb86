"""Whole blocks by a moving average, and memory sets that are a part of the text: seed 004, section 3."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import h2o_llama
from h2o_llama import H2OConfig
from inputs import random_tokens
from llamas import Config, open_llama
from oracle import read_model
from standalone import add_chunk, first_layer, kept, make_cache, n_head_kv, per_head

BLOCKS = Config(S=16, L=4, H=8, A=4, scorer="block_ema", block_tokens=4, ema_alpha=0.7)


def test_a_moving_average_by_hand(tiny_model: Path) -> None:
    """Three blocks of two, one of which is kept: the first by 6 to 5, then the newest, as 6 fades to 3."""
    sizes: Any = {"chunk_size": 6, "local_window": 0, "heavy_budget": 2}
    cache = make_cache(tiny_model, **sizes, scorer="block_ema", block_tokens=2, ema_alpha=0.5)
    add_chunk(cache, per_head(cache, [2, 4, 5, 0, 0, 4.5]))
    assert kept(cache) == [0, 1]
    n_queries = 6 * cache_group(tiny_model)  # of a chunk, in all the heads of a KV head
    np.testing.assert_allclose(cache.scores(first_layer(cache))[0, :2], np.array([1, 2]) * 0.5 / n_queries, rtol=1e-6)
    cache.accumulate_memory_scores(first_layer(cache), per_head(cache, [0.25, 0.25]))
    add_chunk(cache, per_head(cache, [0, 0, 1.75, 1.7, 3.4, 0.2]))
    assert kept(cache) == [10, 11]


def cache_group(path: Path) -> int:
    hparams = read_model(path).hparams
    return hparams.n_head[0] // hparams.n_head_kv[0]


def test_shared_heads_by_hand(tiny_model: Path) -> None:
    """One head prefers position 1, all together position 3."""
    cache = make_cache(tiny_model, chunk_size=4, local_window=0, heavy_budget=1, shared_heads=True)
    colsum = np.tile(np.array([0, 0, 0, 2], np.float32), (n_head_kv(cache), 1))
    colsum[0] = [0, 3, 0, 2]
    add_chunk(cache, colsum)
    assert [kept(cache, head) for head in range(len(colsum))] == [[3]] * len(colsum)


def test_heads_that_share_are_set_alike(tiny_model: Path) -> None:
    config = replace(BLOCKS, H=4, shared_heads=True)
    with open_llama(tiny_model, config) as llm:
        llm.eval(random_tokens(config.S, seed=3))
        before = llm.kv.memory_indices(0)
        sets = np.tile(np.arange(config.M, dtype=np.int32), (len(before), 1))
        sets[-1, -1] += 1
        with pytest.raises(ValueError, match="all rows of indices must be equal"):
            llm.kv.set_memory_indices(0, sets)
        np.testing.assert_array_equal(llm.kv.memory_indices(0), before)
        sets[:, -1] = config.M
        llm.kv.set_memory_indices(0, sets)
        np.testing.assert_array_equal(llm.kv.memory_indices(0), sets)


def test_a_memory_set_is_a_part_of_the_text(tiny_model: Path) -> None:
    """It grows by the chunk, is whole blocks, and what it comes to is told; what the cache has no room for, too."""
    S, n_ctx = 16, 160
    h2o = H2OConfig(
        local_window=4,
        sink_tokens=4,
        scorer="block_ema",
        lookup_budget=0,
        decode="memory",
        evict=True,
        chunk_size=S,
        research={"block_tokens": 4, "keep_ratio": 1 / 3.2, "positions": "text"},
    )
    with h2o_llama.Llama(tiny_model, n_ctx=n_ctx, n_batch=S, h2o=h2o, record=True) as llm:
        assert llm.kv.stats.lossy_ratio == 1
        assert llm.kv.memory_size == math.ceil(n_ctx / 3.2 / 4) * 4
        before = 0
        for end in range(S, n_ctx + 1, S):
            llm.eval(random_tokens(S, seed=end))
            closed, stats = end - S, llm.kv.stats
            expected = min(max(8, math.ceil(closed / 3.2 / 4) * 4), closed)
            assert (stats.n_tokens, stats.closed_tokens, stats.kept_tokens) == (end, closed, expected)
            if closed:
                sets = llm.kv.memory_indices(0)
                np.testing.assert_array_equal((sets >= 0).sum(axis=1), expected)
                assert all(len(set(row[row >= 0] // 4)) == expected // 4 for row in sets)
                assert stats.evicted_tokens == closed - expected
                assert stats.last_evicted_tokens == stats.evicted_tokens - before
                assert stats.lossy_ratio == pytest.approx(closed / expected)
                assert (stats.floor_tokens, stats.target_tokens) == (8, pytest.approx(closed / 3.2))
            before = stats.evicted_tokens
        assert stats.select_ms > 0
        # 10 chunks of K and V over the rows that there are, and what is kept beside them.
        rows = stats.n_tokens * stats.token_bytes / stats.kv_bytes
        assert rows == pytest.approx(n_ctx / (llm.kv.memory_size + S))
        assert 0 < stats.total_lossy_ratio < rows
        llm.reset()
        assert (llm.kv.stats.lossy_ratio, llm.kv.stats.evicted_tokens) == (1, 0)


def test_a_floor_above_the_ratio_shows(tiny_model: Path) -> None:
    """Sinks and local window are 12 of 16, 32 and 48 tokens, whatever the ratio asks for."""
    h2o = H2OConfig(local_window=8, sink_tokens=4, lookup_budget=0, chunk_size=16, research={"keep_ratio": 0.1})
    with h2o_llama.Llama(tiny_model, n_ctx=64, n_batch=64, h2o=h2o) as llm:
        llm.eval(random_tokens(50, seed=1))
        assert llm.kv.stats.kept_tokens == llm.kv.stats.floor_tokens == 12
        assert llm.kv.stats.lossy_ratio == 4
        assert llm.kv.stats.evicted_tokens == 0  # nothing is dropped without evict=True


def test_sizes_become_whole_blocks() -> None:
    h2o = H2OConfig(scorer="block_ema")
    assert (h2o.sink_tokens, h2o.local_window, h2o.heavy_budget) == (16, 64, 0)
    of_four = H2OConfig(local_window=5, heavy_budget=9, sink_tokens=1, scorer="block_ema", research={"block_tokens": 4})
    assert of_four.memory_size == 8 + 12 + 4
    assert replace(h2o, scorer="sum", local_window=5).local_window == 5


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"keep_ratio": 0}, "keep_ratio must be above 0"),
        ({"keep_ratio": 1.5}, "keep_ratio must be a finite number from 0 to 1, got 1.5"),
        ({"ema_alpha": 1.0, "scorer": "block_ema"}, "ema_alpha must be at least 0 and below 1"),
        ({"ema_alpha": float("nan")}, "ema_alpha must be a finite number"),
        ({"block_tokens": 0}, "block_tokens must be an integer of at least 1"),
        ({"shared_heads": 1}, "shared_heads must be True or False"),
    ],
)
def test_bad_settings(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        H2OConfig.from_dict(arguments)


def test_a_chunk_is_whole_blocks(tiny_model: Path) -> None:
    with pytest.raises(ValueError, match=r"must be multiples of block_tokens \(4\), got 18, 4, 8 and 4"):
        H2OConfig(chunk_size=18, local_window=4, heavy_budget=8, scorer="block_ema", research={"block_tokens": 4})
    with pytest.raises(ValueError, match=r"must be multiples of block_tokens \(16\), got 24"):
        make_cache(tiny_model, chunk_size=24, scorer="block_ema")
