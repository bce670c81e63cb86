"""How often each phase runs, what it logs, and that phase 2 writes no K or V."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import phase_log
from compare import assert_all_equal, case
from inputs import ModelByName, random_tokens, split
from llamas import Config, eval_calls, open_llama
from phase_log import fields

S = 16


def config(L: int = 4, H: int = 4) -> Config:
    return Config(S=S, L=L, H=H, schedule="two_phase")


def log_of(path: Path, calls: list[list[int]], **env: str) -> list[str]:
    return phase_log.lines_of(path, config(), calls, **env)


def phases(lines: list[str], phase: int) -> list[dict[str, int]]:
    return [fields(line) for line in lines if f"phase={phase}" in line]


def test_phase_log_of_a_prompt_with_a_tail(tiny_model: Path) -> None:
    """The seed's log check: 24 tokens in chunks of 16 are one phase 1 and two phases 2."""
    lines = log_of(tiny_model, [random_tokens(24)], H2O_DEBUG_PHASES="1", H2O_DEBUG_CACHE="1")
    assert [f["ubatch.n_tokens"] for f in phases(lines, 1)] == [24]
    phase2 = phases(lines, 2)
    assert [f["ubatch.n_tokens"] for f in phase2] == [16, 8]
    assert [f["chunk_idx"] for f in phase2] == [0, 1]
    assert [f["has_prev"] for f in phase2] == [0, 1]
    assert phase2[1]["mem_init"] == 1
    assert sum("cache ready" in line for line in lines) == 1
    first_phase2 = next(i for i, line in enumerate(lines) if "phase=2" in line)
    assert all("phase=1" not in line for line in lines[first_phase2:]), "phase 1 comes first"


def test_phase_log_of_several_calls(tiny_model: Path) -> None:
    """Pieces of phase 2 are cut at the absolute grid; a chunk after the first has a predecessor in every call."""
    calls = split(random_tokens(60), [10, 20, 4, 26])
    lines = log_of(tiny_model, calls, H2O_DEBUG_PHASES="1")
    assert [f["ubatch.n_tokens"] for f in phases(lines, 1)] == [10, 20, 4, 26]
    phase2 = phases(lines, 2)
    # [0, 10) none; [10, 30) -> 6 + 14; [30, 34) -> 2 + 2; [34, 60) -> 14 + 12
    assert [f["ubatch.n_tokens"] for f in phase2] == [6, 14, 2, 2, 14, 12]
    assert [f["chunk_idx"] for f in phase2] == [0, 1, 1, 2, 2, 3]
    assert [f["has_prev"] for f in phase2] == [0, 1, 1, 1, 1, 1]


def test_exact_count_of_phases(tiny_model: Path) -> None:
    """Phase 1 once per call of at most n_batch tokens, phase 2 once per chunk of each call that leaves chunk 0.

    No token of a prompt is taken for a generated one, not even one that is left alone.
    """
    for n, n_batch, phase1, phase2 in [
        (S, 256, 1, 0),
        (S + 1, 256, 1, 2),
        (2 * S, 256, 1, 2),
        (4 * S, 256, 1, 4),
        (5 * S + 3, 256, 1, 6),
        (4 * S, 2 * S, 2, 4),
        (6 * S, 3 * S, 2, 6),
        (2 * S, S, 2, 1),
        (4 * S + 1, 4 * S, 2, 5),
        (4 * S + 2, 4 * S, 2, 5),
        (8 * S + 1, 4 * S, 3, 9),
        (1, 4 * S, 1, 0),
    ]:
        with case(n=n, n_batch=n_batch), open_llama(tiny_model, config(), n_batch=n_batch) as llm:
            llm.eval(random_tokens(n))
            stats = llm.kv.stats
            assert (stats.phase1_runs, stats.phase2_runs) == (phase1, phase2)
            assert (stats.decode_steps, stats.prefill_tokens, llm.n_tokens) == (0, n, n)


@pytest.mark.parametrize("schedule", ["two_phase"])
def test_phase_2_rewrites_no_k_or_v(model_path: Path, schedule: str) -> None:
    """Phase 2's hidden states depend on the memory budget. If it wrote K or V, the cache would too."""
    caches = []
    tokens = random_tokens(4 * S, seed=1)
    for budgets in (config(1, 0), config(8, 16), config(0, 100)):
        with open_llama(model_path, replace(budgets, schedule=schedule)) as llm:
            (logits,) = eval_calls(llm, [tokens])
            caches.append([(np.array(llm.kv.keys(il)), np.array(llm.kv.values(il))) for il in llm.kv.layers])
            caches[-1].append((logits, logits))
    for other in caches[1:]:
        for (k, v), (other_k, other_v) in zip(caches[0][:-1], other[:-1], strict=True):
            np.testing.assert_array_equal(k, other_k)
            np.testing.assert_array_equal(v, other_v)
        assert not np.array_equal(caches[0][-1][0][S:], other[-1][0][S:]), "the budgets must matter for the logits"


def test_graph_reuse_never_mixes_phases(model_by_name: ModelByName) -> None:
    """Phase 1 and phase 2 of the same number of tokens in alternation, twice: the second time graphs may be reused."""
    calls = split(random_tokens(8 * S, seed=3), [S] * 8)
    with open_llama(model_by_name("llama-gqa2-f32"), config(4, 8)) as llm:
        first = eval_calls(llm, [*calls, [1], [2]])
        llm.reset()
        second = eval_calls(llm, [*calls, [1], [2]])
    assert_all_equal(first, second)
