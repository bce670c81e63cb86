"""Sampling: every knob of llama.cpp's chain does what its name says."""

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import models
from chats import log_softmax
from compare import case
from h2o_llama import Llama, Sampling
from inputs import Opened, random_tokens

PROMPT = random_tokens(12)
PAST = random_tokens(64, n_vocab=20)
"""As many as penalties look at."""
# Everything off: the softmax of the logits.
PLAIN: dict[str, Any] = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}


def open_dense(path: Path, **kwargs: Any) -> Llama:
    return Llama(path, n_ctx=2048, n_batch=64, n_ubatch=16, n_threads=1, h2o=None, **kwargs)


@pytest.fixture
def llm(opened: Opened, tiny_model: Path) -> Llama:
    return opened("llm", open_dense, tiny_model)


def generate(llm: Llama, n: int, **sampling: Any) -> list[int]:
    llm.reset()
    return list(itertools.islice(llm.generate(PROMPT, **sampling), n))


def generated_logits(llm: Llama, tokens: list[int]) -> Any:
    """The logits that each of these tokens was drawn from."""
    llm.reset()
    llm.eval(PROMPT + tokens, logits="all")
    return llm.logits[len(PROMPT) - 1 : -1].astype(np.float64)


def test_seeds(tiny_model: Path, llm: Llama) -> None:
    """A seed repeats itself; that of the model is the default."""
    sampling = PLAIN | {"temperature": 2.0}
    fives, sixes = (generate(llm, 10, seed=seed, **sampling) for seed in (5, 6))
    assert fives == generate(llm, 10, seed=5, **sampling) != sixes
    assert generate(llm, 10, **sampling) != generate(llm, 10, **sampling)
    with open_dense(tiny_model, seed=5) as seeded:
        assert (generate(seeded, 10, **sampling), generate(seeded, 10, seed=6, **sampling)) == (fives, sixes)
        text = seeded("Hello", max_tokens=10, **sampling)["choices"]
        assert text == llm("Hello", max_tokens=10, seed=5, **sampling)["choices"]


def probabilities(logits: Any, **options: Any) -> Any:
    """The reference: of the next token after PAST, by the options of `Sampling`."""
    if (chance := options.pop("xtc_probability", 1)) < 1:
        parts = (probabilities(logits, **options), probabilities(logits, **options | {"xtc_threshold": 1}))
        return chance * parts[0] + (1 - chance) * parts[1]
    logits, counts = logits.astype(np.float64), np.bincount(PAST, minlength=len(logits))
    for token, bias in options.get("logit_bias", {}).items():
        logits[token] += bias
    penalty = np.where(counts > 0, options.get("repeat_penalty", 1), 1)
    logits = np.where(logits > 0, logits / penalty, logits * penalty)
    logits -= counts * options.get("frequency_penalty", 0) + (counts > 0) * options.get("presence_penalty", 0)

    def keep(order: Any, n: int) -> None:
        logits[order[max(n, 1) :]] = -np.inf

    def sorted_by(key: Any) -> tuple[Any, Any]:
        order = np.argsort(key, kind="stable")
        return order, np.cumsum(np.exp(log_softmax(logits))[order])

    keep(sorted_by(-logits)[0], options.get("top_k") or len(logits))
    information = np.minimum(-log_softmax(logits), 1e9)
    order, total = sorted_by(np.abs(information - (np.exp(-information) * information).sum()))
    keep(order, np.searchsorted(total, options.get("typical_p", 1)) + 1)
    order, total = sorted_by(-logits)
    keep(order, np.searchsorted(total, options.get("top_p", 1)) + 1)
    p = np.exp(log_softmax(logits))
    logits[p < options.get("min_p", 0) * p.max()] = -np.inf
    order, _ = sorted_by(-logits)
    p = np.exp(log_softmax(logits))
    logits[order[: max((p >= options.get("xtc_threshold", 1)).sum() - 1, 0)]] = -np.inf
    logits /= options.get("temperature", 1)
    if "grammar" in options:  # of the letters a to f
        logits[np.setdiff1d(np.arange(len(logits)), range(ord("a"), ord("g")))] = -np.inf
    return np.exp(log_softmax(logits))


@pytest.mark.parametrize(
    "options",
    [
        *({"temperature": temperature} for temperature in (0.7, 1.0, 3.0)),
        {"top_k": 3},
        {"top_p": 0.6},
        {"min_p": 0.3},
        {"typical_p": 0.4},
        {"xtc_probability": 1.0, "xtc_threshold": 0.05},
        {"xtc_probability": 0.5, "xtc_threshold": 0.05},
        {"logit_bias": {7: 3.0, 9: -np.inf}},
        {"repeat_penalty": 2.0},
        {"frequency_penalty": 0.5},
        {"presence_penalty": -2.0},
        {"grammar": "root ::= [a-f] root"},
        {"top_k": 50, "top_p": 0.9, "min_p": 0.02, "temperature": 1.5, "presence_penalty": 1.0},
    ],
    ids=str,
)
def test_tokens_have_the_probabilities_of_the_reference(llm: Llama, rng: Any, options: dict[str, Any]) -> None:
    n = 3000
    logits = (2 * rng.normal(size=models.N_VOCAB)).astype(np.float32)
    expected = probabilities(logits, **options)
    sampler = Sampling(**(PLAIN | options), seed=1).make_sampler(llm.model._handle)
    counts = np.zeros(models.N_VOCAB)
    for _ in range(n):
        sampler.accept(np.array(PAST, np.int32))
        counts[sampler._core.sample(logits, True)] += 1
    assert not counts[expected == 0].any()
    # Five standard deviations of a binomial, or of Poisson's law for rare tokens.
    bound = 5 * np.sqrt(np.maximum(n * expected * (1 - expected), 1))
    np.testing.assert_array_less(np.abs(counts - n * expected), bound)


def test_penalties_count_the_prompt_and_what_was_generated(llm: Llama) -> None:
    plain = generate(llm, 40, temperature=0)
    assert len(set(PROMPT + plain)) < len(set(PROMPT)) + len(plain)
    tokens = generate(llm, 40, temperature=0, presence_penalty=1e6)
    assert len(set(PROMPT + tokens)) == len(set(PROMPT)) + len(tokens)


def test_dry_ends_repetitions(llm: Llama) -> None:
    """A breaker within the repetition, or a longer one allowed, lets it continue."""
    repeated = [ord(c) for c in "abcd:efg"]
    twice = repeated + repeated[:-1]  # g comes next
    far = twice[:8] + [ord("x")] * 200 + twice[8:]
    for prompt, options, ends in (
        (twice, {}, False),
        (twice, {"dry_multiplier": 1e6}, False),  # only "ef" comes after the breaker
        (twice, {"dry_multiplier": 1e6, "dry_sequence_breakers": []}, True),
        (twice, {"dry_multiplier": 1e6, "dry_sequence_breakers": [], "dry_allowed_length": 8}, False),
        (far, {"dry_multiplier": 1e6, "dry_sequence_breakers": []}, True),
        (far, {"dry_multiplier": 1e6, "dry_sequence_breakers": [], "dry_penalty_last_n": 100}, False),
    ):
        sampling: dict[str, Any] = {"temperature": 0, "logit_bias": {ord("g"): 1000.0}, "dry_allowed_length": 3}
        llm.reset()
        with case(prompt=prompt, options=options):
            assert (next(llm.generate(prompt, **(sampling | options))) != ord("g")) == ends


@pytest.mark.parametrize("mode", [1, 2])
def test_mirostat_aims_at_its_information(llm: Llama, mode: int) -> None:
    """In bits, on average; without any, it is greedy."""
    sampling = PLAIN | {"mirostat_mode": mode, "seed": 1}
    assert generate(llm, 10, **sampling, mirostat_tau=0.0) == generate(llm, 10, temperature=0)
    bits = []
    for tau in (1.0, 4.0):
        tokens = generate(llm, 300, **sampling, mirostat_tau=tau, logit_bias={models.EOS: -np.inf})
        logits = generated_logits(llm, tokens)
        bits.append(np.mean([-log_softmax(row)[t] / np.log(2) for row, t in zip(logits, tokens, strict=True)]))
    assert bits[0] < bits[1] - 0.5, bits


def test_the_end_of_the_text_ends_generation(llm: Llama) -> None:
    """Uniform draws hit one of the tokens that end a text soon; it is not given out, nor put into the sequence."""
    sampling = PLAIN | {"temperature": 1e6}
    tokens = generate(llm, llm.n_ctx, seed=1, **sampling)
    assert 0 < len(tokens) < llm.n_ctx - len(PROMPT)
    assert models.EOS not in tokens
    assert llm.n_tokens == len(PROMPT) + len(tokens)
    answer = llm(PROMPT, max_tokens=None, seed=1, **sampling)
    assert answer["choices"][0]["finish_reason"] == "stop"
    assert answer["usage"]["completion_tokens"] == len(tokens)
