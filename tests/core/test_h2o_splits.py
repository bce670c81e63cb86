"""Properties P1 to P3 of the design, section 3: where H2O is dense attention, and that splits change nothing.

Against a user's model (LLAMACPP_TEST_MODELFILE) the oracle compares 64 tokens at most, in chunks of 16.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import h2o_llama
from cases import (
    CACHE_POSITIONS,
    EVICTING,
    INDEX,
    KEPT,
    MEMORY,
    SMALL,
    UNSCORED,
    Case,
    S,
)
from compare import (
    assert_logits_close,
    assert_same_history,
    assert_scores_close,
    case,
)
from inputs import ModelByName, limited, random_tokens, repetitive_tokens, split
from llamas import decode_calls, eval_calls, open_llama
from oracle import GGUFModel, dense, read_model
from pairwise import pairwise
from tolerances import SELF_LOGITS_F32

# More than any text here has positions.
EVERYTHING = 300

# --- P1 and P2: within one chunk, and with everything in memory, it is dense


@pairwise(
    "flash_attn",
    "model_path",
    sizes=[
        *({"chunk_size": n, "heavy_budget": 4} for n in (100, 101, 256)),
        {"local_window": 0, "heavy_budget": EVERYTHING, "sink_tokens": 0},
        {"local_window": S, "heavy_budget": 100_000, "sink_tokens": 0},
        {"local_window": 0, "heavy_budget": 1, "sink_tokens": EVERYTHING},
    ],
    first_calls=[[], [10, 25, 2], [S, S]],
    generated=[[], [1] * 20, [3, 1, S + 3, 1]],
    decode=["full", "memory"],
    kv_type=["f32", "f16", "bf16", "q8_0"],
)
def test_p1_and_p2(
    flash_attn: str,
    model_path: Path,
    oracle_model: GGUFModel,
    sizes: dict[str, Any],
    first_calls: list[int],
    generated: list[int],
    decode: str,
    kv_type: str,
) -> None:
    """Logits, K and V, in any split, against the oracle's dense attention; logits against the library's too.

    One memory set is larger than the context. Tokens are generated singly or several at once, over the ends of chunks;
    with decode="full" scores do not change.
    """
    config = SMALL.but(**sizes, decode=decode, kv_type=kv_type, flash_attn=flash_attn)
    n = limited(100, model_path)
    n_prompt = n - sum(generated)
    tokens = repetitive_tokens(n, oracle_model.hparams.n_vocab, seed=1)
    calls = split(tokens[:n_prompt], [*first_calls, n_prompt - sum(first_calls)])
    oracle = dense(oracle_model, tokens, kv_type)
    bound = config.tolerance(oracle_model, [[0]] if generated else []).logits
    with open_llama(model_path, None) as llm:
        (upstreams,) = eval_calls(llm, [tokens])
    with open_llama(model_path, config) as llm:
        parts = eval_calls(llm, calls)
        scores = [llm.kv.scores(il) for il in llm.kv.layers]
        parts += [decode_calls(llm, [call]) for call in split(tokens[n_prompt:], generated)]
        logits = np.concatenate(parts)
        assert llm.kv.memory_initialized == (n > config.h2o.chunk_size)
        assert_logits_close(logits, oracle.logits, bound)
        if kv_type == "f32":
            assert_logits_close(logits, upstreams, bound)
        for il, before in zip(llm.kv.layers, scores, strict=True):
            for got, want in zip((llm.kv.keys(il), llm.kv.values(il)), oracle.cache.read(il, slice(n)), strict=True):
                assert_logits_close(got, want, bound)
            if decode == "full":
                np.testing.assert_array_equal(llm.kv.scores(il)[:, :n_prompt], before)
                assert not llm.kv.scores(il)[:, n_prompt:].any()


@pytest.mark.parametrize(("H", "B"), [(6, EVERYTHING), (EVERYTHING, 8), (1, 10_000)])
@pytest.mark.parametrize("kv_type", ["f32", "q8_0"])
def test_p2_everything_in_an_index_is_dense(model_by_name: ModelByName, H: int, B: int, kv_type: str) -> None:
    """Retrieved, or in the memory sets. Prompts and generated tokens."""
    for name in ("qwen3-gqa4-f32", "qwen3-gqa8-q8_0", "deci-mixed-f32"):
        path = model_by_name(name)
        model = read_model(path)
        config = INDEX.but(heavy_budget=H, lookup_budget=B, decode="memory", kv_type=kv_type)
        tokens = random_tokens(100, seed=1)
        expected = dense(model, tokens, kv_type).logits
        with open_llama(path, config) as llm:
            actual = np.concatenate(eval_calls(llm, split(tokens, [25, 1, 34, *[1] * 40])))
        assert_logits_close(actual, expected, config.tolerance(model).logits)


# --- P3: a text may come in any split into calls


@pytest.mark.parametrize("name", [name for name in (*KEPT, *EVICTING, *UNSCORED) if "index" not in name])
def test_p3_whoever_wrote_the_text(tiny_model: Path, name: str) -> None:
    """A prompt in parts; generated tokens singly or several at once, causal among themselves.

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


def has_near_tie(llm: h2o_llama.Llama, other: h2o_llama.Llama) -> bool:
    """Whether the first memory sets that differ have dropped positions whose scores are the same but for rounding."""
    for one, two in zip(llm.kv.history, other.kv.history, strict=True):
        for il, kept in one.items():
            for head, row in enumerate(kept):
                only = [set(a.tolist()) - set(b.tolist()) for a, b in ((two[il][head], row), (row, two[il][head]))]
                if any(only):  # the score of a dropped position stays as it was
                    dropped = (np.sort(x.kv.scores(il)[head][list(p)]) for x, p in zip((llm, other), only, strict=True))
                    return np.allclose(*dropped, rtol=1e-5)
    return False


def assert_same_to_rounding(llm: h2o_llama.Llama, got: Any, other: h2o_llama.Llama, want: Any) -> None:
    """Logits, memory sets, and scores; up to a near tie, in which rounding chooses."""
    if has_near_tie(llm, other):
        return
    assert_logits_close(got, want, SELF_LOGITS_F32)
    assert (llm.n_tokens, llm.kv.chunk_index) == (other.n_tokens, other.kv.chunk_index)
    assert_same_history(llm.kv.history, other.kv.history)
    for il in other.kv.layers:
        scores = other.kv.scores(il)
        kept = ~np.isnan(scores)
        np.testing.assert_array_equal(~np.isnan(llm.kv.scores(il)), kept)
        assert_scores_close(llm.kv.scores(il)[kept], scores[kept], 1e-3)


# --- P3 with an index, whose tiles choose together: near ties let few rows differ. Other splits: test_h2o_oracle.py


def test_p3_index_steps_end_with_a_tile(tiny_model: Path) -> None:
    """However many tokens are computed at once: a tile's queries choose together."""
    config, tokens = INDEX.but(chunk_size=64, tile=16), random_tokens(250)
    with open_llama(tiny_model, config) as llm:
        (expected,) = eval_calls(llm, [tokens])
        for n_batch, n_ubatch in ((1024, 44), (100, 30)):
            with case(n_batch=n_batch), open_llama(tiny_model, config, n_batch=n_batch, n_ubatch=n_ubatch) as other:
                assert_same_to_rounding(other, eval_calls(other, [tokens])[0], llm, expected)


# --- graphs


LARGE = MEMORY.but(chunk_size=300, local_window=20, heavy_budget=30, sink_tokens=0, kv_type="f16")


# model, configuration, tokens, how many of them are a prompt, how many graphs the others need
REUSED: dict[str, tuple[str, Case, list[int], int, int]] = {
    # All but the first step, and the first that needs more than 256 rows, to which a step's rows are padded.
    "decode full": ("llama-gqa2-f32", SMALL.but(heavy_budget=1024, kv_type="f16"), random_tokens(300, seed=4), 200, 2),
    # While memory set and chunk need no more than 256 rows. A dense layer's grow to 1,024.
    "dense layer": ("llama-gqa2-f32", LARGE.but(dense_layers=(1,)), repetitive_tokens(790, seed=7), 690, 2),
    # A new one for the first token and for the chunk that begins at 400.
    "index": (
        "llama-gqa2-f32",
        LARGE.but(chunk_size=100, lookup_budget=8, tile=20),
        random_tokens(460, seed=8),
        350,
        2,
    ),
    # Also over the ends of chunks, where rows move; positions are an input.
    "evict": ("qwen3-gqa4-f32", CACHE_POSITIONS.but(chunk_size=8), random_tokens(200), 100, 1),
}


@pytest.mark.parametrize(("name", "is_fused"), [*((name, True) for name in REUSED), ("decode full", False)])
def test_graphs_are_used_again(
    model_by_name: ModelByName, monkeypatch: pytest.MonkeyPatch, name: str, is_fused: bool
) -> None:
    """Tokens generated singly need this many new graphs. They and a prompt have the bits of a graph for each step."""
    model, config, tokens, n_prompt, n_built = REUSED[name]
    monkeypatch.setenv("H2O_NO_FUSED_ATTENTION", "0" if is_fused else "1")
    logits = []
    for disabled in ("1", "0"):
        monkeypatch.setenv("LLAMA_GRAPH_REUSE_DISABLE", disabled)
        with open_llama(model_by_name(model), config) as llm:
            prompt = eval_calls(llm, [tokens[:n_prompt]])
            before = llm.kv.stats.graphs_reused
            logits.append(np.concatenate([*prompt, decode_calls(llm, [[token] for token in tokens[n_prompt:]])]))
            n_reused = llm.kv.stats.graphs_reused - before
            assert n_reused == (0 if disabled == "1" else len(tokens) - n_prompt - n_built)
    np.testing.assert_array_equal(logits[0], logits[1])


# --- steps

# schedule, n_batch, sizes of calls, dense tail: runs of single_pass, of both phases, and of tails
STEPS: list[tuple[str, int, list[int], int, tuple[int, int, int, int]]] = [
    ("single_pass", 256, [S], 0, (1, 0, 0, 0)),
    ("single_pass", S + S // 2, [6 * S], 0, (8, 0, 0, 0)),
    ("single_pass", 256, [90], 40, (4, 0, 0, 3)),
    # Phase 1 once for each call of at most n_batch tokens, phase 2 for each chunk of a call that leaves chunk 0.
    ("two_phase", 256, [S], 0, (0, 1, 0, 0)),
    ("two_phase", 256, [S + 1], 0, (0, 1, 2, 0)),
    ("two_phase", 256, [10, 20, 4, 26], 0, (0, 4, 6, 0)),
    ("two_phase", 4 * S, [8 * S + 1], 0, (0, 3, 9, 0)),
    ("two_phase", 256, [90], 40, (0, 1, 4, 3)),
]


def test_steps_follow_the_chunk_grid(tiny_model: Path) -> None:
    """A step is the part of a call of at most n_batch tokens in one chunk, also if it is a single token."""
    for schedule, n_batch, sizes, tail, runs in STEPS:
        with (
            case(schedule=schedule, n_batch=n_batch, sizes=sizes, tail=tail),
            open_llama(tiny_model, SMALL.but(schedule=schedule), n_batch=n_batch) as llm,
        ):
            for call in split(random_tokens(sum(sizes)), sizes):
                llm.eval(call, dense_tail=tail)
            stats = llm.kv.stats
            assert (stats.single_pass_runs, stats.phase1_runs, stats.phase2_runs, stats.tail_runs) == runs
            times = (stats.single_pass_ms, stats.phase1_ms, stats.phase2_ms, stats.tail_ms)
            assert [time > 0 for time in times] == [n > 0 for n in runs]
            assert (stats.prefill_tokens, stats.decode_steps) == (sum(sizes), 0)
            assert stats.selections == (sum(sizes) - 1) // S * len(llm.kv.layers)
            llm.reset()
            assert (llm.kv.stats.prefill_tokens, llm.n_tokens, llm.kv.chunk_index, llm.kv.history) == (0, 0, 0, [])
