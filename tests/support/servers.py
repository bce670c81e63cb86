"""A server that `h2o-llama serve` starts, and requests to it. Only on 127.0.0.1, and it always ends."""

import json
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.client import HTTPConnection
from pathlib import Path
from typing import IO, Any

from command_line import h2o_set
from h2o_llama._demo.document import standard_library_text

# On Linux it ends with this process, even if that is killed.
_SERVE = """
import ctypes, sys
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, 9)
from h2o_llama._cli import app
app()
"""


S = 64
TEXT = standard_library_text(6000).decode()
DOCUMENT, OTHER = TEXT[:900], TEXT[2000:2700]
"""Some chunks each, a token for each character, and no multiple of S."""
SETTINGS: dict[str, tuple[list[str], dict[str, Any] | None]] = {
    "keep": ([], {}),
    "evict": (["--evict"], {"evict": True}),
    "cold": (["--evict", "--cold-store", "memory"], {"evict": True, "cold_store": "memory"}),
    "sum": (
        h2o_set(scorer="sum", dense_layers=0, lookup_budget=0),
        {"scorer": "sum", "dense_layers": 1, "lookup_budget": 0},
    ),
    "dense": (["--h2o", "off"], None),
}
"""Options of a server, and the same for `H2OConfig`."""


@dataclass
class Server:
    """A running server."""

    port: int
    process: subprocess.Popen[bytes]
    headers: dict[str, str] = field(default_factory=dict)
    """Of every request."""

    def request(
        self, method: str, path: str, body: Any = None, raw: bytes | None = None, headers: dict[str, str] | None = None
    ) -> tuple[int, Any]:
        """Status and answer, JSON where it is."""
        connection = HTTPConnection("127.0.0.1", self.port, timeout=120)
        try:
            data = raw if raw is not None else None if body is None else json.dumps(body).encode()
            connection.request(
                method, path, data, {"Content-Type": "application/json", **self.headers, **(headers or {})}
            )
            response = connection.getresponse()
            text = response.read()
        finally:
            connection.close()
        try:
            return response.status, json.loads(text)
        except ValueError:
            return response.status, text.decode(errors="replace")

    def get(self, path: str) -> Any:
        status, answer = self.request("GET", path)
        assert status == 200, answer
        return answer

    def post(self, path: str, body: Any = None) -> Any:
        status, answer = self.request("POST", path, body)
        assert status == 200, answer
        return answer

    def events(self, path: str, body: Any) -> list[Any]:
        """Of a stream."""
        status, text = self.request("POST", path, {**body, "stream": True})
        assert status == 200, text
        data = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]
        return [json.loads(one) for one in data if one != "[DONE]"]

    def complete(self, prompt: str | list[int], n_predict: int = 16, **options: Any) -> Any:
        """A completion that always takes the most probable token."""
        body = {"prompt": prompt, "n_predict": n_predict, "temperature": 0, **options}
        return self.post("/completion", body)

    def chat(self, messages: list[Any], max_tokens: int = 8, **options: Any) -> Any:
        """A chat completion that always takes the most probable token."""
        body = {"messages": messages, "max_tokens": max_tokens, "temperature": 0, **options}
        return self.post("/v1/chat/completions", body)

    def wait_until_idle(self) -> None:
        deadline = time.monotonic() + 60
        while any(slot["is_processing"] for slot in self.get("/slots")):
            assert time.monotonic() < deadline
            time.sleep(0.05)


def leave(server: Server, path: str, body: dict[str, Any]) -> HTTPConnection:
    """Send a request for which nobody waits when the connection is closed."""
    connection = HTTPConnection("127.0.0.1", server.port, timeout=60)
    headers = {"Content-Type": "application/json", "X-Conversation-Id": "x", **server.headers}
    connection.request("POST", path, json.dumps(body), headers)
    return connection


ServerOf = Callable[..., Server]
"""server_of(model, *options): a fixture of conftest.py."""


@contextmanager
def serving(
    log: Path, *arguments: str | Path, library: str | Path = "off", port: int | None = None
) -> Iterator[Server]:
    """A server with these arguments of `h2o-llama serve`; its output is written to the file `log`."""
    with running(log, _is_healthy, "serve", arguments[0], "--library", library, *arguments[1:], port=port) as server:
        yield server


@contextmanager
def running(
    log: Path, is_ready: Callable[[Server], bool], command: str, *arguments: str | Path, port: int | None = None
) -> Iterator[Server]:
    """A command of `h2o-llama` that listens; an OSError of is_ready says that it does not yet."""
    port = port or _free_port()
    with log.open("wb") as output:
        process = _start(output, command, *map(str, arguments[:1]), "--port", str(port), *map(str, arguments[1:]))
        try:
            _wait_until_ready(Server(port, process), is_ready, log)
            yield Server(port, process)
        finally:
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
    return port


def _start(output: IO[bytes], *arguments: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-c", _SERVE, *arguments], stdin=subprocess.DEVNULL, stdout=output, stderr=output
    )


def _is_healthy(server: Server) -> bool:
    return server.request("GET", "/health")[0] == 200


def _wait_until_ready(server: Server, is_ready: Callable[[Server], bool], log: Path) -> None:
    deadline = time.monotonic() + 120
    while True:
        try:
            if is_ready(server):
                return
        except OSError:
            pass
        status = server.process.poll()
        assert status is None, f"ended with {status}: {log.read_text(errors='replace')}"
        assert time.monotonic() < deadline, log.read_text(errors="replace")
        time.sleep(0.05)
