"""A sequence that goes back: removing its end, saved states, generated tokens, as upstream's programs ask for them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import h2o_llama
from compare import assert_all_equal, assert_logits_close, assert_same_history, assert_scores_close
from h2o_llama import H2OError
from inputs import ModelByName, random_tokens
from llamas import Config, arrays, eval_calls, min_position, open_llama, remove, restore, state_of
from oracle.lookup import Lookup
from tolerances import FLASH_ATTN_DECODE, SELF_LOGITS_F32

S = 16
CONFIG = Config(S=S, L=4, H=6, A=1)


def assert_same(a: h2o_llama.Llama, b: h2o_llama.Llama, more: list[int], flash_decode: bool = False) -> None:
    """The same sequence, to rounding: these tokens find the same there.

    With `flash_decode` there are generated tokens among others, and flash attention has rounded to F16 for them.
    """
    assert a.n_tokens == b.n_tokens
    logits = [eval_calls(llm, [more])[0] for llm in (a, b)]
    assert len(a.kv.history) == len(b.kv.history)
    for sets_a, sets_b in zip(a.kv.history, b.kv.history, strict=True):
        for il in a.kv.layers:
            np.testing.assert_array_equal(sets_a[il], sets_b[il])
    assert_logits_close(*logits, SELF_LOGITS_F32 + (FLASH_ATTN_DECODE.logits if flash_decode else 0))
    for il in a.kv.layers:
        np.testing.assert_array_equal(a.kv.memory_indices(il), b.kv.memory_indices(il))
        assert_scores_close(a.kv.scores(il), b.kv.scores(il), 1e-3 + (FLASH_ATTN_DECODE.scores if flash_decode else 0))


# --- removing the end


@pytest.mark.parametrize(
    ("config", "first"),
    [
        (replace(CONFIG, H=0), 0),
        (replace(CONFIG, H=0, evict=True, decode="memory"), 4 * S - 1),
        (replace(CONFIG, H=0, B=8, T=4, retrieval="index"), 69),
    ],
    ids=str,
)
def test_without_scores_more_can_be_removed(tiny_model: Path, config: Config, first: int) -> None:
    """llama.cpp's programs hear of the places that can be removed from on without a gap."""
    with open_llama(tiny_model, config, record=False) as llm:
        llm.eval(random_tokens(70))
        eval_calls(llm, [[1], [2]])
        assert min_position(llm) == first
        assert remove(llm, 50) == (first == 0)
        assert remove(llm, 4 * S)


def test_attention_that_was_scored_cannot_be_taken_back(tiny_model: Path) -> None:
    """But for generated tokens, which score nothing, and to the begin of the open chunk."""
    tokens = random_tokens(70)
    with open_llama(tiny_model, CONFIG) as llm, open_llama(tiny_model, CONFIG) as fresh:
        llm.eval(tokens)
        eval_calls(llm, [[1], [2], [3]])
        assert min_position(llm) == 69
        before = arrays(llm)
        assert not remove(llm, 67)
        assert not remove(llm, 40)
        assert_all_equal(arrays(llm), before)
        fresh.eval(tokens)
        eval_calls(fresh, [[1]])
        assert remove(llm, 71)
        assert_same(llm, fresh, [5, 6, 7])
        assert remove(llm, 64)
        fresh.reset()
        fresh.eval(tokens[:64])
        assert_same(llm, fresh, random_tokens(50, seed=2))


def test_min_position_says_what_can_be_removed(tiny_model: Path) -> None:
    """Every position after it, as upstream's server takes it; -1 if there is nothing."""
    with open_llama(tiny_model, CONFIG) as llm:
        assert min_position(llm) == -1
        for call in ([1], random_tokens(9), random_tokens(6), [2], [3, 4], random_tokens(40)):
            eval_calls(llm, [call])
            lowest = min_position(llm)
            assert 0 <= lowest < llm.n_tokens
            state = state_of(llm)
            for start in range(lowest + 1, llm.n_tokens):
                assert remove(llm, start), start
                assert llm.n_tokens == start
                restore(llm, state)
        llm.reset()
        assert min_position(llm) == -1


def test_history_forgets_what_was_removed(tiny_model: Path) -> None:
    """And goes on where the sequence does: a chunk's entry is that chunk's."""
    with open_llama(tiny_model, CONFIG) as llm, open_llama(tiny_model, CONFIG) as fresh:
        llm.eval(random_tokens(5 * S + 3))
        assert remove(llm, 2 * S)
        assert len(llm.kv.history) == 2
        tokens = random_tokens(5 * S, seed=3)
        llm.eval(tokens)
        fresh.eval(random_tokens(5 * S + 3)[: 2 * S] + tokens)
        assert len(llm.kv.history) == len(fresh.kv.history) == 6
        assert_same_history(llm.kv.history, fresh.kv.history)
        assert remove(llm, 0)
        assert (llm.n_tokens, llm.kv.chunk_index, llm.kv.history) == (0, 0, [])


# --- states


def test_a_bad_state_is_refused(tiny_model: Path, model_by_name: ModelByName) -> None:
    """With the reason; the context can be used. All but the K and V in it is checked before anything changes."""
    tokens = random_tokens(40)

    def usable(llm: h2o_llama.Llama) -> None:
        llm.reset()
        llm.eval(tokens)

    with open_llama(tiny_model, CONFIG) as llm:
        llm.eval(tokens)
        state = state_of(llm)
        before = arrays(llm)
        own = state.index(b"h2o\0")  # after llama.cpp's own header
        header = own + 4 * (4 + int.from_bytes(state[own + 12 : own + 16], "little"))  # the configuration is as long
        bad: list[tuple[bytes, str]] = [
            (state[: own + 20], "cannot be restored"),
            (state[: header + 40], "cannot be restored"),
            (_with_int(state, own + 4, 99), "of version 99, expected 16"),
            (_with_int(state, own + 8, 99), "other H2O parameters"),
            (_with_int(state, header, 2**31), "damaged"),
            (_with_int(state, header + 4, 41), "damaged"),
            (_with_int(state, header + 12, 0), "damaged"),  # without the scores that heavy hitters need
            (_with_int(state, header + 16, 2), "damaged"),
            (_with_int(state, header + 20, 9), "damaged"),
            (_with_int(state, header + 20, 1), "damaged"),  # a memory set that was never built
            (_with_int(state, header + 24, 10**6), "damaged"),
            (_with_int(state, header + 24 + 4 * (CONFIG.M - 1), 32), "damaged"),  # of the open chunk
        ]
        for bytes_, match in bad:
            with pytest.raises(H2OError, match=match):
                restore(llm, bytes_)
            assert llm.n_tokens == 40
            assert_all_equal(arrays(llm), before)
        with pytest.raises(H2OError, match="cannot be restored"):
            restore(llm, state[:-100])
        usable(llm)
    for config, path in (
        (replace(CONFIG, H=7), tiny_model),
        (replace(CONFIG, scorer="distant"), tiny_model),
        (CONFIG, model_by_name("qwen3-mha-f32")),
    ):
        with open_llama(path, config) as other:
            with pytest.raises(H2OError, match="cannot be restored"):
                restore(other, state)
            usable(other)


def test_bad_lookups_are_refused(tiny_model: Path) -> None:
    """One has room for two of each query of this configuration, before its chunk, in order."""
    with open_llama(tiny_model, replace(CONFIG, B=8, T=4)) as llm:
        llm.eval(tokens := random_tokens(10) * 7)
        state = state_of(llm)
        lookup = Lookup(S=S, T=4, B=8, A=CONFIG.A, L=CONFIG.L)
        log = np.array(lookup.choose(tokens, 0, len(tokens), []), np.int32)
        own = state.index(log.tobytes())
        pos, query = log.T
        i = int(np.nonzero((query[1:-1] == query[:-2]) & (query[2:] > query[1:-1]) & (pos[2:] > pos[1:-1]))[0][0])
        bad = [
            (i + 2, 1, query[i]),  # a third one
            (i + 1, 0, query[i] // S * S),
            (i + 1, 0, pos[i]),
            (len(log) - 1, 1, 70),
            (len(log) - 1, 0, -1),
        ]
        for row, column, value in bad:
            with pytest.raises(H2OError, match="damaged"):
                restore(llm, _with_int(state, own + 8 * row + 4 * column, int(value) % 2**32))
            assert llm.n_tokens == 70


def _with_int(state: bytes, offset: int, value: int) -> bytes:
    return state[:offset] + value.to_bytes(4, "little") + state[offset + 4 :]


@pytest.mark.parametrize("mutate", ["cut", "flip"])
def test_no_damaged_state_ends_the_process(tiny_model: Path, mutate: str, rng: np.random.Generator) -> None:
    """Restored or refused, and the context goes on."""
    change: Callable[[bytes, int], bytes] = {
        "cut": lambda state, i: state[:i],
        "flip": lambda state, i: state[:i] + bytes([state[i] ^ (1 << int(rng.integers(8)))]) + state[i + 1 :],
    }[mutate]
    with open_llama(tiny_model, CONFIG) as llm:
        llm.eval(random_tokens(40))
        state = state_of(llm)
        for i in [*range(0, 400, 3), *rng.integers(0, len(state), 150).tolist()]:
            try:
                restore(llm, change(state, i))
            except H2OError:
                llm.reset()
            llm.eval([1, 2, 3])
