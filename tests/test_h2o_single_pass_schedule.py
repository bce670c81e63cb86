"""`single_pass`: each chunk goes through the model once, with one softmax over its memory set and itself."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import h2o_llama
import phase_log
from compare import assert_all_equal, assert_logits_close, case
from inputs import ModelByName, limited, random_tokens, repetitive_tokens, split
from llamas import Config, assert_agrees_with_oracle, eval_calls, lookups_of, open_llama
from oracle import DenseOracle, GGUFModel, read_model
from oracle.dense import dense_forward
from oracle.kv_cache import OracleKVCache
from oracle.layers import output_logits
from pairwise import pairwise
from phase_log import fields

S = 16
CONFIG = Config(S=S, L=4, H=6, A=1, schedule="single_pass")
# More than any prompt here: every position stays in the memory set.
EVERYTHING = 300


def caches(llm: h2o_llama.Llama) -> dict[int, list[Any]]:
    """Copies of K and V of every layer."""
    return {il: [llm.kv.keys(il), llm.kv.values(il)] for il in llm.kv.layers}


def runs(llm: h2o_llama.Llama) -> tuple[int, int, int, int]:
    stats = llm.kv.stats
    return stats.single_pass_runs, stats.phase1_runs, stats.phase2_runs, stats.decode_steps


# --- P2: with every position in memory it is dense attention


@pairwise(
    "flash_attn",
    "model_path",
    sizes=[(0, EVERYTHING, 0), (S, 100_000, 0), (0, 1, EVERYTHING)],
    first_calls=[[], [10, 25, 2], [S, S]],
    kv_type=["f32", "f16", "bf16", "q8_0"],
    B=[0, 6],
)
def test_p2_everything_in_memory_is_dense(
    flash_attn: str,
    model_path: Path,
    oracle_model: GGUFModel,
    sizes: tuple[int, int, int],
    first_calls: list[int],
    kv_type: str,
    B: int,
) -> None:
    """Logits, K and V, in any split, against the oracle's dense attention; logits against the library's too.

    One memory set has room for more than the context. What is looked up is in a memory set anyway, and counts once.
    """
    L, H, A = sizes
    config = Config(S=S, L=L, H=H, A=A, B=B, T=4, kv_type=kv_type, flash_attn=flash_attn, schedule="single_pass")
    n = limited(100, model_path)
    tokens = repetitive_tokens(n, oracle_model.hparams.n_vocab, seed=1)
    calls = split(tokens, [*first_calls, n - sum(first_calls)])
    cache = OracleKVCache(oracle_model.hparams, kv_type)
    expected = output_logits(oracle_model, dense_forward(oracle_model, cache, np.array(tokens), np.float32))
    bound = config.tolerance(oracle_model).logits
    with open_llama(model_path, None) as llm:
        (dense,) = eval_calls(llm, [tokens])
    with open_llama(model_path, config) as llm:
        logits = np.concatenate(eval_calls(llm, calls))
        if B > 0 and A == 0:
            assert len(np.concatenate(lookups_of(llm))) > n // 5
        assert_logits_close(logits, expected, bound)
        if kv_type == "f32":
            assert_logits_close(logits, dense, bound)
        for il, kv in caches(llm).items():
            for got, want in zip(kv, cache.read(il, slice(n)), strict=True):
                assert_logits_close(got, want, bound)


@settings(max_examples=30, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    chunk_size=st.integers(2, 40), sizes=st.lists(st.integers(1, 40), min_size=1, max_size=6), seed=st.integers(0, 99)
)
def test_p2_any_chunk_size_and_calls(
    flash_attn: str, tiny_model: Path, chunk_size: int, sizes: list[int], seed: int
) -> None:
    """With decode steps in between: they are dense anyway."""
    model = read_model(tiny_model)
    tokens = random_tokens(sum(sizes), seed=seed)
    calls = split(tokens, sizes)
    config = Config(S=chunk_size, L=0, H=EVERYTHING, flash_attn=flash_attn, schedule="single_pass")
    with open_llama(tiny_model, config) as llm:
        logits = np.concatenate(eval_calls(llm, calls))
    expected = DenseOracle(model, "f32").logits(np.array(tokens))
    assert_logits_close(logits, expected, config.tolerance(model, calls).logits)


@pytest.mark.parametrize("H", [S, S + 1, 3 * S])
def test_memory_set_not_below_the_chunk_size_warns_and_works(tiny_model: Path, H: int) -> None:
    config = Config(S=S, L=0, H=H, schedule="single_pass")
    with pytest.warns(UserWarning, match="costs more than it saves"):
        assert_agrees_with_oracle(tiny_model, read_model(tiny_model), config, [random_tokens(100), [1], [2, 3]])


# --- K and V


def test_later_calls_rewrite_no_earlier_k_or_v(schedule: str, model_path: Path) -> None:
    """Every call, also one that continues a chunk, leaves the cache of earlier tokens bit for bit alone."""
    calls = split(random_tokens(60, seed=2), [20, 10, 1, 29])
    with open_llama(model_path, replace(CONFIG, schedule=schedule)) as llm:
        before: dict[int, list[Any]] = {}
        for call in calls:
            eval_calls(llm, [call])
            after = caches(llm)
            for il, arrays in before.items():
                for old, new in zip(arrays, after[il], strict=True):
                    np.testing.assert_array_equal(new[:, : old.shape[1]], old)
            before = after


# --- what runs


def test_one_run_per_piece_of_the_chunk_grid(tiny_model: Path) -> None:
    """A piece is what a call of at most n_batch tokens has of one chunk; a piece of one token is no decode step."""
    for sizes, n_batch, pieces in [
        ([2], 256, 1),
        ([S], 256, 1),
        ([S + 1], 256, 2),
        ([5 * S + 3], 256, 6),
        ([10, 20, 4, 26], 256, 7),
        ([4 * S], 2 * S, 4),
        ([6 * S], S + S // 2, 8),
        ([2 * S + 1], 2 * S, 3),
    ]:
        with case(sizes=sizes, n_batch=n_batch, pieces=pieces):
            tokens = random_tokens(sum(sizes))
            with open_llama(tiny_model, CONFIG, n_batch=n_batch) as llm:
                eval_calls(llm, split(tokens, sizes))
                assert runs(llm) == (pieces, 0, 0, 0)
                assert llm.kv.stats.prefill_tokens == len(tokens)
                assert llm.kv.stats.selections == (len(tokens) - 1) // S * len(llm.kv.layers)
                assert llm.kv.stats.single_pass_ms > 0
                assert llm.kv.stats.phase1_ms == llm.kv.stats.phase2_ms == llm.kv.stats.intra_bytes == 0


def test_log(tiny_model: Path) -> None:
    calls = [*split(random_tokens(60), [10, 20, 4, 26]), [1], [2, 3]]
    lines = phase_log.lines_of(tiny_model, CONFIG, calls, H2O_DEBUG_PHASES="1", H2O_DEBUG_CACHE="1")
    assert all("single_pass" in line for line in lines)
    logged = [fields(line) for line in lines]
    assert [f["pos"] for f in logged] == [0, 10, 16, 30, 32, 34, 48, 60, 61]
    assert [f["ubatch.n_tokens"] for f in logged] == [10, 6, 14, 2, 2, 14, 12, 1, 2]
    assert [f["chunk_idx"] for f in logged] == [0, 0, 1, 1, 2, 2, 3, 3, 3]
    assert [f["n_memory"] for f in logged] == [0, 0, *[CONFIG.M] * 7]
    assert phase_log.lines_of(tiny_model, CONFIG, calls) == []


# --- graphs


def test_a_reused_graph_gives_what_a_new_one_gives(
    flash_attn: str, model_by_name: ModelByName, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whole chunks one after another, pieces at the same place of their chunks, decode steps in between, and again."""
    config = Config(S=S, L=4, H=8, flash_attn=flash_attn, kv_type="f16", schedule="single_pass")
    sizes = [10 * S, 8, 8, S, 8, 8, 1, 1, 6, 8, S, 1, 7, 8, S]
    calls = split(random_tokens(sum(sizes), seed=5), sizes)
    results = {}
    for disabled in ("1", "0"):
        monkeypatch.setenv("LLAMA_GRAPH_REUSE_DISABLE", disabled)
        with open_llama(model_by_name("llama-gqa2-f32"), config) as llm:
            logits = eval_calls(llm, calls)
            reused = llm.kv.stats.graphs_reused
            llm.reset()
            results[disabled] = [*logits, *eval_calls(llm, calls), *(a for kv in caches(llm).values() for a in kv)]
            results[disabled] += [llm.kv.scores(il) for il in llm.kv.layers]
        # At least the whole chunks with a full memory set, but for the first of them.
        assert reused == 0 if disabled == "1" else reused >= 8
    assert_all_equal(results["1"], results["0"])
