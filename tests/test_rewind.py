"""Going back in a sequence, and reusing what it shares with another text."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import islice, product
from pathlib import Path

import numpy as np
import pytest

from compare import assert_logits_close
from h2o_llama import H2OError, Llama
from inputs import random_tokens
from llamas import Config, open_llama
from tolerances import FLASH_ATTN_DECODE, SELF_LOGITS_F32

S = 16
CONFIG = Config(S=S, L=4, H=6, A=1)
EVICT = replace(CONFIG, decode="memory", evict=True)
STORED = replace(EVICT, B=8, T=4, cold_store="memory")
NEAR = replace(CONFIG, H=0)
GRID = replace(NEAR, B=8, T=4, retrieval="index", kv_type="q8_0")
N = 5 * S + 9
"""Tokens of a prompt; two generated ones follow."""

# configuration, record, positions that are possible
POSSIBLE: dict[str, tuple[Config | None, bool, set[int]]] = {
    "sum": (CONFIG, False, {0, 5 * S, N, N + 1, N + 2}),
    "sum-recorded": (CONFIG, True, {0, *range(S, 6 * S, S), N, N + 1, N + 2}),
    "evict": (EVICT, False, {0, 5 * S, N, N + 2}),
    "cold store": (STORED, False, {0, 5 * S, N, N + 2}),
    "cold store-recorded": (STORED, True, {0, *range(S, 6 * S, S), N, N + 2}),
    "dense": (None, False, set(range(N + 3))),
    "near": (NEAR, False, set(range(N + 3))),
    "near-recorded": (NEAR, True, {0, *range(S, 6 * S, S), N, N + 1, N + 2}),
    "near-evict": (replace(EVICT, H=0), False, {0, *range(5 * S, N + 3)}),
    "near-ngrams": (replace(NEAR, B=8, T=4), False, set(range(N + 3))),
    "near-index": (GRID, False, {*range(0, N, 4), N, N + 1, N + 2}),
    "near-index of 5": (replace(GRID, T=5), False, {*(n for n in range(N) if n % S % 5 == 0), N, N + 1, N + 2}),
}


def evaluate(llm: Llama) -> list[int]:
    tokens = [*random_tokens(N), 3, 4]
    llm.eval(tokens[:N])
    llm.eval(tokens[N:], decode=True)
    return tokens


@pytest.mark.parametrize("name", POSSIBLE)
def test_back_to_any_position_or_the_nearest_are_named(tiny_model: Path, name: str) -> None:
    config, record, possible = POSSIBLE[name]
    with open_llama(tiny_model, config, record=record) as llm:
        tokens = evaluate(llm)
        snapshot = llm.snapshot()
        for n in range(len(tokens) + 1):
            llm.restore(snapshot)
            if n in possible:
                llm.rewind(n)
                assert llm.tokens.tolist() == tokens[:n]
                continue
            with pytest.raises(H2OError, match=rf"\[Llama.rewind\] the sequence of {N + 2} tokens cannot") as error:
                llm.rewind(n)
            found = re.search(r"the nearest possible are (\d+) and (\d+)", str(error.value))
            assert found is not None
            assert int(found[1]) == max(p for p in possible if p < n)
            assert int(found[2]) == min(p for p in possible if p > n)
            assert ("record=True" in str(error.value)) != (record or config in (GRID, replace(GRID, T=5)))
            assert llm.snapshot().state == snapshot.state


@pytest.mark.parametrize(
    "config",
    [
        replace(NEAR, decode="memory"),
        replace(NEAR, B=8, T=4, schedule="two_phase", scorer="distant"),
        replace(GRID, kv_type="f32"),
    ],
    ids=str,
)
def test_scores_are_kept_where_somebody_wants_them(tiny_model: Path, config: Config) -> None:
    """Where nothing ranks by them only with record=True; with the same results."""
    with open_llama(tiny_model, config) as recorded, open_llama(tiny_model, config, record=False) as llm:
        for x in (recorded, llm):
            evaluate(x)
        assert_logits_close(llm.logits, recorded.logits, SELF_LOGITS_F32 + FLASH_ATTN_DECODE.logits)
        assert recorded.kv.scores(0).any()
        assert (llm.kv.stats.score_bytes, recorded.kv.stats.score_bytes > 0) == (0, True)
        snapshots = llm.snapshot(), recorded.snapshot()
        assert len(snapshots[0].state) < len(snapshots[1].state)
        for x, snapshot in product((recorded, llm), snapshots):
            x.restore(snapshot)
            has_scores = x is recorded and snapshot is snapshots[1]
            again = x.snapshot()
            assert len(again.state) == len(snapshots[has_scores].state)
            x.restore(again)
            x.eval(random_tokens(2 * S))
            if has_scores:
                assert x.kv.scores(0).any()
                continue
            with pytest.raises(H2OError, match=r"heavy_budget=.*, or record=True"):
                x.kv.scores(0)
            x.rewind(2 * S + 8)
        recorded.reset()
        recorded.eval(random_tokens(2 * S))
        assert recorded.kv.scores(0).any()


def test_memory_sets_of_ones_own_are_gone_back_to(tiny_model: Path) -> None:
    """They do not follow from the position: only records know them."""
    with open_llama(tiny_model, NEAR, record=False) as llm:
        llm.eval(random_tokens(2 * S))
        llm.kv.set_memory_indices(0, np.tile(np.arange(5, dtype=np.int32), (2, 1)))
        llm.eval(random_tokens(S + 3))
        before = llm.snapshot()
        llm.restore(before)
        with pytest.raises(H2OError, match="the nearest possible are 0 and 48"):
            llm.rewind(S)
        llm.reset()
        llm.eval(random_tokens(2 * S))
        llm.rewind(S + 1)


def test_the_first_and_the_last_places_are_kept(tiny_model: Path) -> None:
    with open_llama(tiny_model, replace(CONFIG, S=64)) as llm:
        for token in random_tokens(20):
            llm.eval([token])
        assert [n for n in range(20) if llm._state.context.rewind_points(n)[0] == n] == [0, 1, 2, 3, 4, 16, 17, 18, 19]


def test_logits_are_those_of_the_end_or_none(tiny_model: Path) -> None:
    with open_llama(tiny_model, CONFIG) as llm:
        tokens = evaluate(llm)
        logits = llm.logits
        llm.rewind(len(tokens))
        assert llm.logits is logits
        llm.rewind(len(tokens) - 1)
        with pytest.raises(H2OError, match="there are no logits"):
            _ = llm.logits
        with pytest.raises(H2OError, match="there are no logits"):
            next(llm.generate([]))
        for n in (-1, len(tokens), 1.5):
            with pytest.raises(ValueError, match=f"n_tokens must be an integer from 0 to {len(tokens) - 1}"):
                llm.rewind(n)  # type: ignore[arg-type]


def test_models_with_other_memory(unsupported_memory_model: Path) -> None:
    """Without H2O: a recurrent state has no past, what has left a sliding window is still there."""
    tokens = random_tokens(200)
    with open_llama(unsupported_memory_model, None) as llm:
        llm.eval(tokens)
        if "recurrent" in unsupported_memory_model.name:
            with pytest.raises(H2OError, match="the nearest possible are 0 and 200"):
                llm.rewind(70)
        else:
            llm.rewind(70)
            llm.eval(tokens[70:75])
            rewound = llm.logits
            llm.rewind(0)
            llm.eval(tokens[:75])
            assert_logits_close(rewound, llm.logits, SELF_LOGITS_F32)
        llm.rewind(0)
        assert llm.n_tokens == 0


# --- reuse


@pytest.mark.parametrize(
    ("name", "n_shared", "n_cached"),
    [
        ("sum", N + 2, N + 2),
        ("sum", N + 1, N + 1),
        ("sum", N - 1, 5 * S),
        ("sum", 5 * S - 1, 0),
        ("sum-recorded", 5 * S - 1, 4 * S),
        ("dense", 7, 7),
        ("dense", 0, 0),
        ("near", 2 * S + 3, 2 * S + 3),
        ("near-index", 2 * S + 3, 2 * S),
    ],
)
def test_a_common_prefix_is_kept(tiny_model: Path, name: str, n_shared: int, n_cached: int) -> None:
    config, record, _ = POSSIBLE[name]
    with open_llama(tiny_model, config, record=record) as llm:
        old = evaluate(llm)
        new = old[:n_shared] + [(token + 1) % 50 for token in old[n_shared:]] + random_tokens(20, seed=7)
        assert llm.reuse(new) == n_cached
        assert llm.tokens.tolist() == new[:n_cached]
        llm.eval(new[n_cached:])
        assert llm.tokens.tolist() == new


def test_the_last_token_is_left_unless_its_logits_are_there(tiny_model: Path) -> None:
    with open_llama(tiny_model, CONFIG) as llm:
        tokens = evaluate(llm)
        logits = llm.logits
        assert llm.reuse(np.array(tokens)) == len(tokens)
        assert llm.logits is logits
        assert llm.reuse(tokens[:-1]) == len(tokens) - 2
        with pytest.raises(H2OError, match="there are no logits"):
            _ = llm.logits
        assert llm.reuse(tokens[:-2]) == 5 * S  # the last token of the prompt cannot be taken back alone
        assert llm.reuse([]) == 0
        with pytest.raises(ValueError, match="must be a token id"):
            llm.reuse([10**9])


def test_reuse_in_the_middle_of_generation(tiny_model: Path) -> None:
    """What is drafted ahead is no part of the sequence."""
    with open_llama(tiny_model, CONFIG) as llm:
        prompt = random_tokens(10) * 4
        drawn = list(islice(llm.generate(prompt, temperature=0, draft=8), 7))
        assert llm.reuse(prompt + drawn + [1]) == len(prompt) + 7
        assert llm.tokens.tolist() == prompt + drawn


def test_a_completion_reuses_the_turn_before(tiny_model: Path) -> None:
    """The same text comes out; usage says what was there already."""
    prompt = random_tokens(40)
    with open_llama(tiny_model, CONFIG) as llm, open_llama(tiny_model, CONFIG) as fresh:
        llm(prompt, max_tokens=5, temperature=0)
        answer = llm.tokens.tolist()
        turn = answer + random_tokens(20, seed=3)
        second = llm(turn, max_tokens=5, temperature=0, reuse=True)
        assert second["usage"]["prompt_tokens_details"] == {"cached_tokens": len(answer)}
        assert second["usage"]["prompt_tokens"] == len(turn)
        fresh.eval(prompt, dense_tail=128)
        fresh.eval(answer[40:], decode=True)
        drawn = list(islice(fresh.generate(turn[len(answer) :], temperature=0), 5))
        assert llm.tokens.tolist() == turn + drawn
        assert "prompt_tokens_details" not in llm(prompt, max_tokens=1, reuse=False)["usage"]
