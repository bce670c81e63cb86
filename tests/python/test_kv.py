"""`llm.kv`: arrays, counters, and the answers without H2O. Choosing by scores: test_kv_cache.py."""

import os
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

from compare import assert_all_equal
from h2o_llama import H2OConfig, H2OError, KVCache, KVStats, Llama
from inputs import random_tokens
from llamas import TINY, open_tiny

S, L, H, A = TINY.chunk_size, TINY.local_window, int(TINY.heavy_budget), TINY.sink_tokens
LAYERS, N_HEAD_KV, HEAD_DIM = [0, 1, 2], 2, 32  # QWEN3_GQA4


def test_arrays_are_copies(llm: Llama) -> None:
    """They do not change under the reader, nor can the reader change the cache."""
    llm.eval(random_tokens(40))
    kv = llm.kv
    arrays: list[Any] = [llm.logits, *(read(0) for read in (kv.memory_indices, kv.scores, kv.keys, kv.values))]
    before = [array.copy() for array in arrays]
    llm.eval(random_tokens(40, seed=1))
    assert_all_equal(arrays, before)
    for read in (kv.memory_indices, kv.scores, kv.keys, kv.values):
        array: Any = read(0)
        array[:] = 7
        assert not np.array_equal(read(0), array)


@pytest.mark.parametrize("schedule", ["single_pass", "two_phase"])
def test_profile(tiny_model: Path, flash_attn: str, schedule: Literal["single_pass", "two_phase"]) -> None:
    """The parts of the prefill, on top of the same results; the operator gathers by itself."""
    h2o = H2OConfig(local_window=L, heavy_budget=H, lookup_budget=0, scorer="sum", schedule=schedule, chunk_size=S)
    results = []
    for profile in (True, False):
        with open_tiny(tiny_model, h2o=h2o, flash_attn=flash_attn, profile=profile) as llm:
            llm.eval(random_tokens(60))
            results.append([llm.logits, *(llm.kv.scores(il) for il in LAYERS)])
            stats = llm.kv.stats
        parts = (stats.gather_ms, stats.attention_ms, stats.score_ms)
        if not profile:
            assert parts == (0, 0, 0)
            continue
        assert min(stats.attention_ms, stats.score_ms) > 0
        assert sum(parts) < stats.single_pass_ms + stats.phase1_ms + stats.phase2_ms
        composed = os.environ["H2O_NO_FUSED_ATTENTION"] == "1"
        assert (stats.gather_ms > 0) == composed
    assert_all_equal(*results)


def test_kv_without_h2o(tiny_model: Path) -> None:
    with open_tiny(tiny_model, h2o=None) as dense:
        dense.eval(random_tokens(40))
        assert dense.h2o is None
        assert dense.kv.n_tokens == 40
        assert dense.kv.stats == KVStats(kv_bytes=len(LAYERS) * 256 * N_HEAD_KV * HEAD_DIM * 2 * 2)
        for look in (lambda kv: kv.layers, lambda kv: kv.chunk_size, lambda kv: kv.history, lambda kv: kv.scores(0)):
            with pytest.raises(H2OError, match="H2O is off"):
                look(dense.kv)


def test_stand_alone_cache_outlives_the_model_it_was_made_from(tiny_model: Path) -> None:
    with open_tiny(tiny_model) as llm:
        cache = KVCache(llm, kv_size=64, chunk_size=S, local_window=L, heavy_budget=H)
    cache.init_chunk_scores(0, 0, np.ones((N_HEAD_KV, S)))
    assert cache.layers == LAYERS
    assert cache.kv_size >= 64
