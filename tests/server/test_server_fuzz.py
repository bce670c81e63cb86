"""Attacks on a server of our own, only on 127.0.0.1: bad requests, damaged files, many clients."""

import contextlib
import json
import random
import socket
import subprocess
import time
from collections import Counter
from collections.abc import Container, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from http.client import HTTPConnection
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from bad_requests import BAD_REQUESTS, NESTED, POSTS, Request, by_chance, packed
from command_line import h2o_set
from h2o_llama._demo.document import standard_library_text
from h2o_llama._internal.apart import resident_bytes
from inputs import LONGER, SEED
from servers import Server, serving

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600 * max(1, LONGER))]

SMALL = [*h2o_set(chunk_size=32), "--n-ctx", "256", "--parallel", "2", "--threads", "1"]
TEXT = standard_library_text(1000).decode()
MARKER, OTHER = TEXT[:150], TEXT[300:480]

# --- bad requests

N_REQUESTS = int(170 * LONGER)
EVERY = 250
"""Requests between two looks at the server's answers."""
PATIENCE = 120
"""Seconds for an answer: a machine may have other things to do."""
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
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE) as connection:
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
    """A server, its right answers, the requests that it was sent, and their faults."""

    server: Server
    log: Path
    key: str | None
    n: int = 0
    faults: dict[str, str] = field(default_factory=dict)
    answers: list[str] = field(default_factory=list)

    def send(self, request: Request) -> tuple[int, bytes] | None:
        return send(self.server.port, request, self.key)

    def ask(self) -> list[str]:
        """Two questions, each to both slots; with a key, whose server has no answers, embeddings."""
        texts = []
        for slot, prompt in product((0, 1), (MARKER, OTHER)):
            body = {"prompt": prompt, "n_predict": 12, "temperature": 0, "id_slot": slot, "cache_prompt": False}
            path, body = ("/embedding", {"content": prompt}) if self.key else ("/completion", body)
            answer = self.send(Request("POST", path, packed(body)))
            assert answer is not None, "no answer to a good question"
            assert answer[0] == 200, answer
            found = json.loads(answer[1])
            texts.append(str(found[0]["embedding"]) if self.key else found["content"])
        return texts

    def one(self, request: Request, statuses: Container[int] = range(600)) -> None:
        """Send it, and look at the answer."""
        self.n += 1
        try:
            answer = self.send(request)
        except TimeoutError:
            answer, found = None, f"no answer in {PATIENCE} s"
        else:
            found = fault(request, answer)
            if answer is not None and answer[0] not in statuses:
                found = f"status {answer[0]}"
        if found is not None:
            self.faults.setdefault(f"{request.path.split('?')[0][:60]}: {found}", str(request))
        with contextlib.suppress(subprocess.TimeoutExpired):  # a server that has just crashed takes a moment to end
            status = self.server.process.wait(0 if answer else 1)
            end = self.log.read_text(errors="replace")[-3000:]
            raise AssertionError(f"the server ended with {status} after {request}: {end}")
        if self.n % EVERY == 0:
            assert self.ask() == self.answers, f"answers are other ones after request {self.n}"


@pytest.mark.parametrize("name", ATTACKED)
def test_bad_requests(name: str, tmp_path: Path) -> None:
    """By hand, and by chance: values of other types and sizes, damaged JSON, paths, methods, lengths; cut off.

    Each answer names the fault, in JSON, with no 500, and good questions get the same answers as before.
    """
    options, further = ATTACKED[name]
    (tmp_path / "slots").mkdir()
    arguments = [*SMALL, *options, "--slot-save-path", f"{tmp_path}/slots/", "--", *further]

    with serving(tmp_path / "log", "demo", *arguments) as server:
        attack = Attack(server, tmp_path / "log", KEY if "--api-key" in options else None)
        attack.answers = attack.ask()
        for request in BAD_REQUESTS:
            attack.one(request, (400,) if attack.key is None else (400, 501))
        for request in NESTED:
            attack.one(request, range(400, 600))
        for request in by_chance(N_REQUESTS, SEED):
            attack.one(request)
        assert not attack.faults
        assert attack.ask() == attack.answers
        if attack.key is not None:
            for path, body in POSTS.items():
                answer = send(server.port, Request("POST", path, packed(body)), "wrong")
                assert answer is not None
                assert answer[0] == 401, f"{path} without the key: {answer}"
        else:
            answer_what_is_long(server)
    outside = {path.name for path in tmp_path.iterdir()} - {"log", "slots"}
    assert not outside, "files outside of the folder of slots"


def answer_what_is_long(server: Server) -> None:
    slow = {"grammar_lazy": True, "grammar_triggers": [{"type": 2, "value": "(.|.)" * 40 + "[\u0001\u0002]"}]}
    asked = {"prompt": "a", "n_predict": 60}
    with pytest.raises(AssertionError, match="names of more than 190 bytes"):
        server.post("/completion", {**asked, "json_schema": {"properties": {"." * 60_000: {}}}})
    with pytest.raises(AssertionError, match="match limit exceeded"):
        server.post("/completion", {**asked, "ignore_eos": True, "seed": 1, "grammar": 'root ::= "a"', **slow})
    for run in (".", " ", "\n", "中"):
        assert len(server.post("/tokenize", {"content": run * 60_000})["tokens"]) > 1000


def test_damaged_slot_files(tmp_path: Path) -> None:
    """Slot 1 refuses each with a reason, or can continue from it; slot 0 keeps its text. The last file is slots/bad."""
    (tmp_path / "slots").mkdir()
    good, bad, rng = tmp_path / "slots" / "good", tmp_path / "slots" / "bad", random.Random(SEED)
    options = ["--evict", "--cold-store", "memory", "--slot-save-path", f"{good.parent}/"]
    with serving(tmp_path / "log", "demo", *SMALL, *options) as server:
        answer = server.complete(OTHER, 8, id_slot=0)["content"]
        server.complete(MARKER, 16, id_slot=1)  # closes the chunk of its checkpoint
        server.post("/slots/1?action=save", {"filename": "good"})
        for _ in range(int(200 * LONGER)):
            data = bytearray(good.read_bytes())
            for _ in range(3):
                at = rng.randrange(min(len(data), rng.choice([12, 1000, 6000, len(data)])))
                data[at : at + 4] = rng.choice((bytes(4), b"\xff" * 4, rng.randbytes(4), data[at + 1 : at + 5]))
            bad.write_bytes(data[: rng.choice([len(data), at])])
            status, found = server.request("POST", "/slots/1?action=restore", {"filename": "bad"})
            assert status == 200 or (status == 400 and found["error"]["message"]), found
            assert server.request("POST", "/completion", {"prompt": MARKER, "n_predict": 2, "id_slot": 1})[0] == 200
        assert server.complete(OTHER, 8, id_slot=0, cache_prompt=False)["content"] == answer


# --- documents whose answers are known

NEAR_TIE = 0.2
"""Nats between two tokens that rounding may swap: it depends on the CPU, and on what else is in the batch."""

QUESTIONS = ("What is this about?", "Which names does it mention, and why?", "And then?")
NAME = "document_name = "
"""The start of every answer. Every document repeats it, so the model copies the text after it."""


def with_markers(text: str, seed: int) -> str:
    """The text, in which a name that no other has stands here and there."""
    marker = f"\n{NAME}{''.join(random.Random(seed).choices('abcdefghijklmnopqrstuvwxyz', k=10))}\n"
    return marker + "".join(text[start : start + 200] + marker for start in range(0, len(text), 200 + len(marker)))


@dataclass
class Load:
    """A server, documents of these sizes, and the expected answers."""

    server: Server
    sizes: Sequence[int]
    expected: dict[tuple[int, int], tuple[str, int]] = field(default_factory=dict)
    """How the answer to each question about each document begins, and the prompt's tokens."""
    done: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        """Ask the server, which has nothing else to do, and knows nothing."""
        text = standard_library_text(100_000).decode()
        self.documents = [with_markers(text[1000 * i :][:size], i) for i, size in enumerate(self.sizes)]
        for pair in product(range(len(self.documents)), range(len(QUESTIONS))):
            answer = self.ask(*pair, id_slot=0, cache_prompt=False, logprobs=True, top_logprobs=2)
            start = certain_start(answer["choices"][0]["logprobs"]["content"])
            self.expected[pair] = start, answer["usage"]["prompt_tokens"]
        starts = {start for start, _ in self.expected.values() if start}
        assert len(starts) >= len(self.sizes), f"these answers do not tell documents apart: {self.expected}"

    def messages(self, document: int, question: int) -> list[dict[str, str]]:
        return [
            {"role": "system", "content": self.documents[document]},
            {"role": "user", "content": QUESTIONS[question]},
            {"role": "assistant", "content": NAME},
        ]

    def ask(self, document: int, question: int, **options: Any) -> Any:
        return self.server.chat(self.messages(document, question), 12, **options)

    def check(self, document: int, question: int, who: str, **options: Any) -> Any:
        """Ask, compare, and return the answer."""
        answer = self.ask(document, question, **options)
        found, usage = answer["choices"][0]["message"]["content"], answer["usage"]
        start, n_prompt = self.expected[document, question]
        assert found.startswith(start), f"{who}: {document}, {question}: {found!r} does not begin with {start!r}"
        assert usage["prompt_tokens"] == n_prompt, f"{who}: {usage['prompt_tokens']} tokens, not {n_prompt}"
        return answer


def certain_start(tokens: list[Any]) -> str:
    """What an answer says before its first near tie, by the two most probable tokens at each step."""
    text = ""
    for token in tokens:
        first, second = (other["logprob"] for other in token["top_logprobs"][:2])
        if first - second < NEAR_TIE:
            break
        text += token["token"]
    return text


# --- many clients

ACTIONS = int(5 * LONGER)
"""Of each client, with a slot of its own and then with any."""
CLIENTS = 8
SIZES = (300, 700, 1500, 2000, 3100, 4000, 5000, 7500)
"""Tokens of the documents: bytes, for the demo model."""
LOADED = [*h2o_set(chunk_size=256), "--n-ctx", "8192", "--parallel", str(CLIENTS)]
CACHE = 32
"""MiB of the prompt cache, which is full soon."""
GROWTH = 48 * 2**20
"""Bytes that the server may grow by: what malloc has not given back."""


def cancel(load: Load, document: int, question: int, seconds: float, slot: int) -> None:
    """Go away while the document is read, or the answer comes."""
    connection = HTTPConnection("127.0.0.1", load.server.port, timeout=60)
    body = {"messages": load.messages(document, question), "max_tokens": 500, "stream": True, "id_slot": slot}
    connection.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"})
    time.sleep(seconds)
    connection.close()


def client(load: Load, number: int, own_slot: bool) -> None:
    """One client's requests. With a slot of its own it knows what must be in it."""
    rng = random.Random(f"{SEED}/{number}")
    slot = number if own_slot else -1
    document = rng.randrange(len(load.documents))
    saved: set[int] = set()
    for _ in range(ACTIONS):
        action = rng.choice(["ask", "ask", "ask", "other", "other", "cancel", "save", "restore", "erase"])
        if action == "other":
            document = rng.randrange(len(load.documents))
        if action == "cancel":
            cancel(load, document, rng.randrange(len(QUESTIONS)), rng.random() * 0.5, slot)
        elif action == "restore" and own_slot and saved:
            document = rng.choice(sorted(saved))
            load.server.post(f"/slots/{slot}?action=restore", {"filename": f"{number}-{document}"})
        elif action == "erase" and own_slot:
            load.server.post(f"/slots/{slot}?action=erase", {})
            assert load.server.get(f"/slots/{slot}/h2o")["n_tokens"] == 0
        question = rng.randrange(len(QUESTIONS))
        who = f"client {number}, {action}"
        answer = load.check(document, question, who, id_slot=slot)
        if own_slot:
            state = load.server.get(f"/slots/{slot}/h2o")
            n_tokens = answer["usage"]["total_tokens"] - 1  # the last one was not read any more
            assert state["n_tokens"] == n_tokens, f"{who}: {state['n_tokens']}, not {n_tokens}"
            if action == "save":
                load.server.post(f"/slots/{slot}?action=save", {"filename": f"{number}-{document}"})
                saved.add(document)
        load.done[action] += 1


def run(load: Load) -> list[int]:
    """All clients, with slots of their own and then with any slot. Returns the server's memory, again and again."""
    memory: list[int] = []
    for own_slot in (True, False):
        with ThreadPoolExecutor(CLIENTS) as pool:
            clients = [pool.submit(client, load, i, own_slot) for i in range(CLIENTS)]
            while not all(each.done() for each in clients):
                memory.append(resident_bytes(load.server.process.pid) or 0)
                time.sleep(0.2)
        for each in clients:
            each.result()
        load.server.wait_until_idle()
    return memory


@pytest.mark.parametrize("options", [[], ["--evict"]])
def test_many_clients(options: list[str], tmp_path: Path) -> None:
    """They ask, go away, drop documents, save slots and restore them, eight at once.

    Every answer begins like that of the server with nothing else to do, up to the first near tie; at the end all slots
    are free, and the server's memory has not grown since it had read the longest document in every slot.
    """
    (tmp_path / "slots").mkdir()
    further = ["--slot-save-path", f"{tmp_path}/slots/", "--", "--cache-ram", str(CACHE)]
    with serving(tmp_path / "log", "demo", *LOADED, *options, *further) as server:
        load = Load(server, SIZES)
        for slot in range(CLIENTS):
            load.ask(len(SIZES) - 1, 0, id_slot=slot, cache_prompt=False)
        memory = run(load)
        for document in range(len(SIZES)):
            load.check(document, 0, "at the end", id_slot=0, cache_prompt=False)
    assert sum(load.done.values()) > 0
    assert memory[-1] - max(memory[: len(memory) // 4 + 1]) <= GROWTH, f"the server's memory grows: {memory}"
