"""`h2o-llama serve` and its library: what a slot has read is there after a restart, and for nobody else."""

from __future__ import annotations

import json
import os
import signal
import socket
import socketserver
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from adapters import random_adapter
from chats import CHATML, user
from command_line import assert_one_line_error, invoke
from h2o_llama import H2OConfig, Library, Llama, demo_model_path
from h2o_llama._demo.document import standard_library_text
from h2o_llama.library._librarian import start_librarian
from h2o_llama.sequence.snapshot import SnapshotOrigin
from inputs import ModelByName, random_tokens
from projectors import about, picture, png
from servers import Server, serving

pytestmark = pytest.mark.slow

S = 64
TEXT = standard_library_text(6000).decode()
DOCUMENT, OTHER = TEXT[:900], TEXT[2000:2700]
"""A token for each character, and no multiple of S."""
QUESTION, SECOND = "\nWhat is the first word, please?", "\nAnd which one is the very last?"
OPTIONS = ["--chunk", S, "--threads", "1", "--n-ctx", "2048"]
SETTINGS: dict[str, tuple[list[str], dict[str, Any] | None]] = {
    "keep": ([], {}),
    "evict": (["--evict"], {"evict": True}),
    "cold": (["--evict", "--cold-store", "memory"], {"evict": True, "cold_store": "memory"}),
    "off": (["--h2o", "off"], None),
}


@pytest.fixture
def library(tmp_path: Path) -> Library:
    return Library(tmp_path / "library")


@pytest.fixture
def serve(tmp_path: Path, library: Library) -> Callable[..., Any]:
    """Starts a server with the library, one after another."""
    log = tmp_path / "log"

    @contextmanager
    def start(
        *options: str | Path, model: str | Path = "demo", folder: str | Path = library.folder
    ) -> Iterator[Server]:
        with serving(log, model, *map(str, OPTIONS), *options, library=folder) as server:
            yield server

    return start


@pytest.fixture
def short_path() -> Iterator[Path]:
    """The path of a socket has at most 103 characters."""
    with tempfile.TemporaryDirectory(prefix="h2o-") as folder:
        yield Path(folder)


def test_a_librarian_that_is_killed_leaves_nothing(
    tmp_path: Path, short_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It imports nothing from the folder in which the server was started."""
    started = list[subprocess.Popen[bytes]]()
    popen = subprocess.Popen

    def start(*arguments: Any, **options: Any) -> subprocess.Popen[bytes]:
        started.append(popen(*arguments, **options))
        return started[-1]

    (tmp_path / "socketserver.py").write_text("raise SystemExit")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(subprocess, "Popen", start)
    monkeypatch.setattr(tempfile, "tempdir", str(short_path))
    monkeypatch.setenv("H2O_LLAMA_LIBRARIAN", "")
    origin = SnapshotOrigin("m", "0", 260, "f16", "f16", "auto", None)
    for signal_number, n_left in ((signal.SIGKILL, 1), (signal.SIGTERM, 0)):
        start_librarian(tmp_path / "library", origin)
        assert len(list(short_path.glob("h2o-llama-*"))) == 1
        assert librarian_answers()
        os.kill(started[-1].pid, signal_number)
        os.waitpid(started[-1].pid, 0)
        assert len(list(short_path.glob("h2o-llama-*"))) == n_left


def librarian_answers() -> bool:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(os.environ["H2O_LLAMA_LIBRARIAN"])
        connection.sendall(b"POST /settings HTTP/1.1\r\nContent-Length: 3\r\n\r\n{}\n")
        return connection.recv(100).startswith(b"HTTP/1.1 200")


def texts(server: Server, **headers: str) -> list[dict[str, Any]]:
    status, answer = server.request("GET", "/h2o/library", headers=headers)
    assert status == 200, answer
    found: list[dict[str, Any]] = answer["texts"]
    return found


def wait_for(is_true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not is_true():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def kill_when_written(server: Server, n_texts: int = 1) -> None:
    """Kill the server as soon as it has so many texts."""
    wait_for(lambda: len(texts(server)) == n_texts)
    server.process.kill()
    server.process.wait()


def n_known(answer: Any) -> int:
    n: int = answer["timings"]["cache_n"]
    return n


def librarian_of(server: Server) -> int:
    """Its process."""
    command = ["pgrep", "-P", str(server.process.pid), "-f", "librarian"]
    return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


# --- what comes back


def n_left(prompt: str | list[int]) -> int:
    """Its last tile: by default a text goes back to where one begins."""
    return (len(prompt) - 1) % H2OConfig().tile + 1


@pytest.mark.parametrize("name", SETTINGS)
def test_a_text_outlives_a_server_that_is_killed(serve: Any, name: str) -> None:
    """It answers as one that has read all of it, and reads no more than the end again."""
    options, _ = SETTINGS[name]
    prompt, second = DOCUMENT + QUESTION, DOCUMENT + SECOND
    with serve(*options) as server:
        first = server.complete(prompt)
        expected = server.complete(second, cache_prompt=False)["content"]
        kill_when_written(server)
    with serve(*options) as server:
        again = server.complete(prompt)
        n_again = {"off": 1, "keep": n_left(prompt)}.get(name, 4)
        assert n_known(again) == len(prompt) - n_again
        assert again["content"] == first["content"]
        kill_when_written(server)
    with serve(*options) as server:  # the document and another question in the same message
        other = server.complete(second)
        assert n_known(other) >= len(second) - 64
        assert other["content"] == expected


def test_a_conversation_goes_on_after_a_restart(serve: Any, tmp_path: Path) -> None:
    """And OpenAI's usage says how much was known."""
    template = tmp_path / "template"
    template.write_text(CHATML)
    options = ["--", "--chat-template-file", str(template)]
    told: list[Any] = [{"role": "system", "content": DOCUMENT}, user("k1?")]
    with serve(*options) as server:
        first = server.chat(told)
        kill_when_written(server)
    told += [{"role": "assistant", "content": first["choices"][0]["message"]["content"]}, user("k2?")]
    with serve(*options) as server:
        second = server.chat(told)
        expected = server.chat(told, cache_prompt=False)
    assert second["choices"] == expected["choices"]
    n = second["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert n == n_known(second) > len(DOCUMENT)


def test_a_text_that_parts_early_goes_on_at_the_end_of_a_chunk(serve: Any) -> None:
    """Where what was evicted is not gone."""
    parting = DOCUMENT[: 5 * S + 7] + OTHER
    for options, n in (([], 5 * S), (["--evict"], 0)):
        with serve(*options) as server:
            server.complete(DOCUMENT)
            wait_for(lambda: len(texts(server)) == 1)
        with serve(*options) as server:
            answer = server.complete(parting)
            assert n_known(answer) == n
            assert answer["content"] == server.complete(parting, cache_prompt=False)["content"]
            server.request("DELETE", f"/h2o/library/{texts(server)[0]['id']}")


@pytest.mark.parametrize("name", SETTINGS)
def test_python_and_the_server_share_a_library(serve: Any, library: Library, name: str) -> None:
    options, settings = SETTINGS[name]
    parting = 0 if name == "evict" else 5 * S  # where another text can go on that parts early
    h2o = None if settings is None else H2OConfig(chunk_size=S, **settings)
    sizes: dict[str, Any] = {"n_ctx": 2048, "n_batch": S, "n_threads": 1}
    with Llama(demo_model_path(), h2o=h2o, library=library, **sizes) as llm:
        told = llm(DOCUMENT + QUESTION, max_tokens=16, temperature=0)["choices"][0]["text"]
    with serve(*options) as server:
        answer = server.complete(DOCUMENT + QUESTION)
        assert n_known(answer) >= len(DOCUMENT + QUESTION) - 64
        assert answer["content"] == told
        server.complete(OTHER + QUESTION)
        wait_for(lambda: len(texts(server)) == 2)
    for tokens, least in ((OTHER + QUESTION, len(OTHER + QUESTION) - 64), (OTHER[: 5 * S + 7] + DOCUMENT, parting)):
        with Llama(demo_model_path(), h2o=h2o, library=library, **sizes) as llm:
            llm.eval(llm.tokenize(tokens))
            assert llm.n_cached >= least


def test_two_slots(serve: Any) -> None:
    """At the same time: each gives its text, and takes its own."""
    prompts = [DOCUMENT + QUESTION, OTHER + QUESTION]
    with serve("--parallel", "2") as server:
        expected = [server.complete(prompt, cache_prompt=False)["content"] for prompt in prompts]
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(server.complete, prompts))
        kill_when_written(server, 2)
    with serve("--parallel", "2") as server, ThreadPoolExecutor(2) as pool:
        answers = list(pool.map(server.complete, prompts))
    assert [answer["content"] for answer in answers] == expected
    assert [n_known(answer) for answer in answers] == [len(prompt) - n_left(prompt) for prompt in prompts]


def test_the_prompt_cache_in_memory_stays_above_the_library(serve: Any) -> None:
    """A text that left its slot comes back from there, though the library has lost it."""
    with serve() as server:
        server.complete(DOCUMENT + QUESTION)
        server.complete(OTHER + QUESTION)
        wait_for(lambda: len(texts(server)) == 2)
        for text in texts(server):
            server.request("DELETE", f"/h2o/library/{text['id']}")
        assert n_known(server.complete(DOCUMENT + QUESTION)) == len(DOCUMENT + QUESTION) - 4


def test_a_server_that_is_stopped_writes_before_it_ends(serve: Any, library: Library) -> None:
    with serve() as server:
        server.complete(DOCUMENT)
        librarian = librarian_of(server)
        server.process.terminate()
        server.process.wait(30)
    assert [text.n_tokens for text in library.texts()] == [len(DOCUMENT) + 15]  # the last token was not read any more
    wait_for(lambda: not is_running(librarian))


# --- what is not kept, and not given


def test_keys_have_libraries_of_their_own(serve: Any) -> None:
    """Not even the id of another key's text helps."""
    a, b = ({"Authorization": "Bearer first"}, {"X-Api-Key": "second"})
    body = {"prompt": DOCUMENT + QUESTION, "n_predict": 4, "temperature": 0}

    def known(server: Server, headers: dict[str, str]) -> int:
        status, answer = server.request("POST", "/completion", body, headers=headers)
        assert status == 200, answer
        return n_known(answer)

    options = ["--", "--api-key", "first,second"]
    with serve(*options) as server:
        assert known(server, a) == 0
        wait_for(lambda: len(texts(server, **a)) == 1)
        assert texts(server, **b) == []
        name = texts(server, **a)[0]["id"]
        assert server.request("DELETE", f"/h2o/library/{name}", headers=b)[0] == 404
        assert server.request("GET", "/h2o/library")[0] == 401
    with serve(*options) as server:
        assert known(server, b) == 0
    with serve(*options) as server:
        assert known(server, a) == len(DOCUMENT + QUESTION) - 4
    with serve() as server:
        assert known(server, a) == 0, "what a key has read is given where no key is asked for"


def test_a_request_without_cache_leaves_nothing(serve: Any) -> None:
    with serve() as server:
        server.complete(DOCUMENT, cache_prompt=False)
        server.complete(OTHER[:200])  # fewer tokens than are kept
        server.complete(OTHER)
        wait_for(lambda: len(texts(server)) > 0)
        assert [text["n_tokens"] for text in texts(server)] == [len(OTHER) + 15]


def test_what_adapters_of_a_request_have_computed_is_not_kept(
    serve: Any, model_by_name: ModelByName, tmp_path: Path
) -> None:
    """Those that the server was started with are a part of the model."""
    model = model_by_name("qwen3-gqa4-f32")
    adapter = random_adapter(model, gain=3).write(tmp_path / "adapter.gguf")
    document, other = random_tokens(400), random_tokens(400, seed=1)
    with serve("--lora", adapter, model=model) as server:
        server.complete(document, 1, lora=[{"id": 0, "scale": 0.5}])
        server.complete(other, 1)
        wait_for(lambda: len(texts(server)) == 1)
    with serve("--lora", adapter, model=model) as server:
        assert n_known(server.complete(other, 1, lora=[{"id": 0, "scale": 0.5}])) == 0
        assert n_known(server.complete(document, 1)) == 0
        assert n_known(server.complete(other, 1)) == len(other) - n_left(other)
    with serve(model=model) as server:
        assert n_known(server.complete(other, 1)) == 0


def test_images_are_not_kept(serve: Any, chat_model: Path, mmproj: Path) -> None:
    """A text beside them is."""
    with serve("--mmproj", mmproj, model=chat_model) as server:
        server.chat([about("What is this? " * 20, png(picture(1)))])
        server.chat([user("What is this? " * 30)])
        wait_for(lambda: len(texts(server)) > 0)
        assert [text["name"] for text in texts(server)] == ["user What is this? What is this? What is…"]
    with serve("--mmproj", mmproj, model=chat_model) as server:
        assert n_known(server.chat([about("What is this? " * 20, png(picture(1)))])) == 0
        assert n_known(server.chat([user("What is this? " * 30)])) > 300


@pytest.mark.parametrize("options", [["--", "--cache-type-k", "q8_0"], ["--n-ctx", "512"], ["--sinks", "0"]])
def test_a_text_of_other_options_is_not_taken(serve: Any, options: list[str]) -> None:
    """Nor one that a slot has no room for."""
    with serve() as server:
        server.complete(DOCUMENT)
        wait_for(lambda: len(texts(server)) == 1)
    with serve(*options) as server:
        assert n_known(server.complete(DOCUMENT[:400])) == 0


# --- what goes wrong


@pytest.mark.parametrize("damage", [lambda data: data[: len(data) // 2], lambda data: data[:-9] + b"damaged!!"])
def test_damaged_files_are_read_again(
    serve: Any, library: Library, tmp_path: Path, damage: Callable[[bytes], bytes]
) -> None:
    with serve() as server:
        first = server.complete(DOCUMENT)
        kill_when_written(server)
    block = max(library.folder.glob("blocks/*/*"), key=lambda path: path.stat().st_size)
    block.write_bytes(damage(block.read_bytes()))
    with serve() as server:
        again = server.complete(DOCUMENT)
        assert (n_known(again), again["content"]) == (0, first["content"])
        kill_when_written(server)  # it was written again
        assert "the text is read again" in (tmp_path / "log").read_text()
    with serve() as server:
        assert n_known(server.complete(DOCUMENT)) == len(DOCUMENT) - 4


def test_the_server_goes_on_without_its_librarian(serve: Any, tmp_path: Path) -> None:
    with serve() as server:
        first = server.complete(DOCUMENT)
        os.kill(librarian_of(server), 9)
        assert server.complete(DOCUMENT + QUESTION)["content"]
        for _ in range(2):
            assert server.complete(DOCUMENT, cache_prompt=False)["content"] == first["content"]
            assert n_known(server.complete(OTHER)) >= 0
        status, answer = server.request("GET", "/h2o/library")
        assert (status, answer["error"]["type"]) == (503, "unavailable_error")
        assert (tmp_path / "log").read_text().count("the library is off") == 1


def test_a_library_that_cannot_be_written_stops_nobody(serve: Any, library: Library) -> None:
    with serve() as server:
        (library.folder / "blocks").write_text("a file where a folder must be")
        first = server.complete(DOCUMENT)
        server.complete(OTHER)
        assert server.complete(DOCUMENT, cache_prompt=False)["content"] == first["content"]
        assert texts(server) == []


def test_no_library(serve: Any, library: Library) -> None:
    with serve(folder="off") as server:
        server.complete(DOCUMENT)
        for method, path in (("GET", "/h2o/library"), ("DELETE", "/h2o/library/1")):
            status, answer = server.request(method, path)
            assert (status, answer["error"]["type"]) == (501, "not_supported_error")
    assert list(library.folder.iterdir()) == []
    file = library.folder / "file"
    file.touch()
    assert_one_line_error(invoke("serve", "--library", file), "is a file, expected a folder")


@pytest.mark.parametrize("options", [[], ["--host", "0.0.0.0"], ["--host", "0.0.0.0", "--api-key", "a"]])
def test_others_get_no_library_without_a_key(serve: Any, library: Library, options: list[str]) -> None:
    is_there = len(options) != 2
    headers = {"Authorization": "Bearer a"}
    with serve(*options) as server:
        status, answer = server.request("GET", "/h2o/library", headers=headers)
        assert status == (200 if is_there else 501), answer
        body = {"prompt": DOCUMENT, "n_predict": 1}
        assert server.request("POST", "/completion", body, headers=headers)[0] == 200
    assert (list(library.folder.iterdir()) != []) == is_there


class SlowLibrarian(socketserver.ThreadingUnixStreamServer):
    """Says nothing to /take and /is-new before `answers` is set."""

    def __init__(self, path: Path) -> None:
        self.answers, self.asked = threading.Event(), threading.Semaphore(0)
        super().__init__(str(path), SlowAnswers)


class SlowAnswers(BaseHTTPRequestHandler):
    server: SlowLibrarian

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        answer: dict[str, Any] = {"n_tokens": 0, "is_new": False}
        if self.path == "/settings":
            answer = {"n_least": 256, "n_new": 64, "n_name": 200, "marks": [64]}
        else:
            self.server.asked.release()
            self.server.answers.wait(50)
        data = json.dumps(answer).encode() + b"\n"
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *arguments: Any) -> None:
        """Nothing."""


def test_other_slots_go_on_while_the_librarian_is_asked(
    serve: Any, short_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before a prompt is read, and when an answer is done; a request can be cancelled meanwhile."""
    monkeypatch.setenv("H2O_LLAMA_LIBRARIAN", str(short_path / "socket"))
    with (
        SlowLibrarian(short_path / "socket") as librarian,
        ThreadPoolExecutor(2) as pool,
    ):
        pool.submit(librarian.serve_forever)
        try:
            with serve("--parallel", "2", folder="off") as server:
                waiting = pool.submit(server.complete, DOCUMENT, id_slot=0)
                assert librarian.asked.acquire(timeout=60)
                for _ in range(2):  # nothing of it is in the library
                    server.complete("short", id_slot=1)
                assert not waiting.done()
                cancelled = HTTPConnection("127.0.0.1", server.port, timeout=60)
                cancelled.request("POST", "/completion", json.dumps({"prompt": OTHER, "id_slot": 1}))
                assert librarian.asked.acquire(timeout=60)
                cancelled.close()
                server.complete("short", id_slot=1)
                librarian.answers.set()
                first = waiting.result()
                librarian.answers.clear()
                assert librarian.asked.acquire(timeout=60)  # whether the text is new
                server.complete("short", id_slot=0)
                assert server.complete("short" * 9, id_slot=1, cache_prompt=False)["content"]
                librarian.answers.set()
                assert first["content"] == server.complete(DOCUMENT, cache_prompt=False)["content"]
        finally:
            librarian.answers.set()
            librarian.shutdown()


# --- what a browser sees


def test_the_list_and_what_is_removed(serve: Any, library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("H2O_LLAMA_LIBRARY_BYTES", "1000000000")  # else a part of what is free on the disk just now
    with serve() as server:
        server.complete(DOCUMENT)
        server.complete(OTHER)
        wait_for(lambda: len(texts(server)) == 2)
        found = server.get("/h2o/library")
        assert found.keys() == {"n_bytes", "limit_bytes", "texts"}
        assert 0 < found["n_bytes"] == library.n_bytes < found["limit_bytes"] == Library(library.folder).limit_bytes
        last, first = found["texts"]
        assert last.keys() == {"id", "name", "n_tokens", "n_bytes", "used"}
        assert first["name"] == " ".join(DOCUMENT[:200].split())[:40] + "…"
        assert last["n_tokens"] == len(OTHER) + 15
        assert last["used"] >= first["used"]
        for name in (first["id"][:-1], quote(first["name"]), "..%2F..", "0" * 24):
            assert server.request("DELETE", f"/h2o/library/{name}")[0] == 404
        assert server.request("DELETE", f"/h2o/library/{first['id']}") == (200, {"success": True})
        assert texts(server) == [last]
    with serve() as server:
        assert n_known(server.complete(DOCUMENT)) == 0
