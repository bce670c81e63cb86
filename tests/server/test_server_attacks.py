"""Attacks on a server of our own, only on 127.0.0.1: bad requests, many clients."""

import copy
import json
import random
import re
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from chats import user
from command_line import h2o_set
from compare import case
from h2o_llama._demo.document import standard_library_text
from h2o_llama._internal.apart import resident_bytes
from inputs import LONGER, SEED
from servers import Server, leave, serving

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600 * max(1, LONGER))]

SMALL = [*h2o_set(chunk_size=32), "--n-ctx", "256", "--parallel", "2", "--threads", "1"]
TEXT = standard_library_text(1000).decode()
KEY = {"Authorization": "Bearer secret"}
EVICT = ["--evict", "--cold-store", "memory"]
SERVERS = {
    "answers": (EVICT, ["--cache-ram", "8", "--override-kv", "tokenizer.ggml.pre=str:gpt-4o", "--props"]),
    "embeddings": (["--api-key", "secret"], ["--embeddings", "--pooling", "last"]),
}
"""Options of each server that is attacked, and options after --."""

# --- bad requests; doors.py has the requests for chats

CHAT = [{"role": "system", "content": "be brief"}, user("What?")]
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {"a": {}}}}}
TALK = {"messages": CHAT, "max_tokens": 4}
POSTS: dict[str, Any] = {
    "/completion": {"prompt": "a long text of some chunks, " * 3, "n_predict": 4, "temperature": 0},
    "/v1/completions": {"prompt": "abc", "max_tokens": 4, "logprobs": 2},
    "/v1/chat/completions": {**TALK, "tools": [TOOL], "response_format": {"type": "json_object"}},
    "/v1/chat/completions/control": {"id": "x", "action": "stop"},
    "/v1/messages": {**TALK, "messages": CHAT[1:], "system": "be"},
    "/v1/messages/count_tokens": {"messages": CHAT[1:]},
    "/v1/responses": {"input": "hello", "max_output_tokens": 4, "instructions": "be"},
    "/v1/embeddings": {"input": ["abc", "d"], "encoding_format": "float"},
    "/tokenize": {"content": "abc", "add_special": True, "with_pieces": True},
    "/detokenize": {"tokens": [97, 98]},
    "/apply-template": {"messages": CHAT},
    "/infill": {"input_prefix": "a", "input_suffix": "b", "input_extra": [{"text": "c", "filename": "d"}]},
    "/rerank": {"query": "a", "documents": ["b", "c"], "top_n": 1},
    "/lora-adapters": [{"id": 0, "scale": 0.5}],
    "/props": {},
    **{f"/slots/0?action={action}": {"filename": "a"} for action in ("save", "restore", "erase")},
}
DEEP: list[Any] = []
for _ in range(300):
    DEEP = [DEEP]
ODD = (
    *(-(2**63), -(2**31) - 1, -1, 0, 1, 2, 97, 300, 2**31, 2**32 + 97, 2**63, 2**64, 2**70),
    *(-1.5, 0.5, 1e-300, 1e300, float("nan"), float("inf")),
    *("", "x", "\0", "\ud800", "../x", "/etc/passwd", "a/../../b", "ab\u202e", "x" * 3000, "<|im_end|>", "{{x}}"),
    *(None, True, False, [], {}, DEEP, [[]], {"": None}, CHAT),
)
"""Values in the place of others."""

_SERVER = Path(__file__).parents[2] / "vendor" / "llama.cpp" / "tools" / "server"
_READ = re.compile(r'(?:json_value\(\w+, *|\b(?:body|data|params)\.(?:at|contains|value)\(|\bfield_\w+\(\s*)"(\w+)"')
OPTIONS = sorted({name for file in _SERVER.glob("*.cpp") for name in _READ.findall(file.read_text())})
"""What llama-server looks for in requests."""

Request = tuple[str, Any]
"""A path; and a body of what JSON can say, or bytes."""

REFUSED: list[Request] = [
    *(("/completion", body) for body in ({}, [1], {"prompt": None}, {"prompt": [1, -5]}, {"prompt": [2**31 - 1]})),
    *(("/completion", {"prompt": "a", **given}) for given in ({"n_predict": "many"}, {"top_attention": -1})),
    ("/completion", {"prompt": "a" * 3000}),
    ("/v1/messages", {"messages": CHAT[1:], "tool_choice": {"type": "tool", "name": "a"}, "max_tokens": 1}),
    ("/detokenize", {"tokens": [97, 99999]}),
    *(("/slots/0?action=restore", body) for body in ({"filename": "missing"}, {})),
    *((f"/slots/{slot}?action=erase", {}) for slot in ("x", "2", "-1", "1x")),
    *((f"/slots/0?action={action}", {"filename": 1}) for action in ("save", "forget")),
]
"""Status 400, with a reason; some 501 where the server has no completions."""


def nested(path: str, body: Any, before: str, inner: str, after: str) -> Request:
    """With JSON of great depth in the place of "HERE"."""
    text = before * 100_000 + inner + after * 100_000
    return path, json.dumps(body).replace('"HERE"', text).encode()


DOUBLED = {f"{i}": {"allOf": [{"$ref": f"#/$defs/{i + 1}"}] * 2} for i in range(40)} | {"40": {"type": "string"}}
CHAIN = {f"{i}": {"$ref": f"#/$defs/{i + 1}"} for i in range(2000)}
LAZY = {"prompt": "a", "n_predict": 1, "grammar": 'root ::= "a"', "grammar_lazy": True}
DEEP_TOOL = {**TOOL, "function": {"name": "f", "parameters": "HERE"}}
BRACES = "(" * 100_000 + '"a"' + ")" * 100_000
TOO_DEEP: list[Request] = [
    nested("/completion", "HERE", "[", "", "]"),
    *(("/completion", {"prompt": "a", "json_schema": {"$ref": "#/$defs/0", "$defs": x}}) for x in (CHAIN, DOUBLED)),
    *(("/completion", {"prompt": "a", "grammar": f"root ::= {body}"}) for body in ("root", BRACES)),
    ("/completion", {**LAZY, "grammar_triggers": [{"type": 2, "value": BRACES}]}),
    nested("/completion", {"prompt": "a", "json_schema": "HERE"}, '{"items": ', "{}", "}"),
    nested("/chat/completions", {**TALK, "tools": [DEEP_TOOL]}, '{"items": ', "{}", "}"),
    nested("/chat/completions", {"messages": "HERE"}, '[{"role": "user", "content": ', '"a"', "}]"),
    nested("/apply-template", {"messages": ["HERE"]}, '{"a": ', "1", "}"),
]
"""Deeper, or longer when it is written out, than what may be read."""


def changed(body: Any, value: Any) -> Iterator[Any]:
    """With this value in the place of one of its parts, or of all of it."""
    yield value
    for key in body if isinstance(body, dict) else range(len(body)) if isinstance(body, list) else ():
        for inner in changed(body[key], value):
            other = copy.copy(body)
            other[key] = inner
            yield other


def by_chance(n: int) -> Iterator[Request]:
    """Good requests with other values, and with options of the server that have other values."""
    rng = random.Random(SEED)
    for _ in range(n):
        path, value = rng.choice([*POSTS]), rng.choice(ODD)
        asked = {"prompt": "a", "n_predict": 2, rng.choice(OPTIONS): value}
        yield rng.choice([(path, rng.choice([*changed(POSTS[path], value)])), ("/completion", asked)])


def ask(server: Server, has_answers: bool) -> list[Any]:
    """Two questions, each to both slots; or their embeddings."""
    found = []
    for slot, prompt in product((0, 1), (TEXT[:150], TEXT[300:480])):
        if has_answers:
            found.append(server.complete(prompt, 12, id_slot=slot, cache_prompt=False)["content"])
        else:
            found.append(server.post("/embedding", {"content": prompt})[0]["embedding"])
    return found


@pytest.mark.parametrize("name", SERVERS)
def test_bad_requests(name: str, tmp_path: Path) -> None:
    """Each answer names the fault, with no 500, and good questions get the same answers as before."""
    options, further = SERVERS[name]
    has_answers = name == "answers"
    (tmp_path / "slots").mkdir()
    saved = ["--slot-save-path", tmp_path / "slots"]
    with serving(tmp_path / "log", "demo", *SMALL, *options, *saved, "--", *further) as server:
        server.headers = KEY
        expected = ask(server, has_answers)
        requests = [*REFUSED, *TOO_DEEP, *by_chance(int(170 * LONGER))]
        for i, (path, body) in enumerate(requests):
            with case(path=path, body=str(body)[:500]):
                data = body if isinstance(body, bytes) else json.dumps(body).encode()
                status, answer = server.request("POST", path, raw=data)
                assert status < 500 or status in (501, 503)
                assert status < 400 or answer["error"]
                if i < len(REFUSED):
                    assert status == 400 or (status == 501 and not has_answers)
                elif i < len(REFUSED) + len(TOO_DEEP):
                    assert status >= 400
        assert ask(server, has_answers) == expected
        if has_answers:
            answer_what_is_long(server)
        else:
            server.headers = {"Authorization": "Bearer wrong"}
            assert {server.request("POST", path, body)[0] for path, body in POSTS.items()} == {401}
    assert {path.name for path in tmp_path.iterdir()} == {"log", "slots"}, "files outside of the folder of slots"


def answer_what_is_long(server: Server) -> None:
    slow = {"grammar_lazy": True, "grammar_triggers": [{"type": 2, "value": "(.|.)" * 40 + "[\u0001\u0002]"}]}
    asked = {"prompt": "a", "n_predict": 60}
    with pytest.raises(AssertionError, match="names of more than 190 bytes"):
        server.post("/completion", {**asked, "json_schema": {"properties": {"." * 60_000: {}}}})
    with pytest.raises(AssertionError, match="match limit exceeded"):
        server.post("/completion", {**asked, "ignore_eos": True, "seed": 1, "grammar": 'root ::= "a"', **slow})
    for run in (".", " ", "\n", "中"):
        assert len(server.post("/tokenize", {"content": run * 60_000})["tokens"]) > 1000


# --- many clients

QUESTIONS = ("What is this about?", "Which names does it mention, and why?", "And then?")
NAME = "document_name = "
"""The start of every answer. Every document repeats it, so the model copies the name after it, which no other has."""
SIZES = (300, 700, 1500, 2000, 3100, 4000, 5000, 7500)
"""Tokens of the documents: bytes, for the demo model. A client for each."""
NEAR_TIE = 0.2
"""Nats between two tokens that rounding may swap: it depends on the CPU, and on what else is in the batch."""
GROWTH = 48 * 2**20
"""Bytes that the server may grow by: what malloc has not given back."""


def with_names(text: str, seed: int) -> str:
    """The text, in which a name that no other has stands here and there."""
    marker = f"\n{NAME}{''.join(random.Random(seed).choices('abcdefghijklmnopqrstuvwxyz', k=10))}\n"
    return marker + "".join(text[start : start + 200] + marker for start in range(0, len(text), 200 + len(marker)))


DOCUMENTS = [with_names(standard_library_text(100_000).decode()[1000 * i :][:size], i) for i, size in enumerate(SIZES)]
Expected = dict[tuple[int, int], tuple[str, int]]
"""How the answer to each question about each document begins, and the prompt's tokens."""


def question_about(document: int, question: int) -> list[dict[str, str]]:
    told = {"system": DOCUMENTS[document], "user": QUESTIONS[question], "assistant": NAME}
    return [{"role": role, "content": content} for role, content in told.items()]


def expected_of(server: Server) -> Expected:
    """Of a server that has nothing else to do: up to the first near tie of the two most probable tokens."""
    found: Expected = {}
    for pair in product(range(len(SIZES)), range(len(QUESTIONS))):
        options = {"id_slot": 0, "cache_prompt": False, "logprobs": True, "top_logprobs": 2}
        answer = server.chat(question_about(*pair), 12, **options)
        tokens = answer["choices"][0]["logprobs"]["content"]
        gaps = [token["top_logprobs"][0]["logprob"] - token["top_logprobs"][1]["logprob"] for token in tokens]
        n = next((i for i, gap in enumerate(gaps) if gap < NEAR_TIE), len(gaps))
        found[pair] = "".join(token["token"] for token in tokens[:n]), answer["usage"]["prompt_tokens"]
    assert len({start for start, _ in found.values() if start}) >= len(SIZES), f"these tell no documents apart: {found}"
    return found


def check_answer_about(server: Server, expected: Expected, document: int, question: int, **options: Any) -> int:
    """Ask, and compare. Returns the number of tokens."""
    answer = server.chat(question_about(document, question), 12, **options)
    start, n_prompt = expected[document, question]
    assert answer["choices"][0]["message"]["content"].startswith(start)
    assert answer["usage"]["prompt_tokens"] == n_prompt
    n: int = answer["usage"]["total_tokens"]
    return n


def client(server: Server, expected: Expected, number: int, own_slot: bool) -> None:
    """One client's requests. With a slot of its own it knows what must be in it."""
    rng = random.Random(f"{SEED}/{number}")
    slot = number if own_slot else -1
    document, saved = rng.randrange(len(SIZES)), set[int]()
    for _ in range(int(5 * LONGER)):
        action = rng.choice(["ask", "ask", "ask", "other", "other", "cancel", "save", "restore", "erase"])
        question = rng.randrange(len(QUESTIONS))
        if action == "other":
            document = rng.randrange(len(SIZES))
        if action == "cancel":
            asked = {"messages": question_about(document, question), "max_tokens": 500, "stream": True, "id_slot": slot}
            connection = leave(server, "/v1/chat/completions", asked)
            time.sleep(rng.random() * 0.5)
            connection.close()
        elif action == "restore" and own_slot and saved:
            document = rng.choice(sorted(saved))
            server.post(f"/slots/{slot}?action=restore", {"filename": f"{number}-{document}"})
        elif action == "erase" and own_slot:
            server.post(f"/slots/{slot}?action=erase", {})
            assert server.get("/slots")[slot]["n_prompt_tokens"] == 0
        with case(client=number, action=action, document=document, question=question):
            n_tokens = check_answer_about(server, expected, document, question, id_slot=slot)
            if own_slot:  # the last one was not read any more
                assert server.get("/slots")[slot]["n_prompt_tokens"] == n_tokens - 1
        if action == "save" and own_slot:
            server.post(f"/slots/{slot}?action=save", {"filename": f"{number}-{document}"})
            saved.add(document)


@pytest.mark.parametrize("options", [[], ["--evict"]])
def test_many_clients(options: list[str], tmp_path: Path) -> None:
    """Eight at once ask, go away, drop documents, save slots and restore them: slots of their own, then any.

    At the end all slots are free, and the server's memory has not grown since it had read the longest document in all.
    """
    (tmp_path / "slots").mkdir()
    n_clients = len(SIZES)
    sizes = [*h2o_set(chunk_size=256), "--n-ctx", "8192", "--parallel", str(n_clients)]
    further = ["--slot-save-path", f"{tmp_path}/slots/", "--", "--cache-ram", "32"]  # MiB, full soon
    with serving(tmp_path / "log", "demo", *sizes, *options, *further) as server:
        expected = expected_of(server)
        for slot in range(n_clients):
            check_answer_about(server, expected, n_clients - 1, 0, id_slot=slot, cache_prompt=False)
        memory: list[int] = []
        for own_slot in (True, False):
            with ThreadPoolExecutor(n_clients) as pool:
                clients = [pool.submit(client, server, expected, i, own_slot) for i in range(n_clients)]
                while not all(each.done() for each in clients):
                    memory.append(resident_bytes(server.process.pid) or 0)
                    time.sleep(0.2)
            for each in clients:
                each.result()
            server.wait_until_idle()
        for document in range(n_clients):
            check_answer_about(server, expected, document, 0, id_slot=0, cache_prompt=False)
    assert memory[-1] - max(memory[: len(memory) // 4 + 1]) <= GROWTH, f"the server's memory grows: {memory}"
