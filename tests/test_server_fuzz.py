"""Attacks on a server of our own: bad requests, damaged slot files, many clients. Only on 127.0.0.1."""

from __future__ import annotations

import contextlib
import json
import random
import socket
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from http.client import HTTPConnection
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings

from bad_requests import NESTED, POSTS, REQUESTS, Request, packed
from command_line import h2o_set
from h2o_llama._demo.document import standard_library_text
from h2o_llama._internal.apart import resident_bytes
from inputs import LONGER, SEED
from servers import NAME, QUESTIONS, Server, certain_start, serving, with_markers

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600 * max(1, LONGER))]

SMALL = [*h2o_set(chunk_size=32), "--n-ctx", "256", "--parallel", "2", "--threads", "1"]
TEXT = standard_library_text(1000).decode()
MARKER, OTHER = TEXT[:150], TEXT[300:480]

# --- bad requests

N_REQUESTS = int(170 * LONGER)
EVERY = 250
"""Requests between two looks at the server's answers."""
KEY = "secret"
ATTACKED = {
    "keep": ([], ["--metrics", "--props"]),
    "evict": (
        ["--evict", "--cold-store", "memory"],
        ["--cache-ram", "8", "--override-kv", "tokenizer.ggml.pre=str:gpt-4o"],
    ),
    "key": (["--evict", "--api-key", KEY], ["--embeddings", "--pooling", "last"]),
}


def send(port: int, request: Request, key: str | None) -> tuple[int, bytes] | None:
    """Status and body; None if the server closed the connection without an answer."""
    headers = {"Host": "localhost", "Content-Length": str(len(request.body)), "Content-Type": "application/json"}
    headers |= {"Connection": "close"} | ({"Authorization": f"Bearer {key}"} if key else {})
    lines = [f"{request.method} {request.path} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items())]
    data = "\r\n".join(lines).encode() + b"\r\n\r\n" + request.body
    with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
        answer = b""
        with contextlib.suppress(ConnectionError):
            connection.sendall(data[: request.cut])
            if request.cut is not None:
                return None
            if request.odd:  # the server may wait for more
                connection.shutdown(socket.SHUT_WR)
            while part := connection.recv(1 << 16):
                answer += part
    if not answer:
        return None
    head, _, body = answer.partition(b"\r\n\r\n")
    return int(head.split()[1]), body


def fault(request: Request, answer: tuple[int, bytes] | None) -> str | None:
    """The fault of an answer; None if it has none."""
    if answer is None:
        return None if request.odd else "no answer"
    status, body = answer
    if status < 400 or (status < 500 and request.odd):
        return None
    if request.method == "HEAD" and (status < 500 or status == 501):
        return None  # it has no body
    if status >= 500 and status not in (501, 503):
        return f"{status}, as if it were the server's fault: {body[:200]!r}"
    if status in (413, 414) or (status in (400, 404, 431) and not body and len(request.path) > 8000):
        return None  # the HTTP library's own answer
    try:
        error = json.loads(body)["error"]
        message = error if isinstance(error, str) else error["message"]
    except (ValueError, KeyError, TypeError):
        return f"{status} without an error in JSON: {body[:200]!r}"
    return None if message else f"{status} without a reason"


@dataclass
class Attack:
    """A server, the requests that it was sent, and their faults."""

    server: Server
    log: Path
    key: str | None
    embeds: bool
    n: int = 0
    faults: dict[str, str] = field(default_factory=dict)
    answers: list[str] = field(default_factory=list)

    def ask(self) -> list[str]:
        """Two questions, each to both slots, or embeddings of both."""
        texts = []
        for slot, prompt in product((0, 1), (MARKER, OTHER)):
            path, body = "/embedding", {"content": prompt}
            if not self.embeds:
                path = "/completion"
                body = {"prompt": prompt, "n_predict": 12, "temperature": 0, "id_slot": slot, "cache_prompt": False}
            answer = send(self.server.port, Request("POST", path, packed(body)), self.key)
            assert answer is not None, "no answer to a good question"
            assert answer[0] == 200, answer
            found = json.loads(answer[1])
            texts.append(str(found[0]["embedding"]) if self.embeds else found["content"])
        return texts

    def one(self, request: Request) -> None:
        self.n += 1
        try:
            answer = send(self.server.port, request, self.key)
        except TimeoutError:
            answer, found = None, "no answer in 30 s"
        else:
            found = fault(request, answer)
        if found is not None:
            self.faults.setdefault(f"{request.path.split('?')[0][:60]}: {found}", str(request))
        with contextlib.suppress(subprocess.TimeoutExpired):  # a server that has just crashed takes a moment to end
            status = self.server.process.wait(0 if answer else 1)
            end = self.log.read_text(errors="replace")[-3000:]
            raise AssertionError(f"the server ended with {status} after {request}: {end}")
        if self.n % EVERY == 0:
            assert self.ask() == self.answers, f"answers are other ones after request {self.n}"


@pytest.fixture(params=ATTACKED)
def attack(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Attack]:
    options, further = ATTACKED[request.param]
    (tmp_path / "slots").mkdir()
    arguments = [*SMALL, *options, "--slot-save-path", f"{tmp_path}/slots/", "--", *further]
    with serving(tmp_path / "log", "demo", *arguments) as server:
        work = Attack(server, tmp_path / "log", KEY if "--api-key" in options else None, "--embeddings" in further)
        work.answers = work.ask()
        yield work


def test_bad_requests(attack: Attack, tmp_path: Path) -> None:
    """Bodies with values of other types and sizes, damaged JSON, grammars, schemas, paths, methods, lengths; cut off.

    Each answer names the fault, in JSON, with no 500, and good questions get the same answers as before.
    """

    @seed(SEED)
    @settings(
        max_examples=N_REQUESTS,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(REQUESTS)
    def run(request: Request) -> None:
        attack.one(request)

    run()
    for request in NESTED:
        before = len(attack.faults)
        attack.one(request)
        answer = send(attack.server.port, request, attack.key)
        assert (answer is not None and answer[0] >= 400) or len(attack.faults) > before, str(request)
    assert not attack.faults
    assert attack.ask() == attack.answers
    for path in POSTS if attack.key is not None else ():
        answer = send(attack.server.port, Request("POST", path, packed(POSTS[path])), "wrong")
        assert answer is not None
        assert answer[0] == 401, f"{path} without the key: {answer}"
    outside = {path.name for path in tmp_path.iterdir()} - {"log", "slots"}
    assert not outside, "files outside of the folder of slots"


@pytest.mark.parametrize("attack", ["evict"], indirect=True)
def test_what_is_long_is_answered(attack: Attack) -> None:
    closed = {"type": "object", "properties": {"." * 60_000: {}}, "additionalProperties": False}
    slow = {"grammar_lazy": True, "grammar_triggers": [{"type": 2, "value": "(.|.)" * 40 + "\u0001"}]}
    for fields in ({"json_schema": closed}, {"grammar": 'root ::= "a"', **slow}):
        answer = attack.server.post("/completion", {"prompt": "a", "n_predict": 60, **fields})
        assert answer["tokens_predicted"] > 1
    for run in (".", " ", "\n", "中"):
        assert len(attack.server.post("/tokenize", {"content": run * 60_000})["tokens"]) > 1000


# --- damaged slot files

N_FILES = int(100 * LONGER)
NUMBERS = (0, 1, 2, 31, 32, 33, 150, 151, 255, 256, 2**31 - 1, 2**31, 2**32 - 1, 0x7FC00000)


def damaged(data: bytes, rng: random.Random) -> bytes:
    out = bytearray(data)
    if rng.random() < 0.2:
        del out[rng.randrange(len(out)) :]
    for _ in range(rng.randint(1, 3) if out else 0):
        at = rng.randrange(min(len(out), rng.choice([12, 1000, 6000, len(out)])))
        if rng.random() < 0.3:
            at = len(out) - 1 - at  # its checkpoints
        if rng.random() < 0.5:
            out[at] ^= 1 << rng.randrange(8)
        else:
            at -= at % 4
            out[at : at + 4] = rng.choice(NUMBERS).to_bytes(4, "little")
    return bytes(out)


@pytest.mark.parametrize("options", [[], ["--evict"], ["--evict", "--cold-store", "memory"]])
def test_damaged_slot_files(options: list[str], tmp_path: Path) -> None:
    """Slot 1 refuses each with a reason and is empty, or can continue from it; slot 0 keeps its text.

    The last file is slots/bad.
    """
    (tmp_path / "slots").mkdir()
    good, bad = tmp_path / "slots" / "good", tmp_path / "slots" / "bad"
    with serving(tmp_path / "log", "demo", *SMALL, *options, "--slot-save-path", f"{good.parent}/") as server:
        answers = [server.complete(text, 8, cache_prompt=False)["content"] for text in (OTHER, MARKER + "and")]
        server.complete(OTHER, 0, id_slot=0)
        server.complete(MARKER, 16, id_slot=1, cache_prompt=False)  # closes the chunk of its checkpoint
        server.post("/slots/1?action=save", {"filename": "good"})
        data, other = good.read_bytes(), server.get("/slots/0/h2o?layer=1")
        for i in range(N_FILES):
            what = f"file {i} of seed {SEED}"
            rng = random.Random(f"{SEED}/{i}")
            bad.write_bytes(damaged(data, rng))
            status, answer = server.request("POST", "/slots/1?action=restore", {"filename": "bad"})
            assert status == 200 or (status == 400 and answer["error"]["message"]), (what, status, answer)
            if status == 400:
                assert server.get("/slots/1/h2o")["n_tokens"] == 0, f"{what}: the slot holds a part of the file"
            else:  # whatever it holds
                body = {"prompt": MARKER + rng.choice(["and", ""]), "n_predict": 2, "id_slot": 1}
                status, answer = server.request("POST", "/completion", body)
                assert status == 200, (what, status, answer)
            if i % 50 == 49 or i == N_FILES - 1:
                assert server.get("/slots/0/h2o?layer=1") == other, f"{what}: another slot has changed"
                found = server.complete(MARKER + "and", 8, id_slot=1, cache_prompt=False)["content"]
                assert found == answers[1], f"{what}: the slot answers otherwise"
        assert server.complete(OTHER, 8, id_slot=0, cache_prompt=False)["content"] == answers[0]


# --- many clients

SECONDS = 12 * LONGER
CLIENTS = 8
SIZES = (300, 700, 1500, 2000, 3100, 4000, 5000, 7500)
"""Tokens of the documents: bytes, for the demo model."""
LOADED = [*h2o_set(chunk_size=256), "--n-ctx", "8192", "--parallel", str(CLIENTS)]
CACHE = 32
"""MiB of the prompt cache, which is full soon."""
GROWTH = 48 * 2**20
"""Bytes that the server may grow by: what malloc has not given back."""


@dataclass
class Load:
    """A server, its documents, and the expected answers."""

    server: Server
    documents: list[str]
    expected: dict[tuple[int, int], tuple[str, int]] = field(default_factory=dict)
    """How the answer to each question about each document begins, and the prompt's tokens."""
    done: Counter[str] = field(default_factory=Counter)

    def messages(self, document: int, question: int) -> list[dict[str, str]]:
        return [
            {"role": "system", "content": self.documents[document]},
            {"role": "user", "content": QUESTIONS[question]},
            {"role": "assistant", "content": NAME},
        ]

    def ask(self, document: int, question: int, **options: Any) -> Any:
        return self.server.chat(self.messages(document, question), 12, **options)

    def learn(self) -> list[str]:
        """What the server says with nothing else to do, and from nothing it knows. Returns the answers."""
        answers = []
        for pair in product(range(len(self.documents)), range(len(QUESTIONS))):
            answer = self.ask(*pair, id_slot=0, cache_prompt=False, logprobs=True, top_logprobs=2)
            start = certain_start(answer["choices"][0]["logprobs"]["content"])
            self.expected[pair] = NAME + start, answer["usage"]["prompt_tokens"]
            answers.append(answer["choices"][0]["message"]["content"])
        return answers

    def check(self, document: int, question: int, who: str, **options: Any) -> int:
        """Ask, and compare. Returns the tokens of prompt and answer."""
        answer = self.ask(document, question, **options)
        found, usage = answer["choices"][0]["message"]["content"], answer["usage"]
        start, n_prompt = self.expected[document, question]
        assert found.startswith(start), f"{who}: {document}, {question}: {found!r} does not begin with {start!r}"
        assert usage["prompt_tokens"] == n_prompt, f"{who}: {usage['prompt_tokens']} tokens, not {n_prompt}"
        return int(usage["total_tokens"])

    def cancel(self, document: int, question: int, seconds: float, slot: int) -> None:
        """Go away while the document is read, or the answer comes."""
        connection = HTTPConnection("127.0.0.1", self.server.port, timeout=60)
        body = {"messages": self.messages(document, question), "max_tokens": 500, "stream": True, "id_slot": slot}
        connection.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"})
        time.sleep(seconds)
        connection.close()

    def client(self, number: int, end: float, own_slot: bool) -> None:
        """One client's requests until the time is over. With a slot of its own it knows what must be in it."""
        rng = random.Random(f"{SEED}/{number}")
        slot = number if own_slot else -1
        document = rng.randrange(len(self.documents))
        saved: set[int] = set()
        while time.monotonic() < end:
            action = rng.choice(["ask", "ask", "ask", "other", "other", "cancel", "save", "restore", "erase"])
            if action == "other":
                document = rng.randrange(len(self.documents))
            if action == "cancel":
                self.cancel(document, rng.randrange(len(QUESTIONS)), rng.random() * 0.5, slot)
            elif action == "restore" and own_slot and saved:
                document = rng.choice(sorted(saved))
                self.server.post(f"/slots/{slot}?action=restore", {"filename": f"{number}-{document}"})
            elif action == "erase" and own_slot:
                self.server.post(f"/slots/{slot}?action=erase", {})
                assert self.server.get(f"/slots/{slot}/h2o")["n_tokens"] == 0
            question = rng.randrange(len(QUESTIONS))
            who = f"client {number}, {action}"
            n_tokens = self.check(document, question, who, id_slot=slot) - 1  # the last one was not read any more
            if own_slot:
                state = self.server.get(f"/slots/{slot}/h2o?layer=1")
                assert state["n_tokens"] == n_tokens, f"{who}: {state['n_tokens']}, not {n_tokens}"
                assert all(len(head) == n_tokens for head in state["scores"] or [])
                assert all(head[-1] < n_tokens for head in state["memory_set"] if head)
                if action == "save":
                    self.server.post(f"/slots/{slot}?action=save", {"filename": f"{number}-{document}"})
                    saved.add(document)
            self.done[action] += 1

    def run(self) -> list[int]:
        """All clients, with slots of their own and then with any slot. Returns the server's memory every second."""
        memory: list[int] = []
        for own_slot in (True, False):
            end = time.monotonic() + SECONDS / 2
            with ThreadPoolExecutor(CLIENTS) as pool:
                clients = [pool.submit(self.client, i, end, own_slot) for i in range(CLIENTS)]
                while any(not client.done() for client in clients):
                    memory.append(resident_bytes(self.server.process.pid) or 0)
                    time.sleep(1)
            for client in clients:
                client.result()
            self.server.wait_until_idle()
        return memory


@pytest.mark.parametrize("options", [[], ["--evict"]])
def test_many_clients(options: list[str], tmp_path: Path) -> None:
    """They ask, go away, drop documents, save slots and restore them, eight at once.

    Every answer begins like that of the server with nothing else to do, up to the first near tie; at the end all slots
    are free, and the server's memory has not grown since it had read the longest document in every slot.
    """
    text = standard_library_text(100_000).decode()
    documents = [with_markers(text[1000 * i :][:size], i) for i, size in enumerate(SIZES)]
    (tmp_path / "slots").mkdir()
    further = ["--slot-save-path", f"{tmp_path}/slots/", "--", "--cache-ram", str(CACHE)]
    with serving(tmp_path / "log", "demo", *LOADED, *options, *further) as server:
        load = Load(server, documents)
        own = load.learn()[:: len(QUESTIONS)]
        assert len(set(own)) == len(SIZES), f"these answers do not tell documents apart: {own}"
        for slot in range(CLIENTS):
            load.ask(len(SIZES) - 1, 0, id_slot=slot, cache_prompt=False)
        memory = load.run()
        for document in range(len(SIZES)):
            load.check(document, 0, "at the end", id_slot=0, cache_prompt=False)
    assert sum(load.done.values()) > 0
    assert memory[-1] - max(memory[: len(memory) // 4 + 1]) <= GROWTH, f"the server's memory grows: {memory}"
