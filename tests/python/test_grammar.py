"""Constraints on generated tokens: grammars, biases, logits processors. Log-probabilities of the result."""

import json
import re
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from itertools import combinations, islice, permutations, product
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
from numpy.typing import NDArray

from chats import dictate, log_softmax
from compare import case
from h2o_llama import H2OError, Llama, LlamaGrammar, Sampling
from inputs import on_a_small_stack, random_tokens, repetitive_tokens
from llamas import open_tiny
from models import EOS, N_VOCAB

PROMPT = random_tokens(20)


def text_of(llm: Llama, max_tokens: int | None = 64, **sampling: Any) -> str:
    return llm(PROMPT, max_tokens=max_tokens, **sampling)["choices"][0]["text"]


# --- grammars


def test_only_what_a_grammar_says_is_generated(llm: Llama) -> None:
    grammar = LlamaGrammar.from_string('root ::= "true" | "false"')
    wild: dict[str, Any] = {"temperature": 20.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
    assert {text_of(llm, grammar=grammar, seed=seed, **wild) for seed in range(20)} == {"true", "false"}
    assert text_of(llm, grammar='root ::= "ä"', temperature=0) == "ä"


def test_a_grammar_from_a_file(tmp_path: Path) -> None:
    (tmp_path / "x.gbnf").write_text('root ::= "x"')
    assert LlamaGrammar.from_file(tmp_path / "x.gbnf") == LlamaGrammar.from_string('root ::= "x"')


def test_a_draft_follows_the_grammar(llm: Llama) -> None:
    grammar = 'root ::= ("abcd" | "abce"){15}'
    plain = text_of(llm, 60, grammar=grammar, temperature=0)
    drafted = llm(PROMPT, max_tokens=60, grammar=grammar, temperature=0, draft=15)
    assert drafted["choices"][0]["text"] == plain
    assert drafted["usage"]["completion_tokens_details"]["accepted_prediction_tokens"] > 10


def test_a_grammar_is_as_long_as_it_likes(tiny_model: Path) -> None:
    """On a small stack: its parser and the look for left recursion do not call themselves for each rule."""
    chain = "".join(f"a{i} ::= a{i + 1}\n" for i in range(12_000))
    with open_tiny(tiny_model, n_ctx=512) as llm:
        found = on_a_small_stack(lambda: text_of(llm, grammar=f'root ::= a0\n{chain}a12000 ::= "x"'))
        assert found == "x"
        assert text_of(llm, grammar='root ::= "' + "(" * 300 + '"', max_tokens=None) == "(" * 300


# --- JSON schemas


def accepts(llm: Llama, schema: Any, text: str) -> bool:
    """Whether a schema's grammar lets a model say the text, byte by byte, and end there."""
    sampling = Sampling(temperature=0, grammar=LlamaGrammar.from_json_schema(schema))
    sampler = sampling.make_sampler(llm.model._handle)._core
    for token in [*text.encode(), EOS]:
        logits = np.full(N_VOCAB, -np.inf, dtype=np.float32)
        logits[token] = 0
        try:
            sampler.accept(sampler.sample(logits, True), True)
        except H2OError:
            return False
    return True


def texts_of(value: Any) -> Iterator[str]:
    """JSON of a value, with its properties in every order: a grammar has one of its own."""
    if isinstance(value, dict):
        members = [[f"{json.dumps(k, ensure_ascii=False)}:{text}" for text in texts_of(v)] for k, v in value.items()]
        for order in permutations(members):
            for chosen in product(*order):
                yield "{" + ",".join(chosen) + "}"
    elif isinstance(value, list):
        for chosen in product(*map(texts_of, value)):
            yield "[" + ",".join(chosen) + "]"
    else:
        yield json.dumps(value, ensure_ascii=False)


PATTERNS = ["^a+b?$", "b", "^(?:é|\\d{2})", '[^a\\s"\\\\]$', "^[\\d.-]*$", "^(a|b+)$", '^("|\\\\)$', "(a|(b))1?"]


def test_patterns_lengths_and_bounds(llm: Llama) -> None:
    """Texts of up to three characters; numbers around the bounds, with digits after the point and without."""
    texts = ["".join(parts) for n in range(4) for parts in product('ab1é\t"\\.-', repeat=n)]
    numbers = [n // 8 if n % 8 == 0 else n / 8 for n in (*range(-17, 18), -1040, -792, 792, 800, 1044, 8008)]
    schemas: list[tuple[dict[str, Any], list[Any]]] = [
        *(({"type": "string", "pattern": pattern}, texts[:91] + texts[91::7]) for pattern in PATTERNS),
        *(({"type": "string", "minLength": n, "maxLength": n + 1}, texts[::9]) for n in (0, 1)),
        *(
            ({"type": kind, low: a, high: b}, numbers)
            for kind in ("integer", "number")
            for low, high in (("minimum", "exclusiveMaximum"), ("exclusiveMinimum", "maximum"))
            for a, b in combinations((-100, -1.5, 0, 2, 99.25), 2)
        ),
    ]
    for schema, values in schemas:
        validator = jsonschema.Draft202012Validator(schema)
        for value in values:
            with case(schema=schema, value=value):
                assert accepts(llm, schema, json.dumps(value, ensure_ascii=False)) == validator.is_valid(value)


LESS = {"additionalProperties", "anyOf", "const", "enum", "exclusiveMaximum", "exclusiveMinimum", "format", "items"} | {
    *("maxItems", "maxLength", "maximum", "minItems", "minLength", "minimum", "pattern", "prefixItems", "properties"),
    *("ref", "required", "type", "unevaluatedProperties", "uniqueItems"),
}
"""Where docs/tools-and-json.md says that a grammar admits less: schemas without a type, numbers like 1.0, tuples."""


@pytest.mark.slow
def test_the_official_suite_is_accepted_rightly_or_refused_by_name(llm: Llama, tmp_path: Path) -> None:
    """JSON-Schema-Test-Suite lies in the source distribution of jsonschema."""
    command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--no-binary", "jsonschema"]
    subprocess.run([*command, "-d", str(tmp_path), "jsonschema==4.26.0"], check=True)
    found = []
    with tarfile.open(tmp_path / "jsonschema-4.26.0.tar.gz") as archive:
        for name in archive.getnames():
            if "/json/tests/draft2020-12/" in name and "/optional/" not in name and name.endswith(".json"):
                found.append((Path(name).stem, json.load(archive.extractfile(name) or pytest.fail(name))))
    n_accepted = 0
    for keyword, groups in found:
        for group in groups:
            schema = group["schema"] if isinstance(group["schema"], dict) else {"allOf": [group["schema"]]}
            reason = ""
            try:
                LlamaGrammar.from_json_schema(schema)
            except ValueError as error:
                reason = str(error)
            assert re.search(r'JSON schema error at #.*"', reason or 'JSON schema error at #: ""'), group["description"]
            for instance in [] if reason else group["tests"]:
                accepted = any(accepts(llm, schema, text) for text in islice(texts_of(instance["data"]), 30))
                n_accepted += accepted
                with case(keyword=keyword, group=group["description"], test=instance["description"]):
                    if accepted != instance["valid"]:
                        assert keyword in (("oneOf", "uniqueItems") if accepted else LESS)
    assert n_accepted > 250


def test_bad_schemas_are_refused() -> None:
    for schema, match in [
        ("{", "json_schema must be JSON"),
        ("[1]", "json_schema must be a JSON schema"),
        ({"$ref": "#/x"}, "cannot be resolved"),
        ({"enum": [{1}]}, "json_schema must be what JSON can say"),
        ({"properties": {"*": {}}, "additionalProperties": True}, "cannot have the name \\*"),
        ("[" * 100_000, "json_schema must be JSON"),
        ({"allOf": [{"$ref": "#/$defs/a"}], "$defs": {"a": {"$ref": "#/$defs/a"}}}, "leads only to itself"),
        (
            {"$ref": "#/$defs/0", "$defs": {f"{i}": {"$ref": f"#/$defs/{i + 1}"} for i in range(3000)}},
            "nested too deeply",
        ),
    ]:
        with case(schema=schema, match=match), pytest.raises(ValueError, match=match):
            LlamaGrammar.from_json_schema(schema)


def test_keywords_in_forms_that_the_official_suite_does_not_have(llm: Llama) -> None:
    numbers, string = {"type": "integer"}, {"type": "string"}
    kinds = [{"properties": {"kind": {"const": kind}, "n": numbers}, "required": ["kind"]} for kind in "ab"]
    colors = {"$defs": {"Color": {"enum": ["red"], "title": "Color"}}}
    names = {"type": "object", "additionalProperties": numbers} | colors
    mail = {**string, "title": "Mail", "format": "email", "examples": ["a@b.c"]}  # which says nothing about values
    friend = {"anyOf": [{"$ref": "#"}, {"type": "null"}], "default": None, "deprecated": True}
    color = {"allOf": [{"$ref": "#/$defs/Color"}], "description": "Not", "x-order": 1}
    cat: dict[str, Any] = {
        "properties": {"mail": mail, "friend": friend, "color": color},
        "required": ["color"],
    } | colors
    for schema, good, bad in [
        (names | {"propertyNames": {"enum": ["a", "b"]}}, '{"a":1,"b":2}', '{"c":1}'),
        (names | {"propertyNames": {"pattern": "^[a-z]+$"}}, '{"xy":1}', '{"xy":"x"}'),
        (names | {"propertyNames": {"$ref": "#/$defs/Color"}}, '{"red":1}', '{"green":1}'),
        (cat, '{"color":"red","mail":"a@b","friend":{"color":"red"}}', '{"color":"green"}'),
        ({"items": [numbers, string], "additionalItems": False}, '[1,"a"]', '[1,"a",1]'),
        ({"oneOf": kinds, "discriminator": {"propertyName": "kind"}}, '{"kind":"b","n":1}', '{"kind":"c"}'),
        ({"properties": {"a": {}}, "anyOf": [{"required": ["a"]}, {"required": ["b"]}]}, '{"b":1}', "{}"),
        ({**string, "format": "date"}, '"2024-02-28"', '"2024"'),
        ({"allOf": [*kinds[:1], {"properties": {"kind": string, "m": numbers}}]}, '{"kind":"a","m":1}', '{"kind":"b"}'),
        ({**string, "minLength": 2}, r'"\ud83d\ude00a"', r'"\ud83d\ude00"'),
        ({"properties": {"a": numbers}, "additionalProperties": string}, '{"b":"x"}', r'{"\u0061":"x"}'),
        ({"minimum": 1e-3, "maximum": 2.5e1}, "0.001", "25.1"),
        ({**string, "pattern": r"^[\w\-]+@\S+\.é+$"}, '"a-b@c.éé"', '"a b@c.é"'),
        ({**string, "pattern": "^a.[^b]$", "minLength": 0}, '"a-c"', r'"a\n\""'),
        ({**numbers, "enum": [1, "a", 2.5], "maxLength": 0}, "1", "2.5"),
        ({"enum": [1, 12, "é", "ê", *(f"x{i}" for i in range(3000))]}, '"x2999"', '"x3000"'),
        ({"properties": {f"p{i}": numbers for i in range(250)}}, '{"p3":1,"p249":1}', '{"p4":1,"p3":1}'),
        ({"$ref": "#/$defs/A%20b", "$defs": {"A b": numbers}, "description": "a number"}, "1", '"a"'),
    ]:
        with case(schema=schema):
            assert accepts(llm, schema, good)
            assert not accepts(llm, schema, bad)


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
