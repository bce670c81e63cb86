"""Many clients at once at a server of our own: python tools/load_server.py [--minutes M] [--evict]

Eight clients ask `h2o-llama serve` with the demo model about documents of up to 7,500 tokens: first questions and
further ones, some cancelled while the document is read or the answer comes; they drop documents, save slots and restore
them. Every answer must begin like the one that the server gave when it had nothing else to do, up to the first near
tie, and `/slots/{id}/h2o` must show as many tokens as the client's text has. At the end all slots must be free, and the
server's memory must not have grown since it had read the longest document in every slot. Only on 127.0.0.1.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from http.client import HTTPConnection
from itertools import product
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from h2o_llama._internal.apart import resident_bytes  # noqa: E402
from h2o_llama.demo.document import standard_library_text  # noqa: E402
from servers import Server, certain_start, serving  # noqa: E402

CLIENTS = 8
SIZES = (300, 700, 1500, 2000, 3100, 4000, 5000, 7500)
"""Tokens of the documents: bytes, for the demo model."""
QUESTIONS = ("What is this about?", "Which names does it mention, and why?", "And then?")
NAME = "document_name = "
"""What every answer begins with, and every document says often: the model copies what follows."""
N_CTX = 8192
CACHE = 32
"""MiB of the prompt cache, which is full soon."""
GROWTH = 48 * 2**20
"""Bytes that the server may grow by: what malloc has not given back."""


@dataclass
class Load:
    """A server, its documents, and what it should answer."""

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
        rng = random.Random(number)
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

    def run(self, seconds: float) -> list[int]:
        """All clients, with slots of their own and then with any slot. Returns the server's memory every second."""
        memory: list[int] = []
        for own_slot in (True, False):
            end = time.monotonic() + seconds / 2
            with ThreadPoolExecutor(CLIENTS) as pool:
                clients = [pool.submit(self.client, i, end, own_slot) for i in range(CLIENTS)]
                while any(not client.done() for client in clients):
                    memory.append(resident_bytes(self.server.process.pid))
                    time.sleep(1)
            for client in clients:
                client.result()
            self.server.wait_until_idle()
        return memory


def with_markers(text: str, rng: random.Random) -> str:
    """The text, in which a name that no other has stands here and there."""
    marker = f"\n{NAME}{''.join(rng.choices('abcdefghijklmnopqrstuvwxyz', k=10))}\n"
    return marker + "".join(text[start : start + 200] + marker for start in range(0, len(text), 200 + len(marker)))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--evict", action="store_true")
    arguments = parser.parse_args()
    text = standard_library_text(100_000).decode()
    documents = [with_markers(text[1000 * i :][:size], random.Random(i)) for i, size in enumerate(SIZES)]
    options = ["--chunk", "256", "--n-ctx", str(N_CTX), "--parallel", str(CLIENTS)]
    options += ["--evict"] if arguments.evict else []
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "slots").mkdir()
        more = ["--slot-save-path", f"{folder}/slots/", "--", "--cache-ram", str(CACHE)]
        with serving(Path(folder) / "log", "demo", *options, *more) as server:
            load = Load(server, documents)
            own = load.learn()[:: len(QUESTIONS)]
            print(f"load_server: {[text.removeprefix(NAME) for text in own]}", flush=True)
            assert len(set(own)) == len(SIZES), "these answers do not tell documents apart"
            for slot in range(CLIENTS):
                load.ask(len(SIZES) - 1, 0, id_slot=slot, cache_prompt=False)
            before = resident_bytes(server.process.pid)
            memory = load.run(arguments.minutes * 60)
            for document in range(len(SIZES)):
                load.check(document, 0, "at the end", id_slot=0, cache_prompt=False)
    warm = max(memory[: len(memory) // 4 + 1])
    print(f"load_server: {sum(load.done.values())} rounds {dict(load.done)}")
    print(
        f"load_server: MiB: {before >> 20} read, {warm >> 20} warm, {max(memory) >> 20} most, {memory[-1] >> 20} last"
    )
    if memory[-1] - warm > GROWTH:
        sys.exit("load_server: the server's memory grows")


if __name__ == "__main__":
    main()
