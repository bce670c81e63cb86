"""decode="memory": what generated tokens attend to is scored, as a prompt's is, and can be taken back."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import h2o_llama
from compare import assert_all_equal, assert_logits_close, assert_same_history, assert_scores_close, case
from h2o_llama import H2OError
from inputs import random_tokens, repetitive_tokens, split
from llamas import Config, arrays, decode_calls, eval_calls, min_position, open_llama, restore, state_of
from tolerances import FLASH_ATTN_DECODE, SELF_LOGITS_F32

S = 40
"""More than the tokens whose parts in the scores are kept one by one: 16."""
CONFIG = Config(S=S, L=6, H=12, A=2, decode="memory")
DISTANT = replace(CONFIG, scorer="distant")
LOOKUP = replace(DISTANT, B=8, T=4)
CONFIGS = {
    "sum": CONFIG,
    "distant": DISTANT,
    "lookup": replace(CONFIG, B=8, T=4),
    "distant, lookup": LOOKUP,
    "many lookups": replace(CONFIG, B=200, T=1),
    "index": replace(DISTANT, B=300, retrieval="index"),  # all there are: choices have near ties
    "dense layer": replace(LOOKUP, dense_layers=(0,)),
    "composed": replace(LOOKUP, flash_attn="off"),
    "composed, dense layer": replace(CONFIG, flash_attn="off", dense_layers=(1,)),
    "short chunks": replace(DISTANT, S=10, L=3),
    "evict": replace(DISTANT, evict=True),
    "evict, sum": replace(CONFIG, evict=True, kv_type="f16"),
    "evict, composed": replace(DISTANT, evict=True, flash_attn="off"),
}
N = 190


def assert_same_to_rounding(got: h2o_llama.Llama, want: h2o_llama.Llama, bound: float) -> None:
    assert len(got.kv.history) == len(want.kv.history)
    assert_same_history(got.kv.history, want.kv.history)
    for il in want.kv.layers:
        scores = want.kv.scores(il)
        kept = ~np.isnan(scores)
        np.testing.assert_array_equal(~np.isnan(got.kv.scores(il)), kept)
        assert_scores_close(got.kv.scores(il)[kept], scores[kept], bound)


def test_on_a_device_without_h2os_operator(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """ggml's flash attention where rows lie together, with sums beside it; and graphs are used again."""
    tokens = repetitive_tokens(N, seed=1)
    evicting = [CONFIGS["evict"], CONFIGS["evict, sum"]]
    evicting += [replace(CONFIG, evict=True, dense_layers=(0,))]
    for config in [replace(config, kv_type="f16") for config in evicting]:
        with case(config=config), open_llama(tiny_model, config) as llm:
            (expected,) = eval_calls(llm, [tokens])
            history, scores = llm.kv.history, [llm.kv.scores(il) for il in llm.kv.layers]
        with case(config=config), monkeypatch.context() as patch:
            patch.setenv("H2O_NO_FUSED_ATTENTION", "1")
            with open_llama(tiny_model, config) as llm:
                got = decode_calls(llm, split(tokens, [3, 16, 20, *[1] * (N - 39)]))
                assert_logits_close(got, expected, SELF_LOGITS_F32 + FLASH_ATTN_DECODE.logits)
                assert llm.kv.stats.graphs_reused > N / 2
                assert_same_history(llm.kv.history, history)
                for il, want in zip(llm.kv.layers, scores, strict=True):
                    kept = ~np.isnan(want)
                    assert_scores_close(llm.kv.scores(il)[kept], want[kept], 1e-3 + FLASH_ATTN_DECODE.scores)


def test_a_long_generation_keeps_its_own_heavy_hitters(tiny_model: Path) -> None:
    """Beyond the local window, for many chunks, in every layer; and not only what was generated."""
    with open_llama(tiny_model, CONFIGS["evict"]) as llm:
        llm.eval(random_tokens(S + 5))
        for token in random_tokens(6 * S, seed=2):
            llm.eval([token], decode=True)
        end = len(llm.kv.history) * S
        for il in llm.kv.layers:
            positions = llm.kv.memory_indices(il)
            is_heavy = (positions >= CONFIG.A) & (positions < end - CONFIG.L)
            assert (is_heavy & (positions >= 2 * S)).any(axis=1).all()
            assert (is_heavy & (positions >= 2 * S) & (positions < end - 2 * S)).any()


# --- taking back


@pytest.mark.parametrize("name", ["distant", "lookup", "composed", "evict, sum"])
def test_going_back_in_generated_text(tiny_model: Path, name: str) -> None:
    """To the prompt's end, and to the last tokens; test_h2o_past.py goes on from there."""
    n_prompt, n = S + 5, S + 35
    tokens = random_tokens(n)
    with open_llama(tiny_model, CONFIGS[name]) as llm:
        llm.eval(tokens[:n_prompt])
        for token in tokens[n_prompt:]:
            llm.eval([token], decode=True)
        oldest = min_position(llm) + 1
        assert n - 16 <= oldest <= n - 8
        possible = {0, S, n_prompt, *range(oldest, n + 1)}
        points = [llm._state.context.rewind_points(position) for position in range(n + 1)]
        assert {position for position, found in enumerate(points) if position in found} == possible


# --- states


def test_a_restored_sequence_goes_back_to_the_prompt(tiny_model: Path) -> None:
    """Single tokens' parts in the scores are not in a state."""
    with open_llama(tiny_model, DISTANT) as llm:
        llm.eval(random_tokens(S + 3))
        before = arrays(llm)
        decode_calls(llm, [[token] for token in range(20)])
        restore(llm, state_of(llm))
        with pytest.raises(H2OError, match=f"the nearest possible are {S + 3} and {S + 23}"):
            llm.rewind(S + 22)
        llm.rewind(S + 3)
        assert_all_equal(arrays(llm), before)


def test_a_state_goes_on_where_nothing_is_pending(tiny_model: Path) -> None:
    """In a context with decode="full" the scores are the same, and what is generated there adds nothing."""
    full = replace(DISTANT, decode="full")
    with open_llama(tiny_model, DISTANT) as llm, open_llama(tiny_model, full) as other:
        llm.eval(random_tokens(S + 3))
        decode_calls(llm, [[token] for token in range(20)])
        restore(other, state_of(llm))
        scores: list[Any] = [llm.kv.scores(il) for il in llm.kv.layers]
        decode_calls(other, [[1], [2]])
        for il, want in zip(other.kv.layers, scores, strict=True):
            np.testing.assert_array_equal(other.kv.scores(il)[:, :-2], want)
            assert not other.kv.scores(il)[:, -2:].any()
        restore(llm, state_of(other))
        decode_calls(llm, [[3]])
        assert all((llm.kv.scores(il)[:, : S + 3] >= want[:, : S + 3]).all() for il, want in enumerate(scores))
