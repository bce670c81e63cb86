"""Lookups of the library: against the oracle, in any split, and gone when what asked for them is gone.

A query sees, besides its memory set and its chunk, the newest B positions that queries before its tile asked for, and
what its tile has asked for up to it, around earlier occurrences of their n-grams. The texts repeat themselves.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import h2o_llama
from compare import assert_all_equal, assert_logits_close
from h2o_llama import H2OConfig, H2OError
from inputs import repetitive_tokens, small, split
from llamas import (
    Config,
    assert_history_is_well_formed,
    eval_calls,
    lookups_of,
    open_llama,
    restore,
    state_of,
    view,
)
from oracle.lookup import FOLLOW
from tolerances import SELF_LOGITS_F32

S, T = 16, 4
CONFIG = Config(S=S, L=4, H=6, A=1, B=6, T=T)
# More than any text here has positions.
EVERYTHING = 300


@st.composite
def configs(draw: st.DrawFn) -> Config:
    chunk_size = draw(st.integers(2, 32))
    return Config(
        S=chunk_size,
        L=draw(st.integers(0, min(4, chunk_size))),
        H=draw(st.integers(1, 12)),
        A=draw(st.integers(0, 3)),
        B=draw(st.integers(1, 24)),
        T=draw(st.integers(1, 8)),
    )


def seen_in(llm: h2o_llama.Llama) -> list[list[int]]:
    """Positions that the last query of each tile sees."""
    return [positions.tolist() for positions in lookups_of(llm)]


def logits_of(llm: h2o_llama.Llama, calls: Sequence[Sequence[int]], dense_tail: int = 0) -> Any:
    """Of all tokens; calls of one token are prompts too."""
    return np.concatenate(eval_calls(llm, calls, dense_tail, decode=False))


def assert_lookups_are_well_formed(llm: h2o_llama.Llama, config: Config) -> None:
    """Property P4 of lookups."""
    tiles = config.tiles(llm.n_tokens)
    for positions, seen in zip(tiles, lookups_of(llm), strict=True):
        assert seen.dtype == np.int32
        assert (np.diff(seen) > 0).all()
        assert len(seen) <= config.B + len(positions) * -(-config.B // 4), "more than their shares"
        if len(seen):
            assert seen[0] >= config.A, "a sink"
            assert seen[-1] < positions[0] // config.S * config.S - config.L, "in the window, or not before the chunk"


# --- they exist and matter


def test_a_text_without_repeats_has_none(tiny_model: Path) -> None:
    tokens = np.random.default_rng(0).permutation(256)[:90].tolist()
    logits = []
    for B in (0, CONFIG.B):
        with open_llama(tiny_model, replace(CONFIG, B=B)) as llm:
            logits.append(logits_of(llm, [tokens[:50], tokens[50:]]))
            if B:
                assert not any(seen_in(llm))
    assert_logits_close(logits[1], logits[0], SELF_LOGITS_F32)


def test_a_row_is_seen_from_its_query_on_until_B_newer_ones_have_come(one_layer_model: Path) -> None:
    """One layer: another token at a looked-up position changes the logits of those who see it, and no others.

    Until the end of a tile, over the end of a chunk, across generated tokens and a dense tail, which see it anyway.
    """
    following = max(FOLLOW, key=lambda follow: (follow[1], -follow[0]))[0]
    assert following != 0, "the token that changes would be the one that is looked up"
    tokens = np.random.default_rng(0).permutation(256)[:125].tolist()
    # By query: the position of the same token, in the chunk before the last at the latest.
    copies = {67: 20, 70: 40, 75: 10, 108: 50}
    for query, position in copies.items():
        tokens[query] = tokens[position]
    other = list(tokens)
    other[20 + following] = tokens[-1]
    logits = []
    with open_llama(one_layer_model, Config(S=32, L=1, H=0, B=3, T=8)) as llm:
        for text in (tokens[:120], other[:120]):
            llm.reset()
            first, generated, tail, last = split(text, [80, 3, 7, 30])
            parts = [logits_of(llm, [first])]
            parts += eval_calls(llm, [[token] for token in generated])
            parts += [logits_of(llm, [tail], dense_tail=len(tail)), logits_of(llm, [last])]
            logits.append(np.concatenate(parts))
            assert {p for seen in seen_in(llm) for p in seen} == {position + following for position in copies.values()}
    changed = np.abs(logits[1] - logits[0]).max(axis=1) > SELF_LOGITS_F32 * np.abs(logits[0]).max()
    # of its own chunk all that follow; the tile of query 108 ends at 112
    assert np.flatnonzero(changed).tolist() == [*range(20 + following, 32), *range(67, 112)]


def test_off_is_what_it_was(schedule: Any, tiny_model: Path) -> None:
    """Bit by bit the same, whatever the tile; and not what the default is."""
    calls = split(repetitive_tokens(90), [40, 1, 49])
    results = []
    for arguments in ({"lookup_budget": 0}, {"lookup_budget": 0, "research": {"tile": 5}}, {}):
        h2o = H2OConfig(
            local_window=4, heavy_budget=6, sink_tokens=1, scorer="sum", schedule=schedule, chunk_size=S, **arguments
        )
        with h2o_llama.Llama(tiny_model, n_ctx=256, n_batch=256, n_threads=1, h2o=h2o) as llm:
            results.append([*eval_calls(llm, calls), *view(llm, history=False)])
    assert_all_equal(results[1], results[0])
    assert not np.array_equal(results[2][2], results[0][2])


# --- P4: what may have been looked up


@small()
@given(
    config=configs(),
    sizes=st.lists(st.one_of(st.integers(2, 30), st.just(1)), min_size=2, max_size=8),
    dense_tail=st.integers(0, 6),
    seed=st.integers(0, 999),
)
def test_p4_lookups_are_well_formed(
    tiny_model: Path, config: Config, sizes: list[int], dense_tail: int, seed: int
) -> None:
    """After every call. What was asked for stays; tokens of dense tails and generated ones ask for nothing."""
    before: list[list[int]] = []
    with open_llama(tiny_model, config) as llm:
        for call in split(repetitive_tokens(sum(sizes), seed=seed), sizes):
            start = llm.n_tokens
            eval_calls(llm, [call], dense_tail)
            n_asking = 0 if len(call) == 1 else max(len(call) - dense_tail, 0)
            assert_lookups_are_well_formed(llm, config)
            assert_history_is_well_formed(llm, config)
            assert llm.kv.memory_size == config.M
            seen = seen_in(llm)
            assert seen[: max(len(before) - 1, 0)] == before[:-1]
            for i, positions in enumerate(config.tiles(llm.n_tokens)):
                if i > 0 and positions[0] >= start + n_asking:
                    assert set(seen[i]) <= set(seen[i - 1])
            before = seen


# --- states


def test_a_state_of_other_lookups_is_refused(tiny_model: Path) -> None:
    """Also one with them where there are none, and the other way round."""
    configs = [CONFIG, replace(CONFIG, B=0), replace(CONFIG, B=7), replace(CONFIG, T=8)]
    for saving, restoring in itertools.permutations(configs, 2):
        with open_llama(tiny_model, saving) as llm, open_llama(tiny_model, restoring) as other:
            logits_of(llm, [repetitive_tokens(40)])
            with pytest.raises(h2o_llama.H2OError, match="cannot be restored"):
                restore(other, state_of(llm))
            other.reset()
            logits_of(other, [repetitive_tokens(40)])


# --- bad arguments


def test_bad_tiles(tiny_model: Path) -> None:
    bad: tuple[Any, ...] = (-1, 1.5, "0", None, 2**40)
    with open_llama(tiny_model, CONFIG) as llm:
        logits_of(llm, [repetitive_tokens(40)])
        for tile in bad:
            with pytest.raises(ValueError, match="tile"):
                llm.kv.extra_keys(0, 0, tile)


def test_without_a_record_only_the_last_lookups_are_kept(tiny_model: Path) -> None:
    """What queries see, and a state, do not depend on it."""
    tokens = repetitive_tokens(150)
    with open_llama(tiny_model, CONFIG) as all_kept, open_llama(tiny_model, CONFIG, record=False) as llm:
        for call in split(tokens[:120], [70, 10, 40]):
            expected, actual = logits_of(all_kept, [call]), logits_of(llm, [call])
            np.testing.assert_array_equal(actual, expected)
        n_kept = 0
        for tile in range(64 // T, 120 // T):  # from the chunk of the first place that can be gone back to
            keys = llm.kv.extra_keys(0, 0, tile)
            np.testing.assert_array_equal(keys, all_kept.kv.extra_keys(0, 0, tile))
            n_kept += len(keys)
        assert n_kept > 0
        with pytest.raises(H2OError, match=r"extra keys of tile 15 are not kept. .* record=True"):
            llm.kv.extra_keys(0, 0, 64 // T - 1)
        state = state_of(llm)
        expected = logits_of(llm, [tokens[120:]])
        llm.reset()
        restore(llm, state)
        np.testing.assert_array_equal(logits_of(llm, [tokens[120:]]), expected)
