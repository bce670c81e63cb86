"""Sampling: every knob of llama.cpp's chain does what its name says."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import models
from chats import log_softmax
from h2o_llama import Llama
from inputs import random_tokens

PROMPT = random_tokens(12)
# Everything off: the softmax of the logits.
PLAIN: dict[str, Any] = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}


@pytest.fixture(scope="module")
def llm(tiny_model: Path) -> Iterator[Llama]:
    with Llama(tiny_model, n_ctx=2048, n_batch=64, n_ubatch=16, n_threads=1, h2o=None) as llm:
        yield llm


def generate(llm: Llama, n: int, **sampling: Any) -> list[int]:
    llm.reset()
    return list(itertools.islice(llm.generate(PROMPT, **sampling), n))


def first_logits(llm: Llama) -> Any:
    llm.reset()
    llm.eval(PROMPT)
    return llm.logits[0].astype(np.float64)


def draws(llm: Llama, n: int, **sampling: Any) -> Any:
    """Counts [n_vocab] of the first token over n seeds; the end of the text counts as EOS."""
    counts = np.zeros(models.N_VOCAB)
    for seed in range(n):
        token = generate(llm, 1, seed=seed, **sampling)
        counts[token[0] if token else models.EOS] += 1
    return counts


def test_temperature_0_is_greedy(llm: Llama) -> None:
    tokens = generate(llm, 10, temperature=0)
    llm.reset()
    llm.eval(PROMPT + tokens, logits="all")
    assert tokens == llm.logits[len(PROMPT) - 1 : -1].argmax(axis=1).tolist()


def test_a_seed_repeats_itself(llm: Llama) -> None:
    sampling = PLAIN | {"temperature": 2.0}
    assert generate(llm, 10, seed=5, **sampling) == generate(llm, 10, seed=5, **sampling)
    assert generate(llm, 10, seed=5, **sampling) != generate(llm, 10, seed=6, **sampling)
    assert generate(llm, 10, **sampling) != generate(llm, 10, **sampling)


def test_seed_of_the_model_is_the_default(tiny_model: Path, llm: Llama) -> None:
    sampling = PLAIN | {"temperature": 2.0}
    with Llama(tiny_model, n_ctx=256, n_batch=64, n_ubatch=16, n_threads=1, h2o=None, seed=5) as seeded:
        assert generate(seeded, 10, **sampling) == generate(llm, 10, seed=5, **sampling)
        assert generate(seeded, 10, seed=6, **sampling) == generate(llm, 10, seed=6, **sampling)
        text = seeded("Hello", max_tokens=10, **sampling)["choices"]
        assert text == llm("Hello", max_tokens=10, seed=5, **sampling)["choices"]


@pytest.mark.parametrize("temperature", [0.7, 1.0, 3.0])
def test_frequencies_are_the_softmax(llm: Llama, temperature: float) -> None:
    n = 800
    p = np.exp(log_softmax(first_logits(llm) / temperature))
    counts = draws(llm, n, **(PLAIN | {"temperature": temperature}))
    is_text = np.arange(models.N_VOCAB) < models.N_BYTES
    likely = is_text & (p * n > 20)
    assert likely.any()
    # Five standard deviations of a binomial.
    np.testing.assert_array_less(np.abs(counts - n * p)[likely], 5 * np.sqrt(n * p * (1 - p))[likely])


@pytest.mark.parametrize("name", ["top_k", "top_p", "min_p"])
def test_truncation_keeps_the_right_tokens(llm: Llama, name: str) -> None:
    p = np.exp(log_softmax(first_logits(llm)))
    order = np.argsort(-p)
    n_kept = {
        "top_k": 3,
        "top_p": int(np.searchsorted(np.cumsum(p[order]), 0.6)) + 1,
        "min_p": int((p >= 0.3 * p.max()).sum()),
    }[name]
    assert 1 < n_kept < models.N_VOCAB
    counts = draws(llm, 300, **(PLAIN | {name: {"top_k": 3, "top_p": 0.6, "min_p": 0.3}[name]}))
    drawn = set(np.flatnonzero(counts).tolist())
    assert drawn <= set(order[:n_kept].tolist())
    assert len(drawn) > 1


def test_typical_tokens_are_nearest_to_the_entropy(llm: Llama) -> None:
    p = np.exp(log_softmax(first_logits(llm)))
    order = np.argsort(np.abs(-np.log(p) - (-p * np.log(p)).sum()))
    n_kept = int(np.searchsorted(np.cumsum(p[order]), 0.4, side="right")) + 1
    assert 1 < n_kept < models.N_VOCAB
    drawn = set(np.flatnonzero(draws(llm, 300, **(PLAIN | {"typical_p": 0.4}))).tolist())
    assert drawn <= set(order[:n_kept].tolist())
    assert len(drawn) > 1


def test_xtc_drops_the_most_probable(llm: Llama) -> None:
    """But the least probable of those above the threshold; or, with a probability of 0.5, half the time."""
    bias = {10: 100.0, 20: 101.0, 30: 102.0}  # 0.09, 0.24 and 0.67 of the whole, but for the logits themselves
    logits = first_logits(llm)
    exact = {token: value - logits[token] for token, value in bias.items()}
    xtc = PLAIN | {"logit_bias": exact, "xtc_threshold": 0.2}
    assert set(np.flatnonzero(draws(llm, 60, **xtc, xtc_probability=1.0))) == {10, 20}
    assert set(np.flatnonzero(draws(llm, 60, **xtc, xtc_probability=0.5))) == {10, 20, 30}


def test_dry_ends_repetitions(llm: Llama) -> None:
    """A breaker within the repetition, or a longer one allowed, lets it continue."""
    repeated = [ord(c) for c in "abcd:efg"]
    sampling: dict[str, Any] = {"temperature": 0, "logit_bias": {ord("g"): 1000.0}, "dry_allowed_length": 3}

    def next_after(prompt: list[int], **options: Any) -> int:
        llm.reset()
        return next(llm.generate(prompt, **(sampling | options)))

    twice = repeated + repeated[:-1]  # g comes next
    assert next_after(twice) == ord("g")
    assert next_after(twice, dry_multiplier=1e6) == ord("g")  # only "ef" comes after the breaker
    assert next_after(twice, dry_multiplier=1e6, dry_sequence_breakers=[]) != ord("g")
    assert next_after(twice, dry_multiplier=1e6, dry_allowed_length=8, dry_sequence_breakers=[]) == ord("g")
    far = twice[:8] + [ord("x")] * 200 + twice[8:]
    assert next_after(far, dry_multiplier=1e6, dry_sequence_breakers=[]) != ord("g")
    assert next_after(far, dry_multiplier=1e6, dry_sequence_breakers=[], dry_penalty_last_n=100) == ord("g")


@pytest.mark.parametrize("mode", [1, 2])
def test_mirostat_aims_at_its_information(llm: Llama, mode: int) -> None:
    """In bits, on average; without any, it is greedy."""
    sampling = PLAIN | {"mirostat_mode": mode, "seed": 1}
    assert generate(llm, 10, **sampling, mirostat_tau=0.0) == generate(llm, 10, temperature=0)
    bits = []
    for tau in (1.0, 4.0):
        tokens = generate(llm, 300, **sampling, mirostat_tau=tau, logit_bias={models.EOS: -np.inf})
        llm.reset()
        llm.eval(PROMPT + tokens, logits="all")
        logits = llm.logits[len(PROMPT) - 1 : -1].astype(np.float64)
        bits.append(np.mean([-log_softmax(row)[t] / np.log(2) for row, t in zip(logits, tokens, strict=True)]))
    assert bits[0] < bits[1] - 0.5, bits


@pytest.mark.parametrize("penalty", [{"repeat_penalty": 1e6}, {"frequency_penalty": 1e6}, {"presence_penalty": 1e6}])
def test_penalties_forbid_what_was_there(llm: Llama, penalty: dict[str, float]) -> None:
    """The prompt counts too, so greedy generation finds a new token every time."""
    plain = generate(llm, 40, temperature=0)
    assert len(set(PROMPT + plain)) < len(set(PROMPT)) + len(plain)
    tokens = generate(llm, 40, temperature=0, **penalty)
    assert len(set(PROMPT + tokens)) == len(set(PROMPT)) + len(tokens)


def test_the_end_of_the_text_ends_generation(llm: Llama) -> None:
    """Uniform draws hit one of the tokens that end a text soon; it is not given out, nor put into the sequence."""
    sampling = PLAIN | {"temperature": 1e6}
    llm.reset()
    tokens = list(llm.generate(PROMPT, seed=1, **sampling))
    assert 0 < len(tokens) < llm.n_ctx - len(PROMPT)
    assert models.EOS not in tokens
    assert llm.n_tokens == len(PROMPT) + len(tokens)
    answer = llm(PROMPT, max_tokens=None, seed=1, **sampling)
    assert answer["choices"][0]["finish_reason"] == "stop"
    assert answer["usage"]["completion_tokens"] == len(tokens)
