"""Going back in a sequence, reusing its shared prefix with another text, and extra keys.

In any order with all else: test_h2o_past.py.
"""

import re
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cases import EVICT, INDEX, SMALL, Case, S
from compare import assert_logits_close
from h2o_llama import H2OError, Llama
from inputs import ModelByName, random_tokens, split
from llamas import eval_calls, extra_keys_of, min_position, open_llama
from spies import Stop, stop_at
from tolerances import FLASH_ATTN_DECODE, KV_CACHE, SELF_LOGITS_F32

STORED = EVICT.but(lookup_budget=8, cold_store="memory")
NEAR = SMALL.but(heavy_budget=0)
GRID = NEAR.but(lookup_budget=8, kv_type="q8_0")
N = 5 * S + 9


STARTS = [S + 3, 2 * S + 5, 4 * S + 7]  # of calls
KEPT = {0, S, S + 3, 4 * S, 4 * S + 7}  # with eviction: the last chunk with one, and that furthest from those before it


# configuration, record, positions that are possible
POSSIBLE: dict[str, tuple[Case | None, bool, set[int]]] = {
    "sum": (SMALL, False, {0, *STARTS, 5 * S, N, N + 1, N + 2}),
    "sum-recorded": (SMALL, True, {0, *STARTS, *range(S, 6 * S, S), N, N + 1, N + 2}),
    "evict": (EVICT, False, {*KEPT, 5 * S, N, N + 2}),
    "cold store": (STORED, False, {0, *STARTS, 5 * S, N, N + 2}),
    "cold store-recorded": (STORED, True, {0, *STARTS, *range(S, 6 * S, S), N, N + 2}),
    "dense": (None, False, set(range(N + 3))),
    "near": (NEAR, False, set(range(N + 3))),
    "near-recorded": (NEAR, True, {0, *STARTS, *range(S, 6 * S, S), N, N + 1, N + 2}),
    "near-evict": (EVICT.but(heavy_budget=0), False, {*KEPT, *range(5 * S, N + 3)}),
    "near-index": (GRID, False, {*range(0, N, 4), N, N + 1, N + 2}),
    "near-index of 8": (GRID.but(tile=8), False, {*range(0, N, 8), N, N + 1, N + 2}),
}


def evaluate(llm: Llama) -> list[int]:
    tokens = [*random_tokens(N), 3, 4]
    for start, stop in pairwise([0, *STARTS, N]):
        llm.eval(tokens[start:stop])
    llm.eval(tokens[N:], decode=True)
    return tokens


@pytest.mark.parametrize("name", POSSIBLE)
def test_back_to_any_position_or_the_nearest_are_named(tiny_model: Path, name: str) -> None:
    config, record, possible = POSSIBLE[name]
    with open_llama(tiny_model, config, keep_history=record) as llm:
        tokens = evaluate(llm)
        snapshot = llm.snapshot()
        llm.restore(snapshot)
        # llama.cpp's programs hear of the places that can be removed from on without a gap, but for one on the grid
        lowest = next(n for n in range(len(tokens), -1, -1) if n not in possible or n == 0)
        assert lowest <= min_position(llm) <= lowest + (config in (GRID, GRID.but(tile=8)))
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
            assert ("keep_history=True" in str(error.value)) != (record or config in (GRID, GRID.but(tile=8)))
            assert llm.snapshot().state == snapshot.state


@pytest.mark.parametrize(
    "config",
    [
        NEAR.but(decode="memory"),
        NEAR.but(schedule="two_phase", scorer="distant"),
        GRID.but(kv_type="f32"),
    ],
    ids=str,
)
def test_scores_are_kept_where_somebody_wants_them(tiny_model: Path, config: Case) -> None:
    """Where nothing ranks by scores, they are kept only with keep_history=True. Results are the same."""
    with open_llama(tiny_model, config) as recorded, open_llama(tiny_model, config, keep_history=False) as llm:
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
            assert len(x.snapshot().state) == len(snapshots[has_scores].state)
            x.eval(random_tokens(2 * S))
            if has_scores:
                assert x.kv.scores(0).any()
            else:
                with pytest.raises(H2OError, match=r"heavy_budget=.*, or keep_history=True"):
                    x.kv.scores(0)
                x.rewind(2 * S + 8)


def test_memory_sets_of_ones_own_are_gone_back_to(tiny_model: Path) -> None:
    """They do not follow from the position: only records know them."""
    with open_llama(tiny_model, NEAR, keep_history=False) as llm:
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


# --- layers that H2O leaves to llama.cpp, with a sliding window or a recurrent state


with_other_layers = pytest.mark.parametrize("model", ["gemma3-windows-f32", "lfm2-conv-f32"])


@with_other_layers
def test_some_boundaries_keep_what_goes_with_them(model: str, model_by_name: ModelByName) -> None:
    """The first boundary and the latest seven, in however many calls the text was read."""
    tokens = random_tokens(40 * S)
    n_bytes = []
    with open_llama(model_by_name(model), SMALL) as llm:
        for calls in (split(tokens, [S] * 40), [tokens]):
            llm.reset()
            for call in calls:
                llm.eval(call)
                n_bytes.append(llm.kv.stats.side_bytes)
            with pytest.raises(H2OError, match=rf"nearest possible are {S} and \d+"):
                llm.rewind(20 * S)
            assert llm.reuse([*tokens[: 35 * S], 1]) == 35 * S
            assert llm.reuse([*tokens[: 20 * S], 1]) == S
            llm.eval(tokens[S : 3 * S], logits="all")
            again = llm.logits
            llm.reset()
            llm.eval(tokens[: 3 * S], logits="all")
            np.testing.assert_array_equal(again, llm.logits[S:])
    assert 0 < n_bytes[1] < n_bytes[8] == n_bytes[39] == n_bytes[40]


@with_other_layers
def test_a_long_call_that_is_cancelled_leaves_them_as_they_were(model: str, model_by_name: ModelByName) -> None:
    """It has more tokens than there are cells for a window."""
    logits = []
    with open_llama(model_by_name(model), SMALL, n_ubatch=S) as llm:
        for is_cancelled in (False, True):
            llm.reset()
            llm.eval(random_tokens(100))
            if is_cancelled:
                with pytest.raises(Stop):
                    llm.eval(random_tokens(700, seed=1), progress=stop_at(600))
            llm.eval(random_tokens(60, seed=2), logits="all")
            logits.append(llm.logits)
    assert_logits_close(
        logits[0], logits[1], SELF_LOGITS_F32 + FLASH_ATTN_DECODE.logits
    )  # cells of a window may lie otherwise


# --- reuse

# Two pieces change places behind a new one, a third one stays where it is, and the end is dropped.
PIECES = [(40, 20, 25), (5, 15, 47), (62, 20, 62)]


@pytest.mark.parametrize(
    "config",
    [NEAR, NEAR.but(flash_attn="off"), NEAR.but(kv_type="q8_0", dense_layers=(1,)), GRID, GRID.but(kv_type="f32")],
)
@pytest.mark.parametrize("layers", ["one", "three"])
def test_rows_that_move_are_as_if_read_there(
    one_layer_model: Path, tiny_model: Path, layers: str, config: Case
) -> None:
    """The first layer's K and V depend on a token and its position alone: with one layer so does all else."""
    path = one_layer_model if layers == "one" else tiny_model
    if layers == "one" and config.h2o.dense_layers:
        config = config.but(dense_layers=())
    bound = SELF_LOGITS_F32 if config.kv_type == "f32" else 2 * KV_CACHE[config.kv_type.upper()].logits
    old, new, question = random_tokens(6 * S), random_tokens(82, seed=1), random_tokens(30, seed=2)
    new[:20] = old[:20]
    for start, n, to in PIECES:
        new[to : to + n] = old[start : start + n]
    with (
        open_llama(path, config, keep_history=False) as llm,
        open_llama(path, config, keep_history=False) as fresh,
    ):
        llm.eval(old)
        with llm._state.changed() as context:
            context.arrange(20, PIECES, np.array(new, np.int32))
        assert llm.n_tokens == 20
        llm.eval(new[20:25])
        assert llm.n_tokens == 45
        llm.eval(new[45:])
        assert llm.tokens.tolist() == list(new)
        with llm._state.used() as context:
            assert context.exact_end == 25
        fresh.eval(new)
        moved, exact = (np.concatenate(eval_calls(sequence, [question, [1]])) for sequence in (llm, fresh))
        for rows in ("keys", "values"):
            got, want = (getattr(sequence.kv, rows)(0) for sequence in (llm, fresh))
            assert_logits_close(got, want, bound)
        if layers == "one" and config is not GRID:  # a step of 8 bits decides near ties otherwise
            assert_logits_close(moved, exact, bound)
        llm.rewind(20)  # what was moved is gone, and the rest is exact
        llm.eval(new[20:])
        with llm._state.used() as context:
            assert context.exact_end == 2**32 - 1
        again = np.concatenate(eval_calls(llm, [question, [1]]))
        if not config.h2o.has_key_index:
            assert_logits_close(again, exact, bound)


def test_only_what_changed_is_read_again(tiny_model: Path, tmp_path: Path) -> None:
    """Of the sequence's own text, and of one of the library. The result is for those alone who ask for it."""
    text, new, system = random_tokens(600), random_tokens(3, seed=1), random_tokens(50, seed=2)
    options: dict[str, Any] = {"n_ctx": 1024, "h2o": NEAR.h2o, "library": tmp_path}
    edits = {  # and the tokens that are not read
        "line replaced": ([*text[:100], *new, *text[101:]], 100 + 499 - 32 - 64),
        "line deleted": ([*text[:100], *text[150:]], 100 + 450 - 32 - 64),
        "pieces exchanged": ([*text[:100], *text[300:400], *text[100:300], *text[400:]], 600 - 3 * 32 - 64),
        "another beginning": ([*system, *text], 600 - len(system) - 64),
    }
    with Llama(tiny_model, cache_reuse=64, **options) as llm:
        assert llm.library is not None
        llm.eval(text)
        llm.library.flush()
        read = llm.snapshot()
        for changed, n_known in edits.values():
            for known in ("its own", "the library's"):
                llm.reset() if known == "the library's" else llm.restore(read)
                n = llm.reuse(changed)
                assert llm.n_cached == n_known
                llm.eval(changed[n:])
                assert llm.tokens.tolist() == changed
        llm.library.flush()
        assert [known.n_tokens for known in llm.library.texts()] == [600]
        moved = llm.snapshot()
    with Llama(tiny_model, **options) as exact:
        for changed, _ in edits.values():
            assert exact.reuse(changed) <= 100
        exact.restore(moved)
        assert exact.reuse(changed) == 0


@pytest.mark.parametrize(
    ("config", "model", "reason"),
    [
        (SMALL, "qwen3-gqa4-f32", "heavy_budget ranks them"),
        (EVICT, "qwen3-gqa4-f32", "evict drops most of them"),
        (NEAR.but(schedule="two_phase"), "qwen3-gqa4-f32", "two_phase reads each token twice"),
        (NEAR, "gemma3-windows-f32", "sliding windows"),
        (NEAR, "lfm2-conv-f32", "recurrent layers"),
        (NEAR, "deepseek2-mla-f32", "plain RoPE"),
    ],
)
def test_rows_that_cannot_move_say_why(config: Case, model: str, reason: str, model_by_name: ModelByName) -> None:
    with open_llama(model_by_name(model), config, keep_history=False) as llm:
        llm.eval(random_tokens(40))
        with llm._state.used() as context, pytest.raises(H2OError, match=reason):
            context.arrange(10, [(20, 20, 15)], np.zeros(0, np.int32))
        assert llm.n_tokens == 40


def test_the_last_token_is_left_unless_its_logits_are_there(tiny_model: Path) -> None:
    with open_llama(tiny_model, SMALL) as llm:
        tokens = evaluate(llm)
        logits = llm.logits
        assert llm.reuse(np.array(tokens)) == len(tokens)
        assert llm.logits is logits
        assert llm.reuse(tokens[:-1]) == len(tokens) - 2
        with pytest.raises(H2OError, match="there are no logits"):
            _ = llm.logits
        assert llm.reuse(tokens[:-2]) == 5 * S  # the last token of the prompt cannot be removed alone
        assert llm.reuse([]) == 0
        with pytest.raises(ValueError, match="must be a token id"):
            llm.reuse([10**9])


# --- attention, and extra keys


def test_attention_goes_with_its_tokens(tiny_model: Path) -> None:
    with open_llama(tiny_model, NEAR) as llm:
        llm.eval(random_tokens(50))
        llm.eval([1, 2, 3], dense_tail=3, keep_attention=True)
        assert llm.kv.attention(0, 0).sum() > 0
        for _ in range(2):
            llm.rewind(50)
            with pytest.raises(H2OError, match="no attention is kept"):
                llm.kv.attention(0, 0)
            llm.eval([4, 5, 6])


def test_extra_keys_go_with_their_tokens(tiny_model: Path) -> None:
    with open_llama(tiny_model, INDEX, n_seq_max=2) as llm:
        llm.eval(random_tokens(90))
        for token in random_tokens(17, seed=1):
            llm.eval([token], decode=True)
        before = extra_keys_of(llm)
        assert extra_keys_of(llm.fork()) == before
        llm.rewind(105)  # in the tile of 104 to 107
        assert extra_keys_of(llm) == {place: keys for place, keys in before.items() if place[-1] < 26}


def test_without_a_record_only_the_last_tiles_extra_keys_are_kept(tiny_model: Path) -> None:
    with open_llama(tiny_model, INDEX.but(heavy_budget=0), keep_history=False) as llm:
        for call in split(random_tokens(100), [70, 10, 20]):
            llm.eval(call)
        llm.eval([1], decode=True)  # what generated tokens choose is kept with a record alone
        assert {tile for (*_, tile), keys in extra_keys_of(llm).items() if keys} == {24}
        with pytest.raises(H2OError, match=r"extra keys of tile 23 are not kept. .* keep_history=True"):
            llm.kv.extra_keys(0, 0, 23)
        for bad in ((9, 0, 24), (0, 9, 24), (0, 0, 26), (0, 0, -1)):
            with pytest.raises(ValueError, match="layer|head|tile"):
                llm.kv.extra_keys(*bad)
    with (
        open_llama(tiny_model, INDEX.but(lookup_budget=0)) as llm,
        pytest.raises(H2OError, match="nothing chooses"),
    ):
        llm.kv.extra_keys(0, 0, 0)
