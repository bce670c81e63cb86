"""Several sequences in one context: each gives what a context of its own gives."""

import gc
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import h2o_llama
from cases import CASES, SMALL, Case, S
from compare import assert_all_equal
from h2o_llama import H2OError
from llamas import decode_each, open_llama, view

N_CTX = 256  # llama.cpp makes it a multiple of 256


@pytest.fixture
def config(request: pytest.FixtureRequest) -> Case | None:
    case = CASES[request.param]
    return case and case.but(kv_type="f32")


@pytest.fixture
def llm(tiny_model: Path, config: Case | None) -> Iterator[h2o_llama.Llama]:
    with open_llama(tiny_model, config, n_ctx=N_CTX, n_batch=512, n_seq_max=3) as llm:
        yield llm


@pytest.fixture
def alone(tiny_model: Path, config: Case | None) -> Iterator[h2o_llama.Llama]:
    """A context with one sequence."""
    with open_llama(tiny_model, config, n_ctx=N_CTX, n_batch=512) as alone:
        yield alone


def text(seed: int, n: int = 40) -> list[int]:
    """n different tokens, so that none have equal keys in a chunk; then the first half of them again."""
    tokens: list[int] = np.random.default_rng(seed).permutation(256)[:n].tolist()
    return [*tokens, *tokens[: n // 2]]


# Several at once: test_h2o_past.py has every configuration.
some_configs = pytest.mark.parametrize("config", ["index", "evict", "dense"], indirect=True)


@pytest.mark.parametrize("config", ["sum", "index"], indirect=True)
def test_a_step_of_several_uses_its_graph_again(llm: h2o_llama.Llama) -> None:
    """And it is counted for each."""
    b = llm.sequence()
    list(llm.generate_many({llm: text(0)[:20], b: text(1)[:20]}, temperature=0, max_tokens=6))
    for sequence in (llm, b):
        assert sequence.kv.stats.decode_steps == 6
        assert sequence.kv.stats.graphs_reused == 5


@some_configs
def test_sampling_is_each_sequences_own(llm: h2o_llama.Llama, alone: h2o_llama.Llama) -> None:
    b = llm.sequence()
    steps = list(llm.generate_many({llm: text(0), b: text(1)}, temperature=1.5, seed=3, max_tokens=12))
    for seed, prompt, sequence in ((3, text(0), llm), (4, text(1), b)):
        alone.reset()
        expected = list(islice(alone.generate(prompt, temperature=1.5, seed=seed), 12))
        assert [step[sequence] for step in steps if sequence in step] == expected


@pytest.mark.parametrize("config", ["index"], indirect=True)
def test_a_step_that_failed_comes_again(llm: h2o_llama.Llama, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is drawn twice: samplers, grammars and penalties count what the sequences have."""
    b = llm.sequence()
    failing: list[str] = []

    def fail(name: str) -> None:
        if name in failing:
            failing.remove(name)
            raise H2OError("not today")

    def processor(ids: Any, logits: Any) -> Any:
        if ids[0] == text(1)[0]:  # of b, which is drawn after the other one
            fail("processor")
        return logits

    decode_each = h2o_llama._core.Context.decode_each
    monkeypatch.setattr(h2o_llama._core.Context, "decode_each", lambda *x: fail("decode_each") or decode_each(*x))
    steps: list[list[dict[Any, int]]] = []
    for names in ([], ["processor", "decode_each"]):
        llm.reset()
        b.reset()
        running = llm.generate_many(
            {llm: text(0), b: text(1)},
            grammar='root ::= "x" [a-z]{9} "y" [a-z]*',
            logits_processor=processor,
            frequency_penalty=2.0,
            temperature=1.5,
            seed=3,
            max_tokens=12,
        )
        made: list[dict[Any, int]] = []
        while len(made) < 12:
            for name in names:
                n = llm.n_tokens, b.n_tokens
                failing.append(name)
                with pytest.raises(H2OError, match="not today"):
                    next(running)
                assert not made or (llm.n_tokens, b.n_tokens) == n
            made.append(next(running))
        steps.append(made)
    assert steps[0] == steps[1]
    running = llm.generate_many({llm: [], b: []})
    next(running)
    b.reset()
    b.eval([1])
    with pytest.raises(H2OError, match=r"\[Llama.generate_many\] the sequence now holds another text"):
        next(running)


@some_configs
def test_sequences_end_one_by_one(llm: h2o_llama.Llama) -> None:
    """By the context's size, and by request."""
    b, c = llm.sequence(), llm.sequence()
    prompts = {llm: text(0, 200)[: N_CTX - 3], b: text(1), c: text(2)}
    running = llm.generate_many(prompts, temperature=1, seed=0, max_tokens=8)
    lengths = dict.fromkeys(prompts, 0)
    for n, step in enumerate(running):
        if n == 4:
            running.stop(b)
        for sequence in step:
            lengths[sequence] += 1
    assert lengths == {llm: 3, b: 5, c: 8}
    assert [s.n_tokens for s in prompts] == [N_CTX, 60 + 5, 60 + 8]


@pytest.mark.parametrize("config", ["sum", "dense"], indirect=True)
def test_a_sequence_that_is_forgotten_or_closed_is_free_again(llm: h2o_llama.Llama) -> None:
    others = [llm.sequence(), llm.sequence()]
    others[1].eval(text(0))
    with pytest.raises(H2OError, match=r"^\[Llama.sequence\] all n_seq_max=3 sequences are in use"):
        llm.sequence()
    llm.eval([1])
    with pytest.raises(H2OError, match=r"all n_seq_max=3 sequences are in use"):
        llm.fork()
    del others[1]
    gc.collect()
    assert llm.sequence().n_tokens == 0
    others[0].close()
    with pytest.raises(ValueError, match=r"^\[Sequence\] this sequence is closed$"):
        others[0].eval([1])
    assert llm.fork().n_tokens == 1


# with eviction a sequence is never full, but for dense layers
@pytest.mark.parametrize(
    "config", ["sum", "index, two_phase", "dense layer", "composed", "evict, dense layer", "dense"], indirect=True
)
def test_a_failed_step_changes_no_sequence(llm: h2o_llama.Llama, alone: h2o_llama.Llama) -> None:
    """One of the sequences is full, another begins a chunk."""
    full = llm.sequence()
    full.eval(text(1, 200)[:N_CTX])
    llm.eval(text(0)[: 2 * S])
    alone.eval(text(0)[: 2 * S])
    with pytest.raises(H2OError, match="llama.cpp failed"):
        decode_each([llm, full], [1, 2])
    for sequence in (llm, alone):
        sequence.eval(text(2)[:20])
    np.testing.assert_array_equal(llm.logits, alone.logits)
    assert_all_equal(view(llm), view(alone))


def test_closing_the_llama_closes_all(tiny_model: Path) -> None:
    llm = open_llama(tiny_model, SMALL, n_ctx=N_CTX, n_seq_max=2)
    b = llm.sequence()
    kv = b.kv
    llm.close()
    for use in (lambda: b.eval([1]), lambda: b.n_tokens, lambda: kv.layers, b.fork, llm.sequence):
        with pytest.raises(ValueError, match="this model is closed"):
            use()
    b.close()
    llm.close()


def test_bad_arguments(tiny_model: Path) -> None:
    with pytest.raises(ValueError, match=r"^\[Llama\] n_batch must be at least n_seq_max \(32\), got 16"):
        open_llama(tiny_model, SMALL, n_seq_max=32, n_batch=16)
    with pytest.raises(ValueError, match=r"n_seq_max=256 sequences of n_ctx=100000000 tokens are more than"):
        open_llama(tiny_model, SMALL, n_ctx=10**8, n_batch=512, n_seq_max=256)
    with (
        open_llama(tiny_model, SMALL, n_ctx=N_CTX, n_seq_max=2) as llm,
        open_llama(tiny_model, SMALL, n_ctx=N_CTX) as other,
    ):
        for prompts in ({}, [llm], {other: [1]}, {1: [1]}):
            with pytest.raises(ValueError, match=r"^\[Llama.generate_many\] prompts must be "):
                llm.generate_many(prompts)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match=r"^\[Llama.generate_many\] tokens\[0\] must be a token id"):
            llm.generate_many({llm: [999]})
        with pytest.raises(H2OError, match="there are no logits to sample from"):
            next(llm.generate_many({llm: []}))
        assert llm.n_tokens == 0
