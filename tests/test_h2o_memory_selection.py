"""Metrics 1 to 10 of the memory-set seed, on the stand-alone cache of every model, then on real prefill.

Ascending order wins over the seed's "first L entries are the local window" (design, section 3): the parts are what
`local_window_of` and `heavy_hitters` return.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from compare import assert_memory_is_well_formed, case
from inputs import limited, random_tokens
from llamas import Config, assert_history_is_well_formed, eval_calls, open_llama
from oracle import select_memory
from selection_table import SELECTION_TABLE
from standalone import H, L, M, S, add_chunk, first_layer, kept, make_cache, n_head_kv, per_head

# --- the stand-alone cache


def test_metric_1_local_window_correctness(model_path: Path, rng: np.random.Generator) -> None:
    cache = make_cache(model_path)
    for c in range(4):
        add_chunk(cache, rng.random((n_head_kv(cache), S), dtype=np.float32))
        expected = np.arange((c + 1) * S - L, (c + 1) * S)
        for head in range(n_head_kv(cache)):
            np.testing.assert_array_equal(cache.local_window_of(first_layer(cache), head), expected)
            np.testing.assert_array_equal(cache.memory_indices(first_layer(cache))[head, -L:], expected)


def test_metric_2_heavy_hitter_selection(model_path: Path) -> None:
    """The seed's scores repeat, so the threshold is a tie: 9, 19, 29, 39 have 0.9, and so on downwards."""
    cache = make_cache(model_path)
    scores = np.array([(i % 10) * 0.1 for i in range(S)])
    add_chunk(cache, per_head(cache, scores))
    candidates = sorted(range(S - L), key=lambda p: (-np.float32(scores[p]), p))
    for head in range(n_head_kv(cache)):
        assert cache.heavy_hitters(first_layer(cache), head).tolist() == sorted(candidates[:H])


def test_metric_3_cross_chunk_propagation(model_path: Path) -> None:
    """A token of chunk 0 that inter attention keeps confirming stays through M_3; one that nobody attends to goes."""
    cache = make_cache(model_path)
    important, once_important = 42, 17
    scores = np.full(S, 0.1)
    scores[important], scores[once_important] = 10.0, 5.0
    add_chunk(cache, per_head(cache, scores))
    for c in range(1, 4):
        memory = kept(cache)
        assert important in memory
        inter = np.full(M, 0.05)
        inter[memory.index(important)] = 1.0
        cache.accumulate_memory_scores(first_layer(cache), per_head(cache, inter))
        # From chunk 2 on, each chunk has enough better tokens to crowd out all but the important one.
        add_chunk(cache, per_head(cache, np.full(S, 0.1 if c == 1 else 6.0 + c)))
        assert (once_important in kept(cache)) == (c == 1)
    for head in range(n_head_kv(cache)):
        assert important in kept(cache, head)


def test_metric_4_per_head_independence(model_path: Path) -> None:
    cache = make_cache(model_path)
    n_kv = n_head_kv(cache)
    heads, positions = np.mgrid[:n_kv, :S]
    add_chunk(cache, np.sin(heads * 1.5 + positions * 0.1).astype(np.float32))
    different = sum(kept(cache, head) != kept(cache, head + 1) for head in range(n_kv - 1))
    assert different * 2 > n_kv - 1 or n_kv == 1
    # Independence: a head's memory set is what its own scores give.
    for head in range(n_kv):
        scores = cache.scores(first_layer(cache))[head]
        expected = select_memory(scores, np.array([-1], dtype=np.int32), 0, S, L=L, H=H, A=0)
        np.testing.assert_array_equal(cache.memory_indices(first_layer(cache))[head], expected)


def test_metric_6_edge_case_single_chunk(model_path: Path) -> None:
    """N = S."""
    cache = make_cache(model_path)
    assert not cache.memory_initialized
    assert np.all(cache.memory_indices(first_layer(cache)) == -1)
    add_chunk(cache, per_head(cache, np.full(S, 0.5)))
    assert cache.memory_initialized
    assert cache.chunk_index == 1
    assert cache.n_tokens == S
    # All scores are equal: the lowest positions win the ties.
    for head in range(n_head_kv(cache)):
        assert kept(cache, head) == [*range(H), *range(S - L, S)]


def test_metric_7_edge_case_partial_chunk(model_path: Path, rng: np.random.Generator) -> None:
    """N = 2S - 1: a set may be asked for at the end of a partial chunk too."""
    cache = make_cache(model_path)
    add_chunk(cache, rng.random((n_head_kv(cache), S), dtype=np.float32))
    add_chunk(cache, rng.random((n_head_kv(cache), S - 1), dtype=np.float32))
    assert cache.memory_initialized
    assert cache.n_tokens == 2 * S - 1
    assert cache.chunk_index == 2
    assert_memory_is_well_formed(cache.memory_indices(first_layer(cache)), end=2 * S - 1, L=L, H=H, A=0)


def test_metric_8_edge_case_very_small_sequence(model_path: Path) -> None:
    """N < L: everything is local, nothing is heavy."""
    n = L // 2
    cache = make_cache(model_path)
    add_chunk(cache, per_head(cache, np.full(n, 0.5)))
    for head in range(n_head_kv(cache)):
        assert kept(cache, head) == list(range(n))
        assert cache.local_window_of(first_layer(cache), head).tolist() == list(range(n))
        assert cache.heavy_hitters(first_layer(cache), head).size == 0


def test_metrics_5_9_and_10_order_size_and_bounds(model_path: Path, rng: np.random.Generator) -> None:
    for size, local, heavy in ((S, L, H), (8, 4, 24)):
        cache = make_cache(model_path, chunk_size=size, local_window=local, heavy_budget=heavy)
        for c in range(4):
            add_chunk(cache, rng.random((n_head_kv(cache), size), dtype=np.float32))
            memory = cache.memory_indices(first_layer(cache))
            assert memory.shape[1] == cache.memory_size == local + heavy
            n_valid = min(local + heavy, (c + 1) * size)
            assert np.all((memory >= 0).sum(axis=1) == n_valid)
            assert np.all(np.diff(memory[:, :n_valid], axis=1) > 0)
            assert memory.min() >= -1
            assert memory.max() < (c + 1) * size


def test_hand_computed_tables(tiny_model: Path) -> None:
    for scores, previous, size, c, local, heavy, sinks, positions in SELECTION_TABLE:
        with case(scores=scores, previous=previous, L=local, H=heavy, A=sinks):
            cache = make_cache(tiny_model, chunk_size=size, local_window=local, heavy_budget=heavy, sink_tokens=sinks)
            if c:
                # Make M_0 the table's by raising the scores of what it holds, and take that off again.
                first = np.array(scores[:size])
                first[previous] += 100
                add_chunk(cache, per_head(cache, first))
                assert kept(cache) == previous
                cache.accumulate_memory_scores(first_layer(cache), per_head(cache, np.full(cache.memory_size, -100)))
            add_chunk(cache, per_head(cache, scores[c * size :]))
            assert cache.memory_indices(first_layer(cache))[0].tolist() == positions


def test_random_scores_agree_with_the_oracle(tiny_model: Path, rng: np.random.Generator) -> None:
    """Many ties, negative and huge scores; five chunks on end."""
    for L_, H_, A_ in ((16, 16, 0), (0, 5, 3), (64, 0, 1), (1, 200, 70)):
        cache = make_cache(tiny_model, local_window=L_, heavy_budget=H_, sink_tokens=A_)
        n_kv = n_head_kv(cache)
        expected = np.full((n_kv, A_ + L_ + H_), -1, dtype=np.int32)
        for c in range(5):
            colsum = rng.choice([-1.0, 0.0, 0.5, 0.5, 1.0, 1e30, 1e-30], (n_kv, S)).astype(np.float32)
            add_chunk(cache, colsum)
            expected = np.stack(
                [
                    select_memory(row, previous, c * S, (c + 1) * S, L=L_, H=H_, A=A_)
                    for row, previous in zip(cache.scores(first_layer(cache)), expected, strict=True)
                ]
            )
            np.testing.assert_array_equal(cache.memory_indices(first_layer(cache)), expected)


# --- real prefill


def recorded(path: Path, config: Config, n: int) -> Any:
    llm = open_llama(path, config)
    eval_calls(llm, [random_tokens(n, seed=1)])
    return llm


def test_prefill_sets_have_metrics_1_5_9_and_10(schedule: str, model_path: Path) -> None:
    """Local window, order, size and bounds of every set of every layer and head of a real prompt."""
    for L_, H_, A_ in ((4, 4, 0), (0, 24, 2), (16, 0, 0), (1, 100, 0)):
        config = Config(S=16, L=L_, H=H_, A=A_, schedule=schedule)
        with recorded(model_path, config, limited(120, model_path)) as llm:
            assert_history_is_well_formed(llm, config)


def test_prefill_heads_select_independently(schedule: str, model_path: Path) -> None:
    """Metric 4: more than half of the pairs of neighbours differ in what they keep. A head's neighbour is the layer's
    next head, the last head's is the next layer's first."""
    with recorded(model_path, Config(S=16, L=4, H=4, schedule=schedule), limited(120, model_path)) as llm:
        rows = np.concatenate([llm.kv.memory_indices(il) for il in llm.kv.layers])
        assert np.mean(np.any(rows[1:] != rows[:-1], axis=1)) > 0.5


def test_prefill_tokens_survive_three_chunks(schedule: str, model_path: Path) -> None:
    """Metric 3: some heavy hitter of chunk 0 is still in M_2, in some head of some layer, without being local."""
    with recorded(model_path, Config(S=16, L=2, H=12, schedule=schedule), 64) as llm:
        assert any(np.any((m[il] >= 0) & (m[il] < 16)) for m in llm.kv.history[2:3] for il in llm.kv.layers)
