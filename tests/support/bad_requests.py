"""Requests to llama-server that are wrong in some way: some by hand, and strategies of Hypothesis.

The strategies are shorter than a description of all endpoints, which schemathesis would need, would be.
"""

import copy
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from hypothesis import strategies as st

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

values: st.SearchStrategy[Any] = st.one_of(
    *map(st.sampled_from, (NUMBERS, FLOATS, STRINGS, (None, True, False, [], {}, DEEP, [[]], {"": None}))),
    st.lists(st.sampled_from((*NUMBERS, *STRINGS, *FLOATS, None)), max_size=5),
    st.recursive(st.sampled_from((1, "a", None)), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)),
    st.sampled_from(CHAT).map(lambda message: [message, message, {"role": "user"}]),
)
FIELDS: dict[str, st.SearchStrategy[Any]] = {
    **dict.fromkeys(sorted(OPTIONS), values),
    "grammar": st.sampled_from(GRAMMARS) | values,
    "json_schema": st.sampled_from(SCHEMAS) | values,
    "n_predict": st.sampled_from((-1, 0, 1, 3, 2**31)),
    "cache_prompt": st.booleans(),
    "top_attention": st.integers(0, 50),
}


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
    *(
        Request("POST", path, body)
        for path in (
            *("/completion", "/v1/completions", "/v1/chat/completions", "/tokenize", "/apply-template"),
            "/slots/0?action=restore",
        )
        for body in (
            *(b"{", b"", b"no JSON", b"\xff", b'{"prompt": "\xff"}', b'{"prompt": "\\ud800"}'),
            *(b'{"temperature": NaN}', b'{"temperature": 1e999}'),
        )
    ),
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


@st.composite
def changed_bodies(draw: Callable[..., Any]) -> Request:
    """A good body whose keys are partly missing, or have other values."""
    path = draw(st.sampled_from(tuple(POSTS)))
    if draw(st.integers(0, 19)) == 0:
        return Request("POST", path, packed(draw(values)))
    body = json.loads(json.dumps(POSTS[path]))
    for _ in range(draw(st.integers(1, 3))):
        place = body
        while isinstance(place, list | dict) and place:
            key = draw(st.sampled_from(range(len(place)) if isinstance(place, list) else tuple(place)))
            if not isinstance(place[key], list | dict) or draw(st.booleans()):
                break
            place = place[key]
        else:
            break
        if isinstance(place, dict) and draw(st.booleans()):
            name = draw(st.sampled_from(tuple(FIELDS)))
            place[name] = copy.deepcopy(draw(FIELDS[name]))
        elif draw(st.integers(0, 4)) == 0:
            del place[key]
        else:
            place[key] = copy.deepcopy(draw(values))
    return Request("POST", path, packed(body))


@st.composite
def damaged_json(draw: Callable[..., Any]) -> Request:
    """Cut, with other bytes inside, or something else."""
    path = draw(st.sampled_from(tuple(POSTS)))
    body = packed(POSTS[path])
    at = draw(st.integers(0, len(body) - 1))
    inserted = (b"", b"\xff", b"\xc0\x80", b"\xed\xa0\x80", b"\x00", b"NaN", b"1e999", b"\\ud800")
    opened = draw(st.sampled_from((b"[", b'{"a":', b'[{"a":'))) * draw(st.sampled_from((10, 100_000)))
    long = b'{"prompt": "%s", "n_predict": 1}' % (b"x" * draw(st.sampled_from((300, 3_000_000))))
    inside = body[:at] + draw(st.sampled_from(inserted) | st.binary(max_size=4)) + body[at + draw(st.booleans()) :]
    return Request("POST", path, draw(st.sampled_from((body[:at], inside, opened, long)) | st.binary(max_size=40)))


SLOTS = (*("0", "1", "-1", "2", "9", "x", "", "0x1", "1e3", " 1", "0 ", "%00", ".."), *map(str, (2**31, 2**32, 2**64)))
FILES = (
    *("/../x", "/%2e%2e/%2e%2e/etc/passwd", "//etc/passwd", "/index.html%00.x", "/" + "a" * 9000, "/%", "/?%zz", "/v1"),
    *(*POSTS, *GETS, "/slots/0/h2o"),
)


@st.composite
def paths(draw: Callable[..., Any]) -> Request:
    slot = quote(draw(st.sampled_from(SLOTS)), safe="%")
    action = draw(st.sampled_from(("save", "restore", "erase", "forget", "", "save&action=erase")))
    name = draw(st.sampled_from((*STRINGS, "a", "b", "missing", "\uff0e\uff0e", "x" * 256, 3, None)))
    method = draw(st.sampled_from(("GET", "POST", "PUT", "DELETE", "HEAD", "OPTIONS", "PATCH", "TRACE", "BREW", "get")))
    path = draw(st.sampled_from(FILES))
    requests = (
        Request("GET", f"/slots/{slot}/h2o"),
        Request("POST", f"/slots/{slot}?action={action}", packed({"filename": name})),
        Request(method, path, draw(st.sampled_from((b"", packed(POSTS.get(path, {})))))),
    )
    return draw(st.sampled_from(requests))  # type: ignore[no-any-return]


@st.composite
def cut_off(draw: Callable[..., Any]) -> Request:
    """The connection is closed within the headers or the body."""
    path = draw(st.sampled_from(("/completion", "/v1/chat/completions", "/tokenize", "/slots/0?action=save")))
    body = packed({**POSTS[path], "stream": draw(st.booleans())})
    return Request("POST", path, body, draw(st.integers(1, len(body) + 150)))


REQUESTS = st.one_of(changed_bodies(), changed_bodies(), damaged_json(), paths(), cut_off())
