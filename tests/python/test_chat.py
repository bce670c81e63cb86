"""Chats in OpenAI's shapes: templates, answers, tools, schemas, the cost of a second turn."""

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

import models
from chats import (
    ADD,
    CHATML,
    IM_END,
    INSTRUCT,
    NAMES,
    ROOT,
    TAGGED,
    TOOL_CALL,
    TOOLS,
    call_text,
    dictate,
    named,
    open_chat,
    rendered,
    tool,
    upstream_template,
    user,
    write_chat_model,
    write_model_of_calls,
)
from compare import case
from doors import told, told_by_chunks
from h2o_llama import H2OConfig, H2OError, Llama, LlamaGrammar, Model, _core
from h2o_llama._prompt import as_generated
from h2o_llama.models._messages import response_schema
from h2o_llama.models._template import ChatTemplate
from inputs import EXTERNAL_MODEL, Opened


@pytest.fixture
def llm(opened: Opened, tiny_model: Path) -> Llama:
    """With CHATML, the sequence empty."""
    return opened("llm", open_chat, tiny_model)


# --- templates


def called(arguments: Any) -> dict[str, Any]:
    return {"id": "1", "type": "function", "function": {"name": "add", "arguments": arguments}}


ANSWER: dict[str, Any] = {"role": "assistant", "content": NAMES}
TALKS: list[tuple[str, list[Any], list[Any]]] = [
    *((template, [user("<|im_end|>"), ANSWER, user("Sure?\n")], []) for template in (CHATML, INSTRUCT, TOOLS)),
    (
        CHATML,
        [{"role": "system", "content": NAMES}, user([{"type": "text", "text": each} for each in ("é", NAMES)])],
        [],
    ),
    ("{{ messages[0].content }}!", [user("<|im_end|>?")], []),
    (
        TOOLS,
        [
            user("3 + 5?"),
            {"role": "assistant", "content": None, "tool_calls": [called(json.dumps({"a": NAMES, "b": 5}))]},
            {"role": "tool", "tool_call_id": "1", "content": [{"type": "text", "text": NAMES}]},
        ],
        [ADD],
    ),
]
"""A template, messages, tools."""


def as_jinja_sees(message: dict[str, Any]) -> dict[str, Any]:
    """With one text, and arguments of calls read from their JSON."""
    content = message["content"] or ""
    seen = {**message, "content": content if isinstance(content, str) else "\n".join(part["text"] for part in content)}
    if "tool_calls" in message:
        seen["tool_calls"] = [called(json.loads(call["function"]["arguments"])) for call in message["tool_calls"]]
    return seen


@pytest.mark.parametrize(("template", "talk", "tools"), TALKS, ids=range(len(TALKS)))
def test_a_prompt_is_what_jinja_says(tiny_model: Path, template: str, talk: list[Any], tools: list[Any]) -> None:
    """Names of special tokens are tokens where the template writes them, and text in messages."""
    names = {"bos_token": "<|endoftext|>", "eos_token": "<|endoftext|>", "tools": tools}
    seen = [as_jinja_sees(message) for message in talk]
    with open_chat(tiny_model, template) as llm:
        for has_prompt in (True, False):
            text = rendered(template, seen, add_generation_prompt=has_prompt, **names)
            assert llm.apply_chat_template(talk, tools=tools, add_generation_prompt=has_prompt) == text
        # "<" in messages replaced by a character that is in no name, until the text is in bytes
        hidden = json.loads(json.dumps(seen, ensure_ascii=False).replace("<", "\ue000"))
        text = rendered(template, hidden, add_generation_prompt=True, **names)
        ids = "".join(map(chr, llm.tokenize(text, parse_special=True))).replace("\xee\x80\x80", "<")
        assert list(llm.model.chat_tokens(talk, tools=tools)) == list(map(ord, ids))


def test_the_models_own_template(tmp_path: Path) -> None:
    with open_chat(write_chat_model(tmp_path / "chat.gguf", "OWN {{ messages[0].content }}"), None) as llm:
        assert llm.chat_template == "OWN {{ messages[0].content }}"
        assert llm.apply_chat_template([user("x")]) == "OWN x"
        with open_chat(llm, CHATML) as other:  # type: ignore[arg-type]
            assert other.apply_chat_template([user("x")]).startswith("<|im_start|>")


def test_bad_templates_are_refused(tiny_model: Path) -> None:
    for template, match in [
        (None, "this model has no chat template: .* chat_template= to Llama"),
        ("{{ x", "chat_template cannot be used: .*Expected }}"),
        ("{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}", "it is too long for a chat template"),
        ("{% if 1 %}" * 5000 + "{% endif %}" * 5000, "it is too long for a chat template"),
        ("{% macro f(x) %}{{ f(x) }}{% endmacro %}{{ f(1) }}", "nested too deeply"),
        ("{{ raise_exception('not today') }}", "refuses these messages: .*not today"),
    ]:
        wanted = pytest.raises(ValueError, match="(?s)" + match)
        with case(template=template), open_chat(tiny_model, template) as llm, wanted:
            llm.create_chat_completion([user("x"), user("y")])


def test_roles_that_a_template_refuses_are_those_that_it_knows(tiny_model: Path) -> None:
    """As Gemma's, which knows no results of tools, and no two messages of one role in a row."""
    call, result = {"role": "assistant", "content": "I add.", "tool_calls": [called('{"a": 1}')]}, "2"
    text = 'I add.\n\n{"name":"add","arguments":{"a":1}}'
    plain = [user("x\n\ny"), {"role": "assistant", "content": text}, user(result)]
    with open_chat(tiny_model, INSTRUCT) as llm:
        talk = [user("x"), user("y"), call, {"role": "tool", "tool_call_id": "1", "content": result}]
        assert llm.apply_chat_template(talk) == llm.apply_chat_template(plain)
        answer = llm.create_chat_completion(talk, tools=[ADD], max_tokens=1)
    assert ["no place for tools" in sentence for sentence in answer["warnings"]] == [True]


def test_an_answer_continues_the_last_message(tiny_model: Path) -> None:
    """And says only what is new."""
    begun = {"role": "assistant", "content": "The number is"}
    with open_chat(tiny_model, CHATML) as llm:
        asked = [user("x"), begun]
        answer = llm.create_chat_completion(asked, max_tokens=3, logits_processor=dictate(" 4.", None))
        prompt = llm.apply_chat_template(asked, add_generation_prompt=False).removesuffix("<|im_end|>\n")
        assert answer["usage"]["prompt_tokens"] == len(llm.tokenize(prompt, parse_special=True))
        chunks = llm.create_chat_completion(asked, max_tokens=3, logits_processor=dictate(" 4.", None), stream=True)
        told = "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks)
    assert (answer["choices"][0]["message"]["content"], told) == (" 4.", " 4.")


# --- tools


ADDED = call_text("add", a=3, b=5)
CALLS = [("add", {"a": 3, "b": 5})]
Said = tuple[str, list[tuple[str, Any]], str]
"""Text, calls, and the reason of the end."""


SIMILAR = {name: f"p{i}" for i, name in enumerate(["get.user", "get_user", "天気", "時間", "call"])}
TOOLS_OF_SIMILAR_NAMES = [tool(name, **{parameter: "integer"}) for name, parameter in SIMILAR.items()]
F = {"a.b": 1, "a_b": True, "長": 2, "幅": None}
KINDS = [tool("f", **{"a.b": "integer", "a_b": "boolean", "長": "integer", "幅": "null"})]
TAGS = "".join(f"<parameter={name}>\n{json.dumps(value)}\n</parameter>\n" for name, value in F.items())
F_TAGGED = f"<tool_call>\n<function=f>\n{TAGS}</function>\n</tool_call>"
BOTH = [ADD, ROOT]

TOLD: list[tuple[str, list[Any], Any, str, Said | None]] = [
    *((TOOLS, BOTH, choice, ADDED, ("", CALLS, "tool_calls")) for choice in (None, "auto", "required", named("add"))),
    (TOOLS, BOTH, "required", f"{ADDED}\n{ADDED}", ("", CALLS * 2, "tool_calls")),
    *((TOOLS, BOTH, choice, "Eight.", ("Eight.", [], "stop")) for choice in ("auto", "none")),
    (TOOLS, BOTH, "required", "Hello", None),
    (TOOLS, BOTH, "required", "Let me see. " + call_text("root", x=3), None),
    (TOOLS, BOTH, "required", call_text("root", x=3)[:-30] + '"y"', None),
    (TOOLS, BOTH, "auto", "<tool_call>\n{5", None),
    (TOOLS, BOTH, named("add"), call_text("root", x=3), None),
    *(
        (TOOLS, TOOLS_OF_SIMILAR_NAMES, "required", call_text(name, **{p: 3}), ("", [(name, {p: 3})], "tool_calls"))
        for name, p in SIMILAR.items()
    ),
    (TAGGED, KINDS, "required", F_TAGGED, ("", [("f", F)], "tool_calls")),
    (TAGGED, KINDS, "required", "I see. " + F_TAGGED, None),
]
"""A template, tools, a tool_choice, what the model would say, and the answer; None: the grammar forbids it."""


def test_tools_are_called_or_not(opened: Opened, tiny_model: Path) -> None:
    """At once, and as a stream."""
    for (template, tools, choice, text, expected), stream in itertools.product(TOLD, (False, True)):
        llm = opened(template, open_chat, tiny_model, template)
        asked: Any = {"messages": [user("3 + 5?")], "tools": tools, "tool_choice": choice, "stream": stream}
        with case(choice=choice, text=text, stream=stream):
            if expected is None:
                with pytest.raises(H2OError, match="no token fits the grammar"):
                    list(llm.create_chat_completion(**asked, logits_processor=dictate(text)))
                continue
            answer = llm.create_chat_completion(**asked, logits_processor=dictate(text))
            found = told_by_chunks(answer) if stream else told(answer)
            assert (found["text"], found["calls"], found["reason"]) == expected


@pytest.mark.parametrize(
    ("text", "rest"),
    [
        ('Let me see. <tool_call>\n{"name": nonsense}', 'Let me see. <tool_call>\n{"name": nonsense}'),
        ("<tool_call>\n{bad", "<tool_call>\n{bad"),
        (call_text("add", a=3, b=5) + "\n<tool_call>\n{bad", "}\n</tool_call>\n<tool_call>\n{bad"),
    ],
    ids=["after text", "at once", "after a call"],
)
def test_what_is_not_understood_is_an_answer_all_the_same(
    opened: Opened, tiny_model: Path, monkeypatch: pytest.MonkeyPatch, text: str, rest: str
) -> None:
    """A stream says nothing twice, and leaves nothing out."""
    with_tools = opened(TOOLS, open_chat, tiny_model, TOOLS)
    monkeypatch.setattr(_core.ChatPrompt, "grammar", lambda prompt: None)
    arguments: Any = {"messages": [user("x")], "tools": [ADD], "max_tokens": 200}
    (whole,) = with_tools.create_chat_completion(**arguments, logits_processor=dictate(text))["choices"]
    assert whole["message"] == {"role": "assistant", "content": text}
    chunks = list(with_tools.create_chat_completion(**arguments, stream=True, logits_processor=dictate(text)))
    assert "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks) == rest
    assert chunks[-1]["choices"][0]["finish_reason"] == whole["finish_reason"] == "stop"


def test_a_call_cannot_be_required_where_its_form_is_not_known(tiny_model: Path) -> None:
    template = "{% if tools %}{{ tools | tojson }}\n{% endif %}" + CHATML
    with open_chat(tiny_model, template) as llm:
        with pytest.raises(ValueError, match="this model's chat template has no form for calls"):
            llm.create_chat_completion([user("x")], tools=[ADD], tool_choice="required")
        answer = llm.create_chat_completion([user("x")], tools=[ADD], logits_processor=dictate("Eight."))
        assert answer["choices"][0]["message"]["content"] == "Eight."


# --- JSON


def test_an_answer_follows_a_schema(llm: Llama) -> None:
    """Also one that is a pydantic model."""
    pydantic = pytest.importorskip("pydantic")
    thing = pydantic.create_model("Thing", size=(Literal["small", "large"], ...), new=(bool, ...))
    texts = set()
    for schema in (thing, thing.model_json_schema()):
        texts.add(LlamaGrammar.from_json_schema(schema).text)
        for form in [
            *([thing] if schema is thing else []),
            {"type": "json_object", "schema": schema},
            {"type": "json_schema", "json_schema": {"name": "thing", "schema": schema}},
        ]:
            texts.add(LlamaGrammar.from_json_schema(response_schema("", form)).text)
            answer = llm.create_chat_completion([user("x")], response_format=form, seed=1)
            thing.model_validate_json(answer["choices"][0]["message"]["content"])
    assert len(texts) == 1


# --- a second turn


@pytest.mark.parametrize("reuse", [True, False])
def test_a_second_turn_costs_what_is_new(tiny_model: Path, reuse: bool) -> None:
    with open_chat(tiny_model, h2o=None, type_k="f32", type_v="f32") as llm:
        talk: list[Any] = [{"role": "system", "content": "Be brief."}, user("Hi")]
        first = llm.create_chat_completion(talk, logits_processor=dictate("Hällo\n\n you. "))
        message = {"role": "assistant", "content": "Hällo\n\n you. "}
        assert first["choices"] == [{"index": 0, "message": message, "logprobs": None, "finish_reason": "stop"}]
        assert first["object"] == "chat.completion"
        n_held = llm.n_tokens
        assert n_held == first["usage"]["total_tokens"]
        talk += [first["choices"][0]["message"], user("And now?")]
        second = llm.create_chat_completion(talk, temperature=0, max_tokens=12, reuse=reuse)
        fresh = llm(llm.apply_chat_template(talk), temperature=0, max_tokens=12, reuse=False)
        known = llm(llm.apply_chat_template(talk), temperature=0, max_tokens=12)
        assert known["choices"] == fresh["choices"]
        assert known["usage"]["prompt_tokens_details"]["cached_tokens"] == fresh["usage"]["prompt_tokens"] - 1
    assert second["choices"][0]["message"]["content"] == fresh["choices"][0]["text"]
    cached = second["usage"].get("prompt_tokens_details", {}).get("cached_tokens")
    assert cached == (n_held if reuse else None)


def test_a_chat_with_eviction_is_never_full_or_read_again(tiny_model: Path) -> None:
    """Each turn costs itself, over the ends of chunks in answers, far beyond the trained length."""
    options: dict[str, Any] = {"n_ctx": 0, "kv_overrides": {"qwen3.context_length": 128}}
    with open_chat(
        tiny_model, h2o=H2OConfig(evict=True, chunk_size=64, research={"positions": "cache"}), **options
    ) as llm:
        talk: list[Any] = [{"role": "system", "content": "Be brief."}]
        for turn in range(5):
            n_held = llm.n_tokens
            talk.append(user(f"Question {turn}?"))
            answer = llm.create_chat_completion(talk, logits_processor=dictate("Never gonna give it up. " * 4))
            assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == n_held
            talk.append(answer["choices"][0]["message"])
        assert llm.n_tokens > 4 * 128


def test_an_answer_in_other_tokens_than_the_tokenizers_is_not_read_again() -> None:
    """Of pieces "a", "b", "ab" and a special token, whose text is empty."""

    class Pieces:
        def detokenize(self, ids: list[int], special: bool) -> bytes:
            return [b"a", b"b", b"ab", b""][ids[0]]

    def same_text(now: list[int], ids: list[int]) -> list[int]:
        return as_generated(Pieces(), np.array(now, np.int32), np.array(ids, np.int32)).tolist()  # type: ignore[arg-type]

    assert same_text([0, 0, 1, 1, 0, 1], [0, 2, 1, 2, 3, 0]) == [0, 0, 1, 1, 0, 1, 3, 0]
    assert same_text([0, 2, 0], [0, 0, 1, 2]) == [0, 2, 2]  # it ends within a piece of the prompt
    assert same_text([0, 2, 0], [0, 0, 1, 1, 0]) == [0, 2, 1, 0]  # they part
    assert same_text([0, 3, 2], [0, 1, 0, 1]) == [0, 1, 0, 1]  # and a special token is not text
    assert same_text([2, 3, 1], [0, 1, 3, 0]) == [2, 3, 0]
    assert same_text([], [0]) == same_text([0], [0]) == [0]


@pytest.mark.parametrize("text", ["Hm\0\0Four.", "Hm, hm. " * 9 + "\0Four.", "Hm\0\n\0Four."])
def test_a_model_that_ends_among_its_thoughts_answers(tiny_model: Path, text: str) -> None:
    """Their end is written for it, once; then the text does not end before a word is said."""
    said = iter(text.encode())

    def wants(ids: Any, logits: Any) -> Any:
        """Best this, else the letter x."""
        best = np.where(np.arange(len(logits)) == ord("x"), 1.0, 0.0)
        best[next(said, 0) or IM_END] = 9.0
        return best.astype(np.float32)

    with open_chat(tiny_model, upstream_template("DeepSeek-R1")) as llm:
        asked: Any = {"think": 9, "max_tokens": 20, "temperature": 0, "logits_processor": wants}
        message = llm.create_chat_completion([user("2 + 2?")], **asked)["choices"][0]["message"]
    assert message["content"].strip()
    assert message["reasoning_content"].strip().startswith("Hm")


# --- special tokens in messages


def test_markup_that_the_vocabulary_counts_as_text_is_text_in_a_document(tiny_model: Path, tmp_path: Path) -> None:
    """Its names are tokens where the template writes them, or the model has."""
    said = "a<tool_call>é</tool_call>"
    with Model(write_model_of_calls(tiny_model, tmp_path / "model.gguf"), chat_template=TOOLS) as model:
        assert model.tokenize(said) == [ord("a"), TOOL_CALL, *"é</tool_call>".encode()]
        ids = model.chat_tokens([{"role": "system", "content": said}, user(said)])
        assert TOOL_CALL not in ids
        assert model.detokenize(ids).decode().count(said) == 2
        answer = {"role": "assistant", "content": said, "tool_calls": [called(json.dumps({"a": said}))]}
        assert list(model.chat_tokens([user("x"), answer])).count(TOOL_CALL) == 2
        # Where no template writes it, it is a token like others.
        assert ChatTemplate(model._handle, CHATML).apply("chat", [user(said)]).tokens("", False).count(TOOL_CALL) == 1


def test_special_names_where_the_model_wants_a_token_around_every_text(tmp_path: Path) -> None:
    writer = models.open_writer(models.ONE_LAYER, tmp_path / "model.gguf")
    writer.add_eos_token_id(models.EOS)
    writer.add_chat_template("{{ messages[0].content }}!")
    models.add_weights(models.ONE_LAYER, writer)
    models.finish(writer)
    with Model(tmp_path / "model.gguf") as model:
        assert bytes(model.chat_tokens([user("<|im_end|>?")])) == b"<|im_end|>?!"


# --- log-probabilities


def test_logprobs_of_a_chat(llm: Llama) -> None:
    """Equal to the log-probabilities of a completion."""
    options: dict[str, Any] = {"temperature": 0, "max_tokens": 6, "reuse": False}
    asked: dict[str, Any] = {"messages": [user("Hi")], "logprobs": True, "top_logprobs": 3, **options}
    entries = llm.create_chat_completion(**asked)["choices"][0]["logprobs"]["content"]
    expected = llm(llm.model.chat_tokens([user("Hi")]), logprobs=3, **options)
    completed: Any = expected["choices"][0]["logprobs"]
    for i, entry in enumerate(entries):
        assert (entry["token"], entry["logprob"]) == (completed["tokens"][i], completed["token_logprobs"][i])
        assert {top["token"]: top["logprob"] for top in entry["top_logprobs"]} == completed["top_logprobs"][i]
        assert bytes(entry["bytes"]).decode(errors="replace") == entry["token"]
    chunks = [chunk["choices"][0]["logprobs"] for chunk in llm.create_chat_completion(**asked, stream=True)]
    assert [entry for logprobs in chunks if logprobs is not None for entry in logprobs["content"]] == entries


# --- a real model


@pytest.fixture(scope="module")
def external() -> Iterator[Llama]:
    if EXTERNAL_MODEL is None:
        pytest.skip("LLAMACPP_TEST_MODELFILE is not set")
    with Llama(EXTERNAL_MODEL, n_ctx=2048, n_ubatch=256) as llm:
        if llm.chat_template is None:
            pytest.skip("it has no chat template")
        yield llm


def test_an_external_model_talks(external: Llama) -> None:
    talk: list[Any] = [user("What is the capital of France? Answer in one sentence.")]
    first = external.create_chat_completion(talk, max_tokens=40, temperature=0)
    assert "Paris" in first["choices"][0]["message"]["content"]
    assert first["choices"][0]["finish_reason"] == "stop"
    talk += [first["choices"][0]["message"], user("And of Italy?")]
    second = external.create_chat_completion(talk, max_tokens=40, temperature=0)
    assert "Rome" in second["choices"][0]["message"]["content"]
    n_new = second["usage"]["prompt_tokens"] - second["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert n_new < 30
