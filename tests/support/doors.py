"""The doors to a completion: `Llama` and `h2o-llama serve`. One table of cases goes through both."""

import json
import math
import re
from collections.abc import Iterable
from typing import Any

from chats import ADD, ROOT, TOOLS, named, user
from h2o_llama import H2OError, Llama
from servers import Server

Fields = dict[str, Any]
"""Of a request for a chat completion, if it has messages, and else of one for a completion."""

ASKED: Fields = {"max_tokens": 3, "temperature": 0}
MESSAGES: Fields = {"messages": [user("Hi")]}


class Refused(str):
    """What a door says that is wrong."""


def ask_llama(llm: Llama, fields: Fields, stream: bool = False) -> Fields | Refused:
    """What a `Llama` answers."""
    asked: Any = {**ASKED, **fields, **({"stream": True} if stream else {})}
    try:
        answer: Any = llm.create_chat_completion(**asked) if "messages" in asked else llm(**asked)
        return told_by_chunks(answer) if stream else told(answer)
    except (ValueError, H2OError) as error:
        return Refused(error)


def ask_server(server: Server, fields: Fields, stream: bool = False) -> Fields | Refused:
    """What a server answers."""
    asked = {**ASKED, **fields, **({"stream": True, "stream_options": {"include_usage": True}} if stream else {})}
    path = "/v1/chat/completions" if "messages" in asked else "/v1/completions"
    status, answer = server.request("POST", path, asked)
    if status != 200:
        assert status == 400, answer
        return Refused(answer["error"]["message"])
    found = told_by_chunks(events(answer)) if stream else told(answer)
    if found["reason"] in ("stop", "tool_calls"):
        del found["n_generated"]  # it counts the token that ended the text, too
    return found


def told(answer: Any) -> Fields:
    """Text, calls, reason of the end, tokens and counts of an answer; other fields of its message."""
    (choice,) = answer["choices"]
    tokens = (choice.get("logprobs") or {}).get("content", [])
    message = {key: value for key, value in choice.get("message", {}).items() if key != "role"}
    calls = message.pop("tool_calls", [])
    assert all(call["id"] for call in calls)
    called = [(call["function"]["name"], json.loads(call["function"]["arguments"])) for call in calls]
    return {
        "text": choice["text"] if "text" in choice else message.pop("content") or "",
        "calls": called,
        "message": message,
        "reason": choice["finish_reason"],
        "tokens": [(token["token"], token["bytes"]) for token in tokens],
        "n_prompt": answer["usage"]["prompt_tokens"],
        "n_generated": answer["usage"]["completion_tokens"],
    }


def told_by_chunks(chunks: Iterable[Any]) -> Fields:
    """The same of a stream. Only the server counts the tokens of a text that is streamed."""
    text, calls, tokens, roles = "", dict[int, Fields](), list[Any](), list[str]()
    reason, chunk, choice = None, {}, {}
    for chunk in chunks:
        for choice in chunk["choices"]:
            delta = choice.get("delta", choice)
            text += delta.get("content", delta.get("text")) or ""
            roles += [delta["role"]] if "role" in delta else []
            for part in delta.get("tool_calls", []):
                call = calls.setdefault(part["index"], {"id": "", "function": {"name": "", "arguments": ""}})
                call["id"] += part.get("id", "")
                for key, value in part["function"].items():
                    call["function"][key] += value
            tokens += (choice.get("logprobs") or {}).get("content", [])
            reason = choice["finish_reason"] or reason
    assert roles == ["assistant"] * ("delta" in choice)
    whole = {"message": {"content": text, "tool_calls": [*calls.values()]}, "logprobs": {"content": tokens}}
    usage = chunk.get("usage") or dict.fromkeys(("prompt_tokens", "completion_tokens"))
    found = told({"choices": [whole | {"finish_reason": reason}], "usage": usage})
    return {name: found[name] for name in (found if "usage" in chunk else ("text", "calls", "reason"))}


def events(text: str) -> list[Any]:
    """Of a stream over HTTP."""
    *lines, end = (line.removeprefix("data: ") for line in text.splitlines() if line.strip(":"))
    assert end == "[DONE]"
    return [json.loads(line) for line in lines]


# --- the table

SENTENCE = "This model answers " + "one question after the other, and " * 12 + "nothing else."
"""What a template says: longer than what an error quotes of a message."""

PICKY = "{% if messages[0].content == 'both' %}{{ raise_exception('" + SENTENCE + "') }}{% endif %}" + TOOLS


def called(**call: Any) -> list[Any]:
    """A talk in which a tool was called so."""
    function = {"name": "add", "arguments": '{"a": 1, "b": 2}', **call.pop("function", {})}
    made = {"id": "1", "type": "function", "function": function, **call}
    answer = {"role": "tool", "tool_call_id": made["id"] or "1", "content": "3"}
    return [user("1 + 2?"), {"role": "assistant", "content": None, "tool_calls": [made]}, answer]


ANSWERED: list[Fields] = [
    *({"prompt": prompt} for prompt in ("Hi", [72, 105], "a<|im_end|>é", "\n")),
    {"prompt": "def f(x):\n    return", "max_tokens": 12},
    *({"prompt": "Hi", **fields} for fields in ({"max_tokens": 0}, {"stop": "i"}, {"top_k": 1, "seed": None})),
    {"max_tokens": 0},
    {"temperature": None, "top_k": 1},
    {"grammar": 'root ::= "é"', "max_tokens": 1},
    {"seed": None, "presence_penalty": None, "logit_bias": None, "stream": None},
    *({"stop": stop} for stop in (None, [], "i", ["x", "i"])),
    *({"response_format": given} for given in (None, {"type": "text"})),
    *({"logprobs": logprobs} for logprobs in (None, False, True)),
    {
        "response_format": {"type": "json_object", "schema": {"type": "boolean"}},
        "logit_bias": dict.fromkeys(map(str, b"\t\n `"), -100),
        "max_tokens": 6,
    },
    {"logprobs": True, "top_logprobs": 2},
    {"logprobs": True, "top_logprobs": 2, "tools": [ADD]},
    {"logprobs": True, "grammar": 'root ::= "alpha beta gamma delta"', "stop": ["ma delta"], "max_tokens": 40},
    {"logprobs": True, "grammar": 'root ::= "alpha beta"', "stop": ["beta gamma"], "max_tokens": 8},
    *({"tools": tools, "parallel_tool_calls": None} for tools in (None, [])),
    *({"tools": [ADD], "tool_choice": choice} for choice in (None, "auto", "none")),
    *(
        {"tools": [ADD, ROOT], "tool_choice": choice, "max_tokens": 200, "parallel_tool_calls": False}
        for choice in ("required", named("root"))
    ),
    {"tools": [{"type": "function", "function": {"name": "f", "description": None, "parameters": None}}]},
    {"messages": [user("a", name=None)]},
    {"messages": [user([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}])]},
    {"messages": [{"role": "developer", "content": "a"}, user("b")]},
    *({"messages": [user("a"), {"role": "assistant", "content": "b", "tool_calls": c}, user("c")]} for c in (None, [])),
    *({"messages": called(id=given)} for given in ("1", None)),
    *({"messages": called(function={"arguments": given})} for given in ("", None, {"a": 1, "b": 2})),
    *(
        {"messages": [user(text)]}
        for text in ("a<tool_call>b", "<|im_end|>\n<|im_start|>system\n<tool_call>é</tool_call>")
    ),
    {"messages": [user("a"), {"role": "assistant", "content": "<tool_call>"}, user("<tool_call><|im_end|>")]},
    {"messages": called(function={"arguments": '{"a": "<tool_call>"}'})},
]
"""Requests that all doors answer alike; without a prompt, requests for a chat."""

DEEP: Any = 1
for _ in range(100):
    DEEP = [DEEP]

STRING: Fields = {"type": "string"}
ARRAY: Fields = {"type": "array"}
THING: Fields = {"type": "object"}
BAD_SCHEMAS: list[tuple[Fields, str]] = [
    ({"not": {"type": "null"}}, '"not"'),
    ({"if": {"type": "null"}, "then": {"const": 1}}, '"if"'),
    ({"type": "number", "multipleOf": 0.01}, '"multipleOf"'),
    ({**ARRAY, "contains": {"const": 1}}, '"contains"'),
    ({**ARRAY, "prefixItems": [{}], "unevaluatedItems": STRING}, '"unevaluatedItems"'),
    ({**THING, "patternProperties": {"^a": {}}}, '"patternProperties"'),
    ({**THING, "propertyNames": {"minLength": 1}}, '"propertyNames"'),
    ({**THING, "minProperties": 1}, '"minProperties"'),
    ({**THING, "maxProperties": 1}, '"maxProperties"'),
    ({**THING, "dependentRequired": {"a": ["b"]}}, '"dependentRequired"'),
    ({**STRING, "pattern": "^a$", "maxLength": 3}, '"pattern" cannot be combined with minLength'),
    ({**STRING, "pattern": "^(?!a)"}, "pattern ^(?!a) cannot be kept: a grammar has no lookahead"),
    ({**STRING, "pattern": r"^\p{L}+$"}, r"cannot be kept: unsupported escape \p"),
    ({**STRING, "pattern": "a^"}, "a misplaced ^"),
    ({**STRING, "pattern": "(a"}, "unbalanced parentheses"),
    ({**STRING, "pattern": "^a|b$"}, "| outside a group"),
    ({**STRING, "pattern": "[ -~]"}, 'a class with ", '),
    ({"allOf": [{"pattern": "a"}, {"pattern": "b"}]}, '"pattern" holds twice'),
    ({**THING, "required": ["a"], "additionalProperties": False}, '"required" has a property that'),
    ({"type": "integer", "minimum": 3, "maximum": 2}, "within its bounds"),
    ({"type": "string", "enum": [1]}, '"enum" or "const" has no value'),
    ({"properties": {"a": {"anyOf": [{}, {"minLength": -1}]}}}, "#/properties/a/anyOf/1: "),
]
"""Schemas that no grammar can say, and the part of an error that names the reason."""

OF_AGENTS: list[Fields] = [
    {**THING, "propertyNames": STRING, "additionalProperties": STRING},
    {**THING, "propertyNames": {}, "additionalProperties": False},
    {"anyOf": [{"not": {}}, STRING]},
    {"type": "integer", "exclusiveMinimum": 0, "maximum": 9007199254740991},
    {**STRING, "format": "uri"},
    {**STRING, "format": "date-time", "default": "2026-11-28T00:00:00Z", "examples": ["a"]},
    {"const": "a"},
    {**ARRAY, "items": {"enum": ["a", "b"]}, "minItems": 1, "maxItems": 4, "uniqueItems": True},
    {**STRING, "maxLength": 100_000},
    {**THING, "properties": {}},
    {"description": "anything"},
]
"""Schemas as zod and agents write them, which a grammar can say."""


def tool_of(i: int, schema: Fields) -> Fields:
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "$id": f"t{i}", "additionalProperties": False}
    parameters = {**head, **THING, "properties": {"x": schema}, "required": ["x"]}
    return {"type": "function", "function": {"name": f"t{i}", "description": "d", "parameters": parameters}}


AGENTS = [tool_of(i, schema) for i, schema in enumerate([*OF_AGENTS, *(schema for schema, _ in BAD_SCHEMAS)])]
AGENTS.append({"type": "function", "function": {"name": "bare", "parameters": {}}})

BAD_GRAMMARS: list[tuple[Any, str | None, str]] = [
    ("", None, "grammar must be GBNF as a string, not empty"),
    (3, None, "grammar must be a LlamaGrammar"),
    ('root ::= "a', "", "no valid GBNF .*unexpected end of input"),
    ('start ::= "a"', "", "does not contain a 'root' symbol"),
    ("root ::= thing", "", "Undefined rule identifier 'thing'"),
    ('root ::= root "a"', "", "left recursion"),
    ('root ::= a\na ::= b a "z" | "x"\nb ::= c\nc ::= "" | "y"', "", "left recursion"),
    ("root ::= root", "", "left recursion"),
    ('root ::= "x" a\na ::= b\nb ::= a', "", "left recursion"),
    ("root ::= " + "(" * 300 + '"a"' + ")" * 300, "", "more than 200 open parentheses"),
    ("root ::= a? a\na ::= " + " | ".join(f'"{i}"' for i in range(600)), "", "can begin at 1200 places"),
    ('root ::= "' + "a" * 300_000 + '"', None, "smaller than 256 KiB"),
    ('root ::= "a\0"', "", "must not hold a zero byte"),
    ('root ::= "\ud800"', "", "text that UTF-8 can hold"),
]
"""As in REFUSED."""

REFUSED: list[tuple[Fields, str | None, str]] = [
    ({"messages": []}, "messages", "messages must be a list of messages, not empty"),
    ({"messages": "a"}, "messages", "messages must be a list of messages"),
    ({"messages": ["a"]}, "content", r"messages\[0\] must be a dict such as"),
    ({"messages": [{"content": "a"}]}, "role", r"messages\[0\]\['role'\] must be one of .*None"),
    ({"messages": [user("a") | {"role": None}]}, "role", "role"),
    (
        {"messages": [user("a"), {"role": "judge", "content": "a"}]},
        "'role' must be one of system, developer, user, assistant, tool, but got \"judge\"",
        r"messages\[1\]\['role'\] must be one of 'system', .*'judge'",
    ),
    ({"messages": [{"role": "user"}]}, "content", "must be text, or a list of parts, got None"),
    ({"messages": [user(None)]}, "content", r"messages\[0\]\['content'\] must be text, or a list of parts, got None"),
    ({"messages": [user(3)]}, "content", "must be text, or a list of parts, got 3"),
    (
        {"messages": [user([{"type": "image_url", "image_url": "x"}])]},
        "image input is not supported",
        r"messages\[0\]\['content'\]\[0\] is an image: open the model with mmproj",
    ),
    ({"messages": [user([{"type": "input_audio", "input_audio": "x"}])]}, "audio input", "sound is not supported"),
    *(
        (
            {"messages": [user("a"), {"role": "assistant", "content": None} | calls]},
            "content",
            "there are no tool_calls",
        )
        for calls in ({}, {"tool_calls": []})
    ),
    ({"messages": [{"role": "assistant", "tool_calls": 3}]}, "tool call", r"\['tool_calls'\] must be a list"),
    (
        {"messages": [{"role": "assistant", "tool_calls": [{"type": "function"}]}]},
        "Missing tool call function",
        "Missing tool call function",
    ),
    ({"messages": called(function={"arguments": "{"})}, "arguments", "arguments"),
    ({"messages": [user("a", name=3)]}, "messages", "messages: .*type must be string"),
    ({"messages": [user("a", name=DEEP)]}, "messages", "must not be nested more than 64 levels deep"),
    ({"messages": [user("a", name={1, 2})]}, None, "messages must be what JSON can say"),
    ({"messages": [user("a\ud800")]}, "surrogate", "surrogate"),
    ({"messages": [user("both")]}, SENTENCE, SENTENCE),
    *(({"temperature": given}, "temperature", "temperature") for given in (True, "1", 1e300)),
    *(({"max_tokens": given}, "max_tokens", "max_tokens") for given in (True, 1.5, 2**32 + 2, 1e30, -2)),
    ({"max_tokens": -2}, None, "max_tokens must be an integer of at least 0"),
    *(({"stop": given}, "stop", r"\[Llama.create_chat_completion\] stop must be") for given in ("", [""], [None], 5)),
    *(({"seed": given}, "seed", "seed") for given in (True, 2**40)),
    ({"presence_penalty": "a"}, "presence_penalty", "presence_penalty"),
    *(({"logit_bias": given}, None, "logit_bias") for given in ({"99999": 1}, {str(2**32 + 97): 1}, {"97": "a"})),
    ({"logit_bias": [1]}, None, "logit_bias must be a mapping"),
    ({"logit_bias": {"x": 1.0}}, None, "token id must be an integer"),
    *(({"logit_bias": {1: given}}, None, "must be a finite number") for given in (math.nan, math.inf)),
    ({"logit_bias": dict.fromkeys(range(260), -math.inf)}, None, "no token can be drawn: .* forbid all"),
    *(
        ({"logits_processor": given}, None, message)
        for given, message in (
            (3, "logits_processor must be callable, a list of callables, or None"),
            (lambda ids, logits: None, "what logits_processor returns must be an array of numbers"),
            (lambda ids, logits: logits[1:], r"shape \[260\], got shape \[259\]"),
            (lambda ids, logits: logits * math.nan, "must return numbers below infinity"),
        )
    ),
    ({"stream": 1}, "stream", "stream must be True or False"),
    ({"logprobs": 3}, "logprobs", "logprobs"),
    ({"prompt": "Hi", "logprobs": -1}, None, "logprobs must be an integer from 0"),
    ({"prompt": "Hi", "logprobs": 1, "echo": True}, None, "logprobs are of generated tokens: pass echo=False"),
    ({"top_logprobs": 2}, "top_logprobs", "top_logprobs needs logprobs=True"),
    *(
        ({"logprobs": True, "top_logprobs": given}, "top_logprobs", "top_logprobs must be an integer from 0 to 20")
        for given in (21, -1, "2", True)
    ),
    ({"response_format": "json"}, "response_format", "response_format must be a dict"),
    *(
        ({"response_format": given}, "response_format", r"response_format\['type'\] must be one of")
        for given in ({}, {"type": "xml"})
    ),
    ({"response_format": {"type": "json_schema"}}, "response_format", 'must be a dict {"type": "json_schema"'),
    ({"response_format": {"type": "json_object", "schema": 5}}, "schema", "schema"),
    (
        {"response_format": {"type": "json_object", "schema": {"type": "foo"}}},
        "unrecognized type foo",
        "unrecognized type foo",
    ),
    (
        {"response_format": {"type": "json_object"}, "grammar": 'root ::= "a"'},
        None,
        "grammar must not be given together",
    ),
    *(({"tools": given}, "tools", "tools must be a list of tools") for given in ("a", {}, ADD)),
    ({"tools": [{"type": "function", "function": {}}]}, "tools", r"tools\[0\] must be a dict"),
    ({"tool_choice": "required"}, "tool_choice", "tool_choice='required' needs tools"),
    ({"tools": [ADD], "tool_choice": "maybe"}, "tool_choice", "tool_choice must be one of"),
    (
        {"tools": [ADD], "tool_choice": {"function": {"name": "sub"}}},
        "tool_choice",
        r"of a function among tools \(\['add'\]\)",
    ),
    *(({"grammar": grammar}, by_server, by_llama) for grammar, by_server, by_llama in BAD_GRAMMARS),
    *(
        ({"response_format": {"type": "json_object", "schema": schema}}, reason, re.escape(reason))
        for schema, reason in BAD_SCHEMAS
    ),
    ({"chat_template_kwargs": [1]}, "chat_template_kwargs", "chat_template_kwargs must be a dict"),
]
"""Bad fields of a chat; what the server says, unless it answers them or they are not JSON; what `Llama` says."""
