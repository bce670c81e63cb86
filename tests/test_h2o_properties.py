"""Properties P1 and P3 to P6 of the design, section 3, of both schedules, against the oracle of the whole model.

Against a user's model (LLAMACPP_TEST_MODELFILE) the oracle compares 64 tokens at most, in chunks of 16.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from compare import assert_all_equal, assert_logits_close, assert_same_history, assert_same_memory
from inputs import ModelByName, is_external, limited, random_tokens, repetitive_tokens, split
from llamas import (
    POSITION_SCORERS,
    Config,
    assert_agrees_with_oracle,
    assert_history_is_well_formed,
    eval_calls,
    lookups_of,
    open_llama,
    view,
)
from oracle import DenseOracle, GGUFModel, read_model
from pairwise import pairwise
from tolerances import SELF_LOGITS_F32

CONFIGS = st.builds(
    Config,
    S=st.integers(4, 24),
    L=st.integers(0, 4),
    H=st.integers(1, 12),
    A=st.integers(0, 3),
)
# Lengths of prefill calls.
SPLITS = st.lists(st.one_of(st.integers(1, 30), st.just(1)), min_size=1, max_size=8)
# Lengths of calls, of which those of one token are decode steps.
CALLS = st.lists(st.one_of(st.integers(2, 30), st.just(1)), min_size=2, max_size=8)
SEEDS = st.integers(0, 10_000)

# `flash_attn` sets an environment variable for all examples alike.
small = settings(
    max_examples=30, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


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


# --- P3: a prompt may be fed in any split into calls


@small
@given(config=CONFIGS, scorer=st.sampled_from(POSITION_SCORERS), sizes=SPLITS, n_ubatch=st.integers(1, 40), seed=SEEDS)
def test_p3_split_invariance(
    schedule: str,
    flash_attn: str,
    tiny_model: Path,
    config: Config,
    scorer: str,
    sizes: list[int],
    n_ubatch: int,
    seed: int,
) -> None:
    """Nor does it matter how many tokens are computed at once."""
    config = replace(config, flash_attn=flash_attn, schedule=schedule, scorer=scorer)
    tokens = random_tokens(sum(sizes), seed=seed)
    with open_llama(tiny_model, config) as whole, open_llama(tiny_model, config, n_ubatch=n_ubatch) as parts:
        (expected,) = eval_calls(whole, [tokens], decode=False)
        actual = np.concatenate(eval_calls(parts, split(tokens, sizes), decode=False))
        assert parts.kv.chunk_index == whole.kv.chunk_index
        assert parts.kv.n_tokens == whole.kv.n_tokens == len(tokens)
        assert_same_history(parts.kv.history, whole.kv.history)
        assert_logits_close(actual, expected, SELF_LOGITS_F32)


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


# --- P4: what a memory set may hold


@small
@given(config=CONFIGS, sizes=CALLS, seed=SEEDS)
def test_p4_memory_sets_are_well_formed(
    schedule: str, model_by_name: ModelByName, config: Config, sizes: list[int], seed: int
) -> None:
    config = replace(config, schedule=schedule)
    for name in ("qwen3-gqa4-f32", "deci-mixed-f32"):
        with open_llama(model_by_name(name), config) as llm:
            for call in split(random_tokens(sum(sizes), seed=seed), sizes):
                llm.eval(call)
                assert_history_is_well_formed(llm, config)
                assert llm.kv.memory_size == config.M
                assert llm.kv.chunk_size == config.S
                assert llm.kv.memory_initialized == (llm.kv.n_tokens > config.S)


# --- P5: the oracle of the whole model


@small
@given(config=CONFIGS, sizes=CALLS, seed=SEEDS)
def test_p5_any_configuration_and_calls(
    schedule: str, flash_attn: str, model_by_name: ModelByName, config: Config, sizes: list[int], seed: int
) -> None:
    config = replace(config, flash_attn=flash_attn, schedule=schedule)
    path = model_by_name("qwen3-gqa4-f32")
    assert_agrees_with_oracle(path, read_model(path), config, split(random_tokens(sum(sizes), seed=seed), sizes))


@pairwise(
    "schedule",
    "flash_attn",
    "model_path",
    config=[
        Config.defaults(32),
        Config(S=16, L=4, H=4),
        Config(S=16, L=0, H=8, A=2),
        Config(S=16, L=16, H=0),
        Config(S=16, L=4, H=60),
    ],
)
def test_p5_every_model(
    schedule: str, flash_attn: str, model_path: Path, oracle_model: GGUFModel, config: Config
) -> None:
    n = limited(150, model_path)
    tokens = random_tokens(n, oracle_model.hparams.n_vocab, seed=3)
    config = replace(config, flash_attn=flash_attn, schedule=schedule)
    assert_agrees_with_oracle(model_path, oracle_model, config, [tokens])


@pairwise("schedule", "flash_attn", "model_path", kv_type=["f16", "bf16", "q8_0"])
def test_p5_every_cache_type(
    schedule: str, flash_attn: str, model_path: Path, oracle_model: GGUFModel, kv_type: str
) -> None:
    """Prefill, a decode step, prefill again. With flash attention, dense attention (decode) sums in F16."""
    config = Config(S=16, L=4, H=8, kv_type=kv_type, flash_attn=flash_attn, schedule=schedule)
    sizes = [40, 1, 1, 22] if is_external(model_path) else [70, 1, 1, 40]
    tokens = random_tokens(sum(sizes), oracle_model.hparams.n_vocab, seed=4)
    assert_agrees_with_oracle(model_path, oracle_model, config, split(tokens, sizes))


@pytest.mark.parametrize(
    ("schedule", "flash_attn", "config"),
    [
        ("single_pass", "fused", Config.defaults(1024, kv_type="f16")),
        ("two_phase", "fused", Config(S=1024, L=256, H=256, kv_type="f16")),
        ("single_pass", "composed", Config(S=512, L=128, H=64, kv_type="f16", B=128, T=64)),
    ],
    indirect=["schedule", "flash_attn"],
)
def test_p5_long_prompt_of_large_chunks(
    schedule: str, flash_attn: str, model_by_name: ModelByName, config: Config
) -> None:
    """The sizes of real use, the defaults first."""
    path = model_by_name("llama-gqa2-f32")
    config = replace(config, flash_attn=flash_attn, schedule=schedule)
    tokens = repetitive_tokens(2500, seed=6)
    oracle = assert_agrees_with_oracle(path, read_model(path), config, [tokens[:1100], tokens[1100:]], n_ctx=4096)
    assert len(oracle.log) > 1000 or not config.B


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


def test_library_and_oracle_choose_the_same_memory_without_rounding(
    schedule: str, flash_attn: str, tiny_model: Path
) -> None:
    """`assert_agrees_with_oracle` forgives near ties; with nothing rounded there should be none here."""
    config = Config(S=32, L=4, H=12, flash_attn=flash_attn, schedule=schedule)
    tokens = random_tokens(200, seed=9)
    oracle = config.oracle(read_model(tiny_model), dtype=np.float64)
    oracle.eval(tokens)
    with open_llama(tiny_model, config) as llm:
        eval_calls(llm, [tokens])
        for got, want in zip(llm.kv.history, oracle.history, strict=True):
            for il in llm.kv.layers:
                assert_same_memory(np.asarray(got[il]), want[il], oracle.scores(il), margin=0.0)
