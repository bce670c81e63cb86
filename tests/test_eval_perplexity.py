"""Perplexity, KL divergence and continuation: against numbers computed by hand and by single calls."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import h2o_llama
from h2o_llama import H2OConfig
from h2o_llama.eval import Continuation, Perplexity, Setting, _losses, evaluate
from h2o_llama.eval._losses import compare
from inputs import random_tokens

S = 64
N = 256
SPARSE = Setting("sparse", H2OConfig(local_window=8, heavy_budget=8, lookup_budget=0))
TWO_PHASE = Setting("two phases", H2OConfig(local_window=8, heavy_budget=8, lookup_budget=0, schedule="two_phase"))
# 2 windows of N, and a rest between them; a token per byte.
TEXT = bytes(random_tokens(2 * N + 70, n_vocab=128))


def log_probabilities(row: Any) -> list[float]:
    total = math.fsum(math.exp(float(x)) for x in row)
    return [float(x) - math.log(total) for x in row]


def measure(path: Path, *settings: Setting, **arguments: Any) -> list[dict[str, Any]]:
    given: dict[str, Any] = {"text": TEXT, "n_tokens": [N], "tasks": [Perplexity()], "chunk_size": S, "n_threads": 1}
    return evaluate(path, settings, **(given | arguments))


def open_llama(path: Path, h2o: H2OConfig | None, n_ctx: int = N) -> h2o_llama.Llama:
    return h2o_llama.Llama(path, n_ctx=n_ctx, n_ubatch=S, n_threads=1, h2o=h2o and h2o.in_chunks_of(S))


# --- losses


def test_losses_of_huge_logits_are_finite() -> None:
    dense = np.array([[3e4, -3e4, 0.0]], dtype=np.float32)
    (got,) = compare(dense, [dense[:, ::-1]], np.array([0], dtype=np.int32))
    assert got.nats[0] == pytest.approx(3e4)
    assert got.kld[0] == pytest.approx(3e4)


# --- perplexity


def test_perplexity_is_that_of_single_calls(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_losses, "_BLOCK", 5 * 260)  # five rows at a time
    (row,) = measure(tiny_model, SPARSE)
    tokens = [np.frombuffer(part, np.uint8) for part in (TEXT[:N], TEXT[-N:])]
    nats: dict[str, list[float]] = {"sparse": [], "dense": []}
    tops: dict[str, list[int]] = {"sparse": [], "dense": []}
    divergences = []
    for window in tokens:
        rows = {}
        for name, h2o in (("sparse", SPARSE.h2o), ("dense", None)):
            with open_llama(tiny_model, h2o) as llm:
                assert llm.tokenize(window.tobytes()) == window.tolist()
                llm.eval(window, logits="all")
                rows[name] = np.array([log_probabilities(logits) for logits in llm.logits])
            nats[name] += (-rows[name][np.arange(N - 1), window[1:]]).tolist()
            tops[name] += rows[name][N // 2 : -1].argmax(axis=1).tolist()
        p, q = rows["dense"][N // 2 : -1], rows["sparse"][N // 2 : -1]
        divergences += (np.exp(p) * (p - q)).sum(axis=1).tolist()
    scored = {name: np.reshape(values, (2, N - 1))[:, N // 2 :] for name, values in nats.items()}

    assert (row["windows"], row["n_scored"]) == (2, 2 * (N // 2 - 1))
    assert row["ppl"] == pytest.approx(math.exp(scored["sparse"].mean()), rel=1e-4)
    assert row["ppl_dense"] == pytest.approx(math.exp(scored["dense"].mean()), rel=1e-4)
    added = (scored["sparse"] - scored["dense"]).mean(axis=1)
    assert row["nats_added"] == pytest.approx(added.mean(), rel=1e-3)
    kld = np.reshape(divergences, (2, -1)).mean(axis=1)
    for name, of_windows in (("nats_added", added), ("kld", kld)):
        over_windows = row["over_windows"]
        assert over_windows[f"{name}_by_window"] == pytest.approx(of_windows.tolist(), abs=1e-5)
        assert over_windows[name] == pytest.approx(of_windows.mean(), abs=1e-5)
        assert over_windows[f"{name}_se"] == pytest.approx(abs(of_windows[0] - of_windows[1]) / 2, abs=1e-5)
    assert row["kld_mean"] == pytest.approx(np.mean(divergences), rel=1e-3)
    assert row["same_top"] == pytest.approx(np.mean(np.equal(tops["sparse"], tops["dense"])))
    assert row["kld_mean"] > 0.01

    assert [(b["start"], b["stop"], b["n"]) for b in row["buckets"]] == [(0, 64, 128), (64, 128, 128), (128, 255, 254)]
    for bucket in row["buckets"]:
        part = np.reshape(nats["sparse"], (2, N - 1))[:, bucket["start"] : bucket["stop"]]
        assert bucket["ppl"] == pytest.approx(math.exp(part.mean()), rel=1e-4)
    # The first chunk has no memory set: it is dense.
    assert row["buckets"][0]["kld_mean"] < 1e-5
    assert row["buckets"][0]["same_top"] == 1
    assert row["first_chunk"]["kld"] == pytest.approx(row["buckets"][0]["kld_mean"])


def test_windows_one_by_one_are_those_of_all(tiny_model: Path) -> None:
    (both,) = measure(tiny_model, SPARSE)
    alone = measure(tiny_model, SPARSE, tasks=[Perplexity(only=i) for i in (0, 1)])
    assert [row["only"] for row in alone] == [0, 1]
    for name in ("over_windows", "first_chunk"):
        assert [row[name]["kld_by_window"][0] for row in alone] == both[name]["kld_by_window"]
        assert [row[name]["kld_se"] for row in alone] == [None, None]
    with pytest.raises(ValueError, match="only must be an integer from 0 to 1"):
        measure(tiny_model, SPARSE, tasks=[Perplexity(only=2)])


def test_piece_size_does_not_change_the_numbers(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tasks = [Perplexity(1), Continuation(50, 1)]
    whole = measure(tiny_model, SPARSE, TWO_PHASE, tasks=tasks)
    monkeypatch.setattr(_losses, "_PIECE_BYTES", 10 * 4 * 260)  # ten tokens
    for row, other in zip(whole, measure(tiny_model, SPARSE, TWO_PHASE, tasks=tasks), strict=True):
        assert other["ppl"] == pytest.approx(row["ppl"], rel=1e-5)
        assert other["ppl_dense"] == pytest.approx(row["ppl_dense"], rel=1e-3)  # dense attention rounds to F16
        assert other["kld_mean"] == pytest.approx(row["kld_mean"], rel=1e-2)
        assert other["n_scored"] == row["n_scored"]


# --- continuation


def test_continuation_is_that_of_single_calls(tiny_model: Path) -> None:
    prompt, length = N + 20, 40
    full, memory = measure(tiny_model, SPARSE, n_tokens=[prompt], tasks=[Continuation(length, windows=1)])
    assert (full["over"], memory["over"]) == ("full", "memory")
    window = np.frombuffer(TEXT, np.uint8)[: prompt + length]
    targets = window[prompt + 1 :]

    def perplexity(h2o: H2OConfig | None, dense_tail: int) -> float:
        with open_llama(tiny_model, h2o, n_ctx=len(window)) as llm:
            llm.eval(window[:prompt])
            llm.eval(window[prompt:], logits="all", dense_tail=dense_tail)
            nats = [-log_probabilities(row)[t] for row, t in zip(llm.logits[:-1], targets, strict=True)]
        return math.exp(sum(nats) / len(nats))

    for row, dense_tail in ((full, length), (memory, 0)):
        assert row["n_scored"] == length - 1
        assert row["prompt_tokens"] == prompt
        assert row["ppl"] == pytest.approx(perplexity(SPARSE.h2o, dense_tail), rel=1e-3)
        assert row["ppl_dense"] == pytest.approx(perplexity(None, 0), rel=1e-3)
    assert full["kld_mean"] < memory["kld_mean"]
