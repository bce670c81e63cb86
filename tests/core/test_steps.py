"""The steps that a call takes, and which of them need a new graph."""

from pathlib import Path

import numpy as np
import pytest

from cases import CACHE_POSITIONS, MEMORY, SMALL, Case, S
from compare import case
from inputs import ModelByName, random_tokens, repetitive_tokens, split
from llamas import decode_calls, eval_calls, open_llama

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
