"""Requests to llama-server that are wrong in some way: some by hand, and some by chance."""

import copy
import json
import random
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any
from urllib.parse import quote

from doors import BAD_GRAMMARS, BAD_SCHEMAS

CHAT = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "What?"}]
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {"a": {}}}}}
COMPLETE = {"prompt": "a long text of some chunks, " * 3, "n_predict": 4, "temperature": 0}
TALK = {"messages": CHAT, "max_tokens": 4}
POSTS: dict[str, Any] = {
    "/completion": COMPLETE,
    "/v1/completions": {"prompt": "abc", "max_tokens": 4, "logprobs": 2},
    "/v1/chat/completions": {**TALK, "tools": [TOOL], "response_format": {"type": "json_object"}},
    "/chat/completions": TALK,
    "/v1/chat/completions/control": {"id": "x", "action": "stop"},
    "/v1/messages": {**TALK, "messages": CHAT[1:], "system": "be"},
    "/v1/messages/count_tokens": {"messages": CHAT[1:]},
    "/v1/responses": {"input": "hello", "max_output_tokens": 4, "instructions": "be"},
    "/embeddings": {"content": "abc"},
    "/v1/embeddings": {"input": ["abc", "d"], "encoding_format": "float"},
    "/tokenize": {"content": "abc", "add_special": True, "with_pieces": True},
    "/detokenize": {"tokens": [97, 98]},
    "/apply-template": {"messages": CHAT},
    "/infill": {"input_prefix": "a", "input_suffix": "b", "input_extra": [{"text": "c", "filename": "d"}]},
    "/rerank": {"query": "a", "documents": ["b", "c"], "top_n": 1},
    "/lora-adapters": [{"id": 0, "scale": 0.5}],
    "/props": {},
    "/slots/0?action=save": {"filename": "a"},
    "/slots/0?action=restore": {"filename": "a"},
    "/slots/1?action=erase": {},
    "/v1/streams/lookup": {"ids": ["x"]},
    "/v1/audio/transcriptions": {"file": "x"},
}
GETS = ("/health", "/metrics", "/props", "/models", "/slots", "/lora-adapters", "/v1/stream", "/tools", "/cors-proxy")

NUMBERS = (-(2**63), -(2**31) - 1, -1, 0, 1, 2, 97, 255, 300, 2**31 - 1, 2**31, 2**32 + 97, 2**63, 2**64, 2**70)
FLOATS = (-1.5, 0.5, 1e-300, 1e300, float("nan"), float("inf"))
STRINGS = (
    *("", "x", "\0", "\ud800", "../x", "..", "/etc/passwd", "a/../../b", "ab\u202e", "x" * 3000, "<|im_end|>"),
    *("%s%n", "{{x}}"),
)
DEEP: list[Any] = []
for _ in range(300):
    DEEP = [DEEP]
GRAMMARS = (
    *(grammar for grammar, *_ in BAD_GRAMMARS if len(str(grammar)) < 10_000),
    *('root ::= (""*)*', 'root ::= "a"{99999999999999999999}', "root ::= [z-a]", 'root ::= "\\xZZ"'),
    'root ::= ((("a"{1000}){1000}){1000})',
)
SCHEMAS: tuple[Any, ...] = (
    *(schema for schema, _ in BAD_SCHEMAS),
    *({"$ref": "http://127.0.0.1:1/x"}, {"properties": {"a": {"$ref": "#"}}}, {"const": DEEP}, {"oneOf": {}}),
    {"type": "array", "minItems": 2**31, "items": {}},
    {"type": "string", "pattern": "^(a{1000}){1000}$"},
    {"type": "object", "properties": 3, "required": "a"},
)

_SERVER = Path(__file__).parents[2] / "vendor" / "llama.cpp" / "tools" / "server"
_READ = re.compile(r'(?:json_value\(\w+, *|\b(?:body|data|params)\.(?:at|contains|value)\(|\bfield_\w+\(\s*)"(\w+)"')
OPTIONS = {name for file in sorted(_SERVER.glob("*.cpp")) for name in _READ.findall(file.read_text())}
"""What llama-server looks for in requests."""

ODD = (*NUMBERS, *FLOATS, *STRINGS, *(None, True, False, [], {}, DEEP, [[]], {"": None}), [CHAT[0], {"role": "user"}])
"""Values in the place of others."""


@dataclass
class Request:
    """A request that is sent."""

    method: str
    path: str
    body: bytes = b""
    cut: int | None = None
    """The number of bytes that are sent before the connection is closed."""

    @property
    def odd(self) -> bool:
        """Whether the HTTP library refuses it, with or without a message."""
        return self.cut is not None or self.method in ("BREW", "get", "TRACE")

    def __str__(self) -> str:
        text = f"{self.method} {self.path[:200]} {self.body[:400]!r}"
        return text + (f" cut at {self.cut}" if self.cut else "")


def packed(body: Any) -> bytes:
    return json.dumps(body).encode()


def _chat(**fields: Any) -> Request:
    return Request("POST", "/v1/chat/completions", packed({"messages": CHAT[1:], **fields}))


BAD_REQUESTS: list[Request] = [
    *(
        Request("POST", path, packed(body))
        for path, bodies in {
            "/completion": (
                *({}, [1], {"prompt": None}, {"prompt": [1, -5]}, {"prompt": [2**31 - 1]}),
                *({"prompt": "a" * 3000}, {"prompt": "a", "n_predict": "many"}, {"prompt": "a", "top_attention": -1}),
                {"prompt": "a", "json_schema": {"type": "string", "pattern": "^(?!a)"}},
            ),
            "/v1/messages": ({"messages": CHAT[1:], "tool_choice": {"type": "tool", "name": "a"}, "max_tokens": 1},),
            "/detokenize": ({"tokens": [97, 99999]},),
            "/slots/0?action=restore": ({"filename": "missing"}, {}),
            "/slots/0?action=save": ({"filename": 1},),
            **dict.fromkeys((f"/slots/{slot}?action=erase" for slot in ("x", "2", "-1", "1x")), ({},)),
            "/slots/9?action=save": ({"filename": "a"},),
            "/slots/0?action=forget": ({},),
        }.items()
        for body in bodies
    ),
    *(Request("GET", f"/slots/{slot}/h2o") for slot in ("9", "-1", "x")),
]
"""Status 400, with a reason; some 501 where the server has no completions. For chats see doors.py."""

_DEEP = 100_000
_DOUBLED = {f"{i}": {"allOf": [{"$ref": f"#/$defs/{i + 1}"}] * 2} for i in range(40)} | {"40": {"type": "string"}}
_CHAIN = {f"{i}": {"$ref": f"#/$defs/{i + 1}"} for i in range(2000)}
_LAZY = {"n_predict": 1, "grammar": 'root ::= "a"', "grammar_lazy": True}


def _nested(before: str, inner: str, after: str) -> str:
    return before * _DEEP + inner + after * _DEEP


def _around(request: Request, inner: str) -> Request:
    """With these characters, which are JSON, in the place of "HERE"."""
    return Request(request.method, request.path, request.body.replace(b'"HERE"', inner.encode()))


def _complete(**fields: Any) -> Request:
    return Request("POST", "/completion", packed({"prompt": "a", **fields}))


NESTED: list[Request] = [
    Request("POST", "/completion", _nested("[", "", "]").encode()),
    _complete(grammar="root ::= " + _nested("(", '"a"', ")")),
    _complete(grammar="root ::= root"),
    _complete(**_LAZY, grammar_triggers=[{"type": 2, "value": _nested("(", "", ")")}]),
    _complete(json_schema={"$ref": "#/$defs/0", "$defs": _CHAIN}),
    _complete(json_schema={"$ref": "#/$defs/0", "$defs": _DOUBLED}),
    _around(_complete(json_schema="HERE"), schema := _nested('{"items": ', "{}", "}")),
    _around(_chat(tools=[{"type": "function", "function": {"name": "f", "parameters": "HERE"}}]), schema),
    _around(_chat(messages="HERE"), _nested('[{"role": "user", "content": ', '"a"', "}]")),
    _around(Request("POST", "/apply-template", packed({"messages": ["HERE"]})), _nested('{"a": ', "1", "}")),
]
"""Deeper, or longer when it is written out, than what may be read: refused, too."""


def changed(body: Any, value: Any) -> Iterator[Any]:
    """With this value in the place of one of its parts, or of all of it."""
    yield value
    for key in body if isinstance(body, dict) else range(len(body)) if isinstance(body, list) else ():
        for inner in changed(body[key], value):
            other = copy.copy(body)
            other[key] = inner
            yield other


def changed_bodies() -> Iterator[Request]:
    """Good bodies with other values, of all that the server looks for."""
    for path, body in POSTS.items():
        yield from (Request("POST", path, packed(other)) for value in ODD for other in changed(body, value))
    for name, value in product(sorted(OPTIONS), ODD):
        yield _complete(**{"n_predict": 2, name: value})
    for name, values in (("grammar", GRAMMARS), ("json_schema", SCHEMAS)):
        yield from (_complete(**{"n_predict": 2, name: value}) for value in values)


def damaged_json() -> Iterator[Request]:
    """Cut, with other bytes inside, or something else."""
    inserted = (b"", b"\xff", b"\xc0\x80", b"\xed\xa0\x80", b"\x00", b"NaN", b"1e999", b"\\ud800")
    opened = [start * n for start in (b"[", b'{"a":', b'[{"a":') for n in (10, 100_000)]
    long = [b'{"prompt": "%s", "n_predict": 1}' % (b"x" * n) for n in (300, 3_000_000)]
    for path in POSTS:
        body = packed(POSTS[path])
        yield from (Request("POST", path, other) for other in (*opened, *long))
        for at in range(len(body)):
            yield Request("POST", path, body[:at])
            yield from (Request("POST", path, body[:at] + part + body[at + 1 :]) for part in inserted)


SLOTS = (*("0", "1", "-1", "2", "9", "x", "", "0x1", "1e3", " 1", "0 ", "%00", ".."), *map(str, (2**31, 2**32, 2**64)))
FILES = (
    *("/../x", "/%2e%2e/%2e%2e/etc/passwd", "//etc/passwd", "/index.html%00.x", "/" + "a" * 9000, "/%", "/?%zz", "/v1"),
    *(*POSTS, *GETS, "/slots/0/h2o"),
)


def paths() -> Iterator[Request]:
    names = (*STRINGS, "a", "b", "missing", "\uff0e\uff0e", "x" * 256, 3, None)
    for slot in (quote(slot, safe="%") for slot in SLOTS):
        yield Request("GET", f"/slots/{slot}/h2o")
        for action, name in product(("save", "restore", "erase", "forget", "", "save&action=erase"), names):
            yield Request("POST", f"/slots/{slot}?action={action}", packed({"filename": name}))
    for method in ("GET", "POST", "PUT", "DELETE", "HEAD", "OPTIONS", "PATCH", "TRACE", "BREW", "get"):
        yield from (Request(method, path, body) for path in FILES for body in (b"", packed(POSTS.get(path, {}))))


def cut_off() -> Iterator[Request]:
    """The connection is closed within the headers or the body."""
    for path in ("/completion", "/v1/chat/completions", "/tokenize", "/slots/0?action=save"):
        body = packed({**POSTS[path], "stream": True})
        yield from (Request("POST", path, body, n) for n in range(1, len(body) + 150))


def by_chance(n: int, seed: int) -> list[Request]:
    """Some of these, each kind as often."""
    kinds, rng = [[*requests()] for requests in (changed_bodies, damaged_json, paths, cut_off)], random.Random(seed)
    return [rng.choice(rng.choice(kinds)) for _ in range(n)]
