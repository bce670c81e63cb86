"""Bad requests to a server of our own: python tools/attack_server.py [--requests N] [--seed S]

`h2o-llama serve` with the demo model gets requests to all of its endpoints that are wrong in some way
(bad_requests.py): bodies with values of other types and sizes, damaged JSON, grammars and schemas, paths, methods and
lengths, requests that are cut off. Each must get an answer that says what is wrong in JSON, and no 500, and the server
must not end. Every so often, questions must get the answers that they got from the
server when it was fresh.

There are three servers (see VARIANTS) at the same time, only on 127.0.0.1. The same seed gives the same requests.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import socket
import subprocess
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import seed as seeded

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from bad_requests import POSTS, REQUESTS, Request, packed  # noqa: E402
from h2o_llama.demo.document import standard_library_text  # noqa: E402
from servers import Server, serving  # noqa: E402

SIZES = ["--chunk", "32", "--n-ctx", "256", "--parallel", "2", "--threads", "1"]
KEY = "secret"
VARIANTS = {
    "keep": ([], ["--metrics", "--props"]),
    "evict": (["--evict", "--cold-store", "memory"], ["--cache-ram", "8"]),
    "key": (["--evict", "--api-key", KEY], ["--embeddings", "--pooling", "last"]),
}
TEXT = standard_library_text(1000).decode()
MARKER, OTHER = TEXT[:150], TEXT[300:480]
EVERY = 250
"""Requests between two looks at the server's answers."""


def send(port: int, request: Request, key: str | None) -> tuple[int, bytes] | None:
    """Status and body; None if the server closed the connection without an answer."""
    headers = {"Host": "localhost", "Content-Length": str(len(request.body)), "Content-Type": "application/json"}
    headers |= {"Connection": "close"} | ({"Authorization": f"Bearer {key}"} if key else {}) | request.headers
    if "Transfer-Encoding" in headers:
        del headers["Content-Length"]
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
    """What is wrong with the answer."""
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
    """A server, what was sent to it, and what went wrong."""

    server: Server
    log: Path
    key: str | None
    embeds: bool
    n: int = 0
    statuses: Counter[int | None] = field(default_factory=Counter)
    faults: dict[str, str] = field(default_factory=dict)
    answers: list[str] = field(default_factory=list)

    def ask(self) -> list[str]:
        """Two questions, each to both slots, or embeddings of both."""
        texts = []
        for slot in (0, 1):
            for prompt in (MARKER, OTHER):
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
        self.statuses[answer and answer[0]] += 1
        if found is not None:
            self.faults.setdefault(f"{request.path.split('?')[0][:60]}: {found}", str(request))
        with contextlib.suppress(subprocess.TimeoutExpired):  # a server that has just crashed takes a moment to end
            status = self.server.process.wait(0 if answer else 1)
            end = self.log.read_text(errors="replace")[-3000:]
            raise SystemExit(f"{end}\nattack_server: the server ended with {status} after {request}")
        if self.n % EVERY == 0:
            assert self.ask() == self.answers, f"answers are other ones after request {self.n}"


def attack(name: str, n_requests: int, seed: int, folder: Path) -> dict[str, str]:
    """Send requests to a server. Returns what was wrong, with the first request that showed it."""
    options, further = VARIANTS[name]
    (folder / "slots").mkdir()
    arguments = [*SIZES, *options, "--slot-save-path", str(folder / "slots") + "/", "--", *further]
    with serving(folder / "log", "demo", *arguments) as server:
        work = Attack(server, folder / "log", KEY if "--api-key" in options else None, "--embeddings" in further)
        work.answers = work.ask()

        @seeded(seed)
        @settings(
            max_examples=n_requests,
            database=None,
            deadline=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(REQUESTS)
        def run(request: Request) -> None:
            work.one(request)

        run()
        assert work.ask() == work.answers, "answers are other ones at the end"
        if work.key is not None:
            for path in POSTS:
                answer = send(server.port, Request("POST", path, packed(POSTS[path])), "wrong")
                assert answer is not None
                assert answer[0] == 401, f"{path} without the key: {answer}"
    outside = [str(path) for path in folder.iterdir() if path.name not in ("log", "slots")]
    assert not outside, f"files outside of the folder of slots: {outside}"
    print(f"attack_server: {name}: {work.n} requests, answers by status {dict(work.statuses)}", flush=True)
    return work.faults


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--requests", type=int, default=6000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--variant", choices=VARIANTS)
    arguments = parser.parse_args()
    if arguments.variant is None:
        n = -(-arguments.requests // len(VARIANTS))
        command = [sys.executable, __file__, f"--requests={n}", f"--seed={arguments.seed}"]
        jobs = [subprocess.Popen([*command, f"--variant={name}"]) for name in VARIANTS]
        sys.exit(max([abs(job.wait()) for job in jobs]))
    with tempfile.TemporaryDirectory() as folder:
        faults = attack(arguments.variant, arguments.requests, arguments.seed, Path(folder))
    for what, example in faults.items():
        print(f"{what}\n    {example}")
    sys.exit(f"attack_server: {len(faults)} kinds of wrong answers" if faults else 0)


if __name__ == "__main__":
    main()
