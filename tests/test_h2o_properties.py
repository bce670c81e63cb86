"""Properties P1 to P3 and P6 of the design, section 3, of both schedules. P4 and P5: test_h2o_oracle.py.

Against a user's model (LLAMACPP_TEST_MODELFILE) the oracle compares 64 tokens at most, in chunks of 16.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import h2o_llama
from cases import CACHE_POSITIONS, EVICT, EVICTING, KEPT, LOOKUP, SMALL, UNSCORED, Case, S, configurations
from compare import assert_all_equal, assert_logits_close, assert_same_history, assert_scores_close, case
from inputs import ModelByName, limited, random_tokens, repetitive_tokens, small, split
from llamas import (
    Config,
    decode_calls,
    eval_calls,
    lookups_of,
    open_llama,
    view,
)
from oracle import DenseOracle, GGUFModel
from pairwise import pairwise
from tolerances import SELF_LOGITS_F32

# --- P1: what fits in one chunk is ordinary causal attention


@pairwise("schedule", "flash_attn", "model_path")
def test_p1_prompt_within_one_chunk_is_dense(
    schedule: str, flash_attn: str, model_path: Path, oracle_model: GGUFModel
) -> None:
    n = limited(100, model_path)
    tokens = random_tokens(n, oracle_model.hparams.n_vocab)
    expected = DenseOracle(oracle_model, "f32").logits(np.array(tokens))
    configs = [Config(S=S, L=4, H=4, flash_attn=flash_attn, schedule=schedule) for S in (n, n + 1, 256)]
    bound = configs[0].tolerance(oracle_model).logits
    for config in configs:
        with open_llama(model_path, config) as llm:
            (logits,) = eval_calls(llm, [tokens])
            assert_logits_close(logits, expected, bound)
            assert not llm.kv.memory_initialized
    with open_llama(model_path, None) as llm:
        (dense,) = eval_calls(llm, [tokens])
    assert_logits_close(dense, expected, bound)


# --- P2: what has everything in memory is dense, prompts in test_h2o_single_pass_schedule.py


@pairwise("flash_attn", "model_path", decode=["full", "memory"], sizes=[[1] * 30, [3, 1, 5, S + 3, 1]])
def test_p2_generated_tokens_are_dense(
    flash_attn: str, model_path: Path, oracle_model: GGUFModel, decode: str, sizes: list[int]
) -> None:
    """One token or several, over the ends of chunks. With decode="full" scores do not change."""
    config = SMALL.but(heavy_budget=1024, lookup_budget=8, decode=decode, flash_attn=flash_attn)
    n = limited(60, model_path)
    tokens = repetitive_tokens(n, oracle_model.hparams.n_vocab, seed=4)
    n_prompt = n - sum(sizes)
    expected = DenseOracle(oracle_model, "f32").logits(np.array(tokens))
    with open_llama(model_path, config) as llm:
        llm.eval(tokens[:n_prompt])
        scores = [llm.kv.scores(il) for il in llm.kv.layers]
        got = decode_calls(llm, split(tokens[n_prompt:], sizes))
        assert_logits_close(got, expected[n_prompt:], config.tolerance(oracle_model, [[0]]).logits)
        for il, before in zip(llm.kv.layers, scores, strict=True) if decode == "full" else ():
            np.testing.assert_array_equal(llm.kv.scores(il)[:, :n_prompt], before)
            assert not llm.kv.scores(il)[:, n_prompt:].any()


# --- P3: a text may come in any split into calls


@pytest.mark.parametrize("name", [name for name in (*KEPT, *EVICTING, *UNSCORED) if "index" not in name])
def test_p3_whoever_wrote_the_text(tiny_model: Path, name: str) -> None:
    """A prompt in parts; generated tokens one by one or several at once, which are causal among themselves.

    With decode="memory" and one pass it is all the same, else generated tokens are computed otherwise than a prompt's.
    """
    config = (KEPT | EVICTING | UNSCORED)[name].but(kv_type="f32")
    n, is_same = 130, config.h2o.decode == "memory" and config.h2o.schedule == "single_pass"
    if is_same:
        config = config.but(chunk_size=40)
    tokens = repetitive_tokens(n, seed=1)
    n_read = 0 if is_same else 70
    ways = [split(tokens[:n_read], sizes) for sizes in ([n_read], [2, 30, 1, 16, n_read - 49]) if n_read]
    with open_llama(tiny_model, config) as llm, open_llama(tiny_model, config) as other:
        (expected,) = eval_calls(llm, [tokens if is_same else tokens[:n_read]], decode=False)
        if not is_same:
            expected = np.concatenate([expected, decode_calls(llm, [[token] for token in tokens[n_read:]])])
        for sizes in ([1] * (n - n_read), [3, 1, 16, 23, 1, n - n_read - 44], [n - n_read]):
            for prompt in ways or [[]]:
                other.reset()
                got = eval_calls(other, prompt, decode=False)
                got.append(decode_calls(other, split(tokens[n_read:], sizes)))
                with case(sizes=sizes, prompt=[len(call) for call in prompt]):
                    assert_same_to_rounding(other, np.concatenate(got), llm, expected)
        if is_same:
            sizes = [30, *[1] * 25, 7, *[1] * 3, 20, *[1] * 25, 4, 16]
            other.reset()
            assert_same_to_rounding(other, np.concatenate(eval_calls(other, split(tokens, sizes))), llm, expected)


def assert_same_to_rounding(llm: h2o_llama.Llama, got: Any, other: h2o_llama.Llama, want: Any) -> None:
    """Logits, memory sets, lookups, and scores."""
    assert_logits_close(got, want, SELF_LOGITS_F32)
    assert (llm.n_tokens, llm.kv.chunk_index) == (other.n_tokens, other.kv.chunk_index)
    assert_same_history(llm.kv.history, other.kv.history)
    assert_all_equal(lookups_of(llm), lookups_of(other))
    for il in other.kv.layers:
        scores = other.kv.scores(il)
        kept = ~np.isnan(scores)
        np.testing.assert_array_equal(~np.isnan(llm.kv.scores(il)), kept)
        assert_scores_close(llm.kv.scores(il)[kept], scores[kept], 1e-3)


@small(40)
@given(
    config=configurations(),
    sizes=st.lists(st.one_of(st.integers(1, 30), st.just(1)), min_size=1, max_size=8),
    n_ubatch=st.integers(1, 40),
    seed=st.integers(0, 10_000),
)
def test_p3_any_split(
    flash_attn: str, tiny_model: Path, config: Case, sizes: list[int], n_ubatch: int, seed: int
) -> None:
    """Nor does it matter how many tokens are computed at once."""
    config = config.but(flash_attn=flash_attn)
    tokens = repetitive_tokens(sum(sizes), seed=seed)
    with open_llama(tiny_model, config) as whole, open_llama(tiny_model, config, n_ubatch=n_ubatch) as parts:
        (expected,) = eval_calls(whole, [tokens], decode=False)
        for calls in (split(tokens, sizes), [[token] for token in tokens]):
            parts.reset()
            got = np.concatenate(eval_calls(parts, calls, decode=False))
            assert_same_to_rounding(parts, got, whole, expected)


@pairwise(
    "schedule", "flash_attn", n_ubatch=[64, 100, 512, 2048], decode=["full", "memory"], kind=["plain", "evict", "index"]
)
def test_n_ubatch_changes_no_result(
    schedule: str, flash_attn: str, tiny_model: Path, n_ubatch: int, decode: Any, kind: str
) -> None:
    """A chunk is as many steps as it takes: memory sets, logits, lookups, a dense tail and generated tokens."""
    config = Config(S=256, L=20, H=40, A=2, B=16, T=4, schedule=schedule, flash_attn=flash_attn, decode=decode)
    if kind == "evict" and schedule == "single_pass":
        config = replace(config, B=0, decode="memory", evict=True, dense_layers=(1,))
    elif kind == "index" and flash_attn == "on" and os.environ.get("H2O_NO_FUSED_ATTENTION") != "1":
        config = replace(config, retrieval="index")
    tokens = repetitive_tokens(900, seed=3)
    found = []
    for size in (None, n_ubatch):
        with open_llama(tiny_model, config, n_batch=2048, n_ubatch=size) as llm:
            logits = eval_calls(llm, [tokens[:700], tokens[700:701], tokens[701:]], dense_tail=90)
            found.append((np.concatenate(logits), llm.kv.history, lookups_of(llm)))
            assert llm.kv.chunk_size == 256
    (expected, history, lookups), (actual, other_history, other_lookups) = found
    assert_logits_close(actual, expected, SELF_LOGITS_F32)
    assert_same_history(other_history, history)
    assert_all_equal(other_lookups, lookups)


@pairwise("schedule", n=[64, 65, 97, 160], n_batch=[16, 21, 32, 37])
def test_p3_prompt_longer_than_n_batch(schedule: str, tiny_model: Path, n: int, n_batch: int) -> None:
    """`eval` makes several calls of it, perhaps one of a single token. They find the same in the text."""
    config = Config(S=16, L=4, H=6, B=6, T=4, schedule=schedule)
    tokens = repetitive_tokens(n, seed=2)
    with open_llama(tiny_model, config) as whole, open_llama(tiny_model, config, n_batch=n_batch) as parts:
        (expected,) = eval_calls(whole, [tokens])
        (actual,) = eval_calls(parts, [tokens])
        assert actual.shape == expected.shape == (n, whole.n_vocab)
        assert_logits_close(actual, expected, SELF_LOGITS_F32)
        assert len(np.concatenate(lookups_of(whole))) > n // 4
        assert_all_equal(lookups_of(parts), lookups_of(whole))
        parts.reset()
        parts.eval(tokens)
        assert parts.logits.shape == (1, whole.n_vocab)
        assert_logits_close(parts.logits, expected[-1:], SELF_LOGITS_F32)


# --- P6: sequences do not see each other


def test_p6_nothing_survives_reset(schedule: str, model_path: Path) -> None:
    config = Config(S=16, L=4, H=6, A=1, B=6, T=4, kv_type="f16", schedule=schedule)
    n = limited(80, model_path)
    with open_llama(model_path, config) as used, open_llama(model_path, config) as fresh:
        first, second = repetitive_tokens(n, seed=9), repetitive_tokens(n + 3, seed=10)[3:]
        eval_calls(used, [first, [first[0]]])
        used.reset()
        assert used.kv.n_tokens == 0
        assert used.kv.chunk_index == 0
        assert used.kv.stats.prefill_tokens == used.kv.stats.decode_steps == 0
        assert not used.kv.memory_initialized
        for il in used.kv.layers:
            assert np.all(used.kv.memory_indices(il) == -1)
            assert used.kv.scores(il).shape[1] == 0
        assert len(used.kv.history) == 0

        np.testing.assert_array_equal(eval_calls(used, [second])[0], eval_calls(fresh, [second])[0])
        assert_all_equal(view(used), view(fresh))
        assert len(np.concatenate(lookups_of(used))) > 10


def test_p6_two_contexts_do_not_mix(schedule: str, tiny_model: Path) -> None:
    config = Config(S=16, L=4, H=6, B=6, T=4, schedule=schedule)
    prompts = [repetitive_tokens(60, seed=11), repetitive_tokens(60, seed=12)]
    alone, views = [], []
    for tokens in prompts:
        with open_llama(tiny_model, config) as llm:
            alone.append(eval_calls(llm, split(tokens, [20, 40])))
            views.append(view(llm))
    with open_llama(tiny_model, config) as a, open_llama(tiny_model, config) as b:
        for call in range(2):
            for llm, tokens, expected in zip((a, b), prompts, alone, strict=True):
                (logits,) = eval_calls(llm, [split(tokens, [20, 40])[call]])
                np.testing.assert_array_equal(logits, expected[call])
        for llm, expected in zip((a, b), views, strict=True):
            assert_all_equal(view(llm), expected)


# --- graphs

LARGE = LOOKUP.but(chunk_size=300, local_window=20, heavy_budget=30, sink_tokens=0, lookup_budget=8, kv_type="f16")
# model, configuration, tokens, how many of them are a prompt, how many graphs the others need
REUSED: dict[str, tuple[str, Case, list[int], int, int]] = {
    # All but the first step, and the first that needs more than 256 rows, to which a step's rows are padded.
    "decode full": ("llama-gqa2-f32", SMALL.but(heavy_budget=1024, kv_type="f16"), random_tokens(300, seed=4), 200, 2),
    # While memory set and chunk need no more than 256 rows. A dense layer's grow to 1,024.
    "lookups": ("llama-gqa2-f32", LARGE, repetitive_tokens(790, seed=7), 690, 1),
    "dense layer": ("llama-gqa2-f32", LARGE.but(dense_layers=(1,)), repetitive_tokens(790, seed=7), 690, 2),
    # A new one for the first token and for the chunk that begins at 400.
    "index": (
        "llama-gqa2-f32",
        LARGE.but(chunk_size=100, retrieval="index", tile=16),
        random_tokens(460, seed=8),
        350,
        2,
    ),
    # Also over the ends of chunks, where rows move; positions are an input.
    "evict": ("qwen3-gqa4-f32", EVICT.but(chunk_size=8), random_tokens(200), 100, 1),
    "evict, positions": ("qwen3-gqa4-f32", CACHE_POSITIONS.but(chunk_size=8), random_tokens(200), 100, 1),
}


@pytest.mark.parametrize(("name", "is_fused"), [*((name, True) for name in REUSED), ("decode full", False)])
def test_graphs_are_used_again(
    model_by_name: ModelByName, monkeypatch: pytest.MonkeyPatch, name: str, is_fused: bool
) -> None:
    """Tokens generated one by one need so many new graphs, and have the same bits as with one for each."""
    model, config, tokens, n_prompt, n_built = REUSED[name]
    monkeypatch.setenv("H2O_NO_FUSED_ATTENTION", "0" if is_fused else "1")
    logits = []
    for disabled in ("1", "0"):
        monkeypatch.setenv("LLAMA_GRAPH_REUSE_DISABLE", disabled)
        with open_llama(model_by_name(model), config) as llm:
            eval_calls(llm, [tokens[:n_prompt]])
            before = llm.kv.stats.graphs_reused
            logits.append(decode_calls(llm, [[token] for token in tokens[n_prompt:]]))
            n_reused = llm.kv.stats.graphs_reused - before
            assert n_reused == (0 if disabled == "1" else len(tokens) - n_prompt - n_built)
    np.testing.assert_array_equal(logits[0], logits[1])
