"""What may be generated: grammars, biases, processors of logits; and what the model thought of what was."""

from __future__ import annotations

import json
import math
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from chats import dictate, log_softmax
from compare import case
from h2o_llama import H2OConfig, H2OError, Llama, LlamaGrammar, Sampling
from inputs import Opened, random_tokens, repetitive_tokens
from models import EOS, N_VOCAB

PROMPT = random_tokens(20)


def open_tiny(path: Path, **kwargs: Any) -> Llama:
    return Llama(
        path, n_ctx=512, n_batch=64, n_threads=1, h2o=H2OConfig(local_window=8, heavy_budget=8, chunk_size=32), **kwargs
    )


@pytest.fixture
def llm(opened: Opened, tiny_model: Path) -> Llama:
    """The sequence is empty."""
    return opened("llm", open_tiny, tiny_model)


def text_of(llm: Llama, max_tokens: int | None = 64, **sampling: Any) -> str:
    return llm(PROMPT, max_tokens=max_tokens, **sampling)["choices"][0]["text"]


# --- grammars


def test_only_what_a_grammar_says_is_generated(llm: Llama) -> None:
    grammar = LlamaGrammar.from_string('root ::= "true" | "false"')
    wild: dict[str, Any] = {"temperature": 20.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
    assert {text_of(llm, grammar=grammar, seed=seed, **wild) for seed in range(20)} == {"true", "false"}
    assert text_of(llm, grammar='root ::= "ä"', temperature=0) == "ä"


def test_a_recursive_grammar(llm: Llama) -> None:
    """llama-cpp-python's tree."""
    tree = 'leaf ::= "."\nnode ::= leaf | "(" node node ")"\nroot ::= node'
    for seed in range(5):
        text = text_of(llm, 40, grammar=tree, seed=seed)
        rest = text
        while "(..)" in rest:
            rest = rest.replace("(..)", ".")
        assert rest == "." if len(text) < 40 else set(text) <= set("(.)")


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        (
            {
                "$defs": {"A": {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}},
                "type": "object",
                "properties": {"a": {"$ref": "#/$defs/A"}, "b": {"type": "integer"}},
                "required": ["a", "b"],
            },
            {"a": {"a": 1}, "b": 2},
            {"a": 1, "b": 2},
        ),
        (
            {
                "type": "object",
                "properties": {
                    "temperature": {"type": "number"},
                    "unit": {"anyOf": [{"enum": ["celsius", "fahrenheit"], "type": "string"}, {"type": "null"}]},
                },
            },
            {"temperature": 3.5, "unit": None},
            {"temperature": 3.5, "unit": "kelvin"},
        ),
    ],
    ids=["composed", "any of"],
)
def test_a_grammar_from_a_schema(llm: Llama, schema: Any, good: Any, bad: Any) -> None:
    """llama-cpp-python's schemas."""
    for grammar in (LlamaGrammar.from_json_schema(schema), LlamaGrammar.from_json_schema(json.dumps(schema))):
        said = text_of(llm, grammar=grammar, logits_processor=dictate(json.dumps(good), EOS))
        assert json.loads(said) == good
        with pytest.raises(H2OError, match="no token fits the grammar"):
            text_of(llm, grammar=grammar, logits_processor=dictate(json.dumps(bad), EOS))


def test_a_grammar_from_a_file(tmp_path: Path) -> None:
    (tmp_path / "x.gbnf").write_text('root ::= "x"')
    assert LlamaGrammar.from_file(tmp_path / "x.gbnf") == LlamaGrammar.from_string('root ::= "x"')


def test_tokens_that_fit_keep_their_probabilities(llm: Llama, rng: np.random.Generator) -> None:
    """A token that does not fit is drawn again: so each that fits is as probable as among those that fit."""
    logits = rng.normal(size=N_VOCAB).astype(np.float32)
    allowed = [ord(c) for c in "abcdef"]
    expected = np.exp(logits[allowed]) / np.exp(logits[allowed]).sum()
    counts = np.zeros(len(allowed))
    n = 2000
    for seed in range(n):
        sampling = Sampling(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, seed=seed, grammar="root ::= [a-f]")
        sampler = sampling.make_sampler(llm.model._handle)._core
        counts[allowed.index(sampler.sample_from(logits))] += 1
    deviations = (counts - n * expected) / np.sqrt(n * expected * (1 - expected))
    assert np.abs(deviations).max() < 4


def test_a_draft_follows_the_grammar(llm: Llama) -> None:
    grammar = 'root ::= ("abcd" | "abce"){15}'
    plain = text_of(llm, 60, grammar=grammar, temperature=0)
    drafted = llm(PROMPT, max_tokens=60, grammar=grammar, temperature=0, draft=15)
    assert drafted["choices"][0]["text"] == plain
    assert drafted["usage"]["completion_tokens_details"]["accepted_prediction_tokens"] > 10


def test_several_sequences_have_their_own_state_of_a_grammar(tiny_model: Path) -> None:
    with open_tiny(tiny_model, n_seq_max=2) as llm:
        other = llm.sequence()
        prompts = {llm: PROMPT[:3], other: PROMPT}
        steps = list(llm.generate_many(prompts, grammar='root ::= "x" [a-z]{5} "y"', temperature=3.0, seed=1))
        for sequence in prompts:
            text = bytes(step[sequence] for step in steps)
            assert len(text) == 7
            assert text[:1] + text[-1:] == b"xy"


def test_bad_grammars_are_refused(llm: Llama, capfd: pytest.CaptureFixture[str]) -> None:
    for grammar, match in [
        ("", "grammar must be GBNF as a string, not empty"),
        (3, "grammar must be a LlamaGrammar"),
        ('root ::= "a', "no valid GBNF .*unexpected end of input"),
        ('start ::= "a"', "does not contain a 'root' symbol"),
        ("root ::= thing", "Undefined rule identifier 'thing'"),
        ('root ::= root "a"', "left recursion"),
        ("root ::= " + "(" * 300 + '"a"' + ")" * 300, "more than 200 open parentheses"),
        ('root ::= "' + "a" * 300_000 + '"', "smaller than 256 KiB"),
        ('root ::= "a\0"', "must not hold a zero byte"),
        ('root ::= "\ud800"', "text that UTF-8 can hold"),
    ]:
        with case(grammar=grammar, match=match):
            with pytest.raises(ValueError, match=match):
                llm.generate(PROMPT, grammar=grammar)
            assert capfd.readouterr() == ("", "")
            assert llm.n_tokens == 0


def test_bad_schemas_are_refused() -> None:
    for schema, match in [
        ("{", "json_schema must be JSON"),
        ("[1]", "json_schema must be a JSON schema"),
        ({"type": "foo"}, "unrecognized type foo"),
        ({"$ref": "#/x"}, "cannot resolve"),
        ({"enum": [{1}]}, "json_schema must be what JSON can say"),
        ("[" * 100_000, "json_schema must be JSON"),
    ]:
        with case(schema=schema, match=match), pytest.raises(ValueError, match=match):
            LlamaGrammar.from_json_schema(schema)


# --- biases


def test_a_bias_decides(llm: Llama) -> None:
    free = next(iter(llm.generate(PROMPT, temperature=0)))
    llm.reset()
    assert next(iter(llm.generate(PROMPT, temperature=0, logit_bias={free: -math.inf}))) != free
    llm.reset()
    assert list(islice(llm.generate(PROMPT, temperature=1.0, logit_bias={"77": 1e6}), 5)) == [77] * 5  # type: ignore[dict-item]


def test_bad_biases_are_refused(llm: Llama) -> None:
    for bias, match in [
        ([1], "logit_bias must be a mapping"),
        ({N_VOCAB: 1.0}, f"token id must be an integer from 0 to {N_VOCAB - 1}"),
        ({"x": 1.0}, "token id must be an integer"),
        ({1: math.nan}, "logit_bias must be a finite number"),
        ({1: math.inf}, "logit_bias must be a finite number"),
    ]:
        with case(bias=bias, match=match), pytest.raises(ValueError, match=match):
            llm.generate(PROMPT, logit_bias=bias)


def test_what_forbids_every_token_is_an_error(llm: Llama) -> None:
    with pytest.raises(H2OError, match="no token can be drawn: logit_bias or logits_processor forbid all"):
        text_of(llm, logit_bias=dict.fromkeys(range(N_VOCAB), -math.inf))


# --- processors


def test_a_processor_sees_the_sequence_and_its_logits(llm: Llama) -> None:
    seen: list[tuple[list[int], NDArray[np.float32]]] = []

    def look(input_ids: NDArray[np.int32], logits: NDArray[np.float32]) -> NDArray[np.float32]:
        seen.append((input_ids.tolist(), logits.copy()))
        logits[5] = 1e6
        return logits

    assert list(islice(llm.generate(PROMPT, temperature=0, logits_processor=look), 2)) == [5, 5]
    assert [ids for ids, _ in seen] == [PROMPT, [*PROMPT, 5]]
    llm.reset()
    llm.eval(PROMPT, dense_tail=128)
    np.testing.assert_array_equal(seen[0][1], llm.logits[-1])


def test_processors_are_called_in_order(llm: Llama) -> None:
    processors = [lambda ids, logits: np.zeros_like(logits), lambda ids, logits: logits + np.eye(len(logits))[9]]
    assert next(iter(llm.generate(PROMPT, temperature=0, logits_processor=processors))) == 9


@pytest.mark.parametrize(
    ("processor", "match"),
    [
        (3, "logits_processor must be callable, a list of callables, or None"),
        (lambda ids, logits: None, "what logits_processor returns must be an array of numbers"),
        (lambda ids, logits: logits[1:], rf"shape \[{N_VOCAB}\], got shape \[{N_VOCAB - 1}\]"),
        (lambda ids, logits: logits * np.nan, "must return numbers below infinity"),
    ],
)
def test_bad_processors_are_refused(llm: Llama, processor: Any, match: str) -> None:
    with pytest.raises(ValueError, match=match):
        text_of(llm, logits_processor=processor)


def test_what_a_processor_raises_ends_the_text(llm: Llama) -> None:
    def fail(input_ids: object, logits: object) -> None:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        text_of(llm, logits_processor=fail)
    assert llm.n_tokens == len(PROMPT)


# --- log-probabilities


@pytest.mark.parametrize("draft", [0, 8])
def test_logprobs_of_a_completion(llm: Llama, draft: int) -> None:
    """Of the model, before processors and temperature; a draft changes nothing."""
    prompt = repetitive_tokens(24)

    def flatten(input_ids: NDArray[np.int32], logits: NDArray[np.float32]) -> NDArray[np.float32]:
        logits *= 0.5
        return logits

    answer = llm(prompt, max_tokens=6, temperature=0.5, seed=2, logprobs=2, logits_processor=flatten, draft=draft)
    entry = answer["choices"][0]["logprobs"]
    assert entry is not None
    tokens = llm.tokens[len(prompt) :].tolist()
    assert entry["text_offset"] == list(range(6)) or not answer["choices"][0]["text"].isascii()
    llm.reset()
    llm.eval(prompt, dense_tail=128)
    for i, token in enumerate(tokens):
        expected = log_softmax(llm.logits[-1])
        assert entry["tokens"][i] == llm.detokenize([token], special=True).decode(errors="replace")
        assert entry["token_logprobs"][i] == pytest.approx(expected[token], abs=1e-3)
        best = np.sort(expected)[-2:][::-1]
        np.testing.assert_allclose(sorted(entry["top_logprobs"][i].values(), reverse=True), best, atol=1e-3)
        llm.eval([token], decode=True)


def test_logprobs_end_where_the_text_does(llm: Llama) -> None:
    answer = llm(PROMPT, max_tokens=20, stop="END", logprobs=0, logits_processor=dictate("one END two", EOS))
    assert answer["choices"][0]["text"] == "one "
    logprobs = answer["choices"][0]["logprobs"]
    assert logprobs is not None
    assert "".join(logprobs["tokens"]) == "one "
    chunks = list(
        llm(PROMPT, max_tokens=20, stop="END", logprobs=0, logits_processor=dictate("one END two", EOS), stream=True)
    )
    parts = [chunk["choices"][0]["logprobs"] for chunk in chunks]
    assert "".join(token for part in parts if part is not None for token in part["tokens"]) == "one "


def test_logprobs_are_of_generated_tokens(llm: Llama) -> None:
    with pytest.raises(ValueError, match="logprobs are of generated tokens: pass echo=False"):
        llm(PROMPT, logprobs=1, echo=True)
    with pytest.raises(ValueError, match="logprobs must be an integer from 0"):
        llm(PROMPT, logprobs=-1)
    assert llm(PROMPT, max_tokens=1)["choices"][0]["logprobs"] is None


def test_create_completion_is_the_call(llm: Llama) -> None:
    a, b = llm.create_completion(PROMPT, max_tokens=4, temperature=0), llm(PROMPT, max_tokens=4, temperature=0)
    assert a["choices"] == b["choices"]
