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


@pytest.mark.parametrize(
    "sampling", [{"top_k": 1}, {"top_p": 0.0}, {"min_p": 1.0}, {"temperature": 1e-3}], ids=lambda s: next(iter(s))
)
def test_narrowest_choice_is_greedy(llm: Llama, sampling: dict[str, Any]) -> None:
    assert generate(llm, 10, **(PLAIN | sampling)) == generate(llm, 10, temperature=0)


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


@pytest.mark.parametrize("penalty", [{"repeat_penalty": 1e6}, {"frequency_penalty": 1e6}, {"presence_penalty": 1e6}])
def test_penalties_forbid_what_was_there(llm: Llama, penalty: dict[str, float]) -> None:
    """The prompt counts too, so greedy generation finds a new token every time."""
    plain = generate(llm, 40, temperature=0)
    assert len(set(PROMPT + plain)) < len(set(PROMPT)) + len(plain)
    tokens = generate(llm, 40, temperature=0, **penalty)
    assert len(set(PROMPT + tokens)) == len(set(PROMPT)) + len(tokens)


def test_negative_penalties_reward(llm: Llama) -> None:
    tokens = generate(llm, 10, temperature=0, presence_penalty=-1e6)
    assert set(tokens) <= set(PROMPT)


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
