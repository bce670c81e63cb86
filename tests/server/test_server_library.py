"""`h2o-llama serve` and its library: a slot's texts are there after a restart, and for nobody else."""

import sqlite3
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from adapters import random_adapter
from chats import CHATML, TOOLS, tool, user, write_chat_model
from command_line import h2o_set
from compare import case
from h2o_llama import H2OConfig, Library, Llama, demo_model_path, document_messages
from inputs import ModelByName, random_tokens
from projectors import about, picture, png
from servers import DOCUMENT, OTHER, SETTINGS, TEXT, S, Server, leave, serving

pytestmark = pytest.mark.slow

QUESTION, SECOND = "\n    try:\n   pass\n    except Val", '\n    def read(self):\n        """Retu'
"""Each of the next 8 tokens leads by 0.4: where a reading is cut changes logits by 0.06."""
OPTIONS = ["--threads", "1", "--n-ctx", "2048"]


@pytest.fixture
def serve(tmp_path: Path, library: Library) -> Callable[..., Any]:
    """Starts a server with the library, one after another."""
    log = tmp_path / "log"

    @contextmanager
    def start(
        *options: str | Path, model: str | Path = "demo", folder: str | Path = library.folder
    ) -> Iterator[Server]:
        chunks = [] if "off" in options else h2o_set(chunk_size=S)
        with serving(log, model, *OPTIONS, *chunks, *options, library=folder) as server:
            yield server

    return start


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


def n_known(answer: Any) -> int:
    n: int = answer["timings"]["cache_n"]
    return n


@contextmanager
def held(library: Library) -> Iterator[None]:
    """No program can read the library's index, or change it."""
    index = library.folder / "texts" / "index.sqlite"
    with closing(sqlite3.connect(index, isolation_level=None)) as connection:
        connection.execute("PRAGMA locking_mode = EXCLUSIVE")
        connection.execute("BEGIN EXCLUSIVE")
        yield


def test_a_document_of_yesterday_is_found_today(
    serve: Any, library: Library, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By an answer and by the next server, which finds the answer's text as well."""
    dated = "Answer questions. " * 8 + "{{ strftime_now('%d %b %Y') }}\n" + CHATML
    model = write_chat_model(tmp_path / "model.gguf", dated)
    document, yesterday = "All about ducks. " * 80, time.time() - 86400
    with Llama(model, n_ctx=2048, h2o=H2OConfig(chunk_size=S), n_threads=1, library=library) as llm:
        monkeypatch.setattr(time, "time", lambda: yesterday)
        llm.create_chat_completion(document_messages(document, "Who?"), max_tokens=1)
        monkeypatch.undo()
    for question in ("What?", "When?"):
        with serve(model=model) as server:
            about = {"messages": document_messages(document, question), "max_tokens": 1}
            assert n_known(server.request("POST", "/v1/chat/completions", about)[1]) > len(document)


# --- restored texts


def n_left(prompt: str | list[int]) -> int:
    """Its last tile: by default a text is rewound to the start of a tile."""
    return (len(prompt) - 1) % H2OConfig().tile + 1


@pytest.mark.parametrize("name", ["keep", "evict", "cold", "dense"])
def test_python_and_the_server_share_a_library(serve: Any, library: Library, name: str) -> None:
    """It answers as one that has read all of it, and reads no more than the end again."""
    options, settings = SETTINGS[name]
    parting = 0 if name == "evict" else 5 * S  # tokens that a text which differs later can reuse
    h2o = None if settings is None else H2OConfig(chunk_size=S, **settings)
    prompt, second = DOCUMENT + QUESTION, DOCUMENT + SECOND

    def open_llama(library: Library | None = library) -> Llama:
        return Llama(demo_model_path(), h2o=h2o, library=library, n_ctx=2048, n_batch=S, n_threads=1)

    with open_llama() as llm:
        told = llm(prompt, max_tokens=8, temperature=0)["choices"][0]["text"]
    with open_llama(None) as llm:
        other = llm(second, max_tokens=8, temperature=0)["choices"][0]["text"]
    with serve(*options) as server:
        answer = server.complete(prompt, 8)
        assert n_known(answer) >= len(prompt) - 64
        assert answer["content"] == told
        server.complete(OTHER + QUESTION)
        wait_for(lambda: len(texts(server)) == 2)
        server.process.kill()
        server.process.wait()
    with serve(*options) as server:
        n_again = {"keep": n_left(prompt), "cold": 4}.get(name, 64)
        assert n_known(server.complete(prompt)) >= len(prompt) - n_again
    with serve(*options) as server:  # the document and another question in the same message
        answer = server.complete(second, 8)
        assert n_known(answer) >= (0 if name == "evict" else len(second) - 64)
        assert answer["content"] == other
    for tokens, least in ((OTHER + QUESTION, len(OTHER + QUESTION) - 64), (OTHER[: 5 * S + 7] + DOCUMENT, parting)):
        with open_llama() as llm:
            llm.eval(llm.tokenize(tokens))
            assert llm.n_cached >= least


# --- texts that are not kept, or not given


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


def test_what_leaves_nothing_and_what_is_written_when_a_server_is_stopped(serve: Any, library: Library) -> None:
    with serve() as server:
        server.complete(DOCUMENT, cache_prompt=False)
        server.complete(OTHER[:200])  # fewer tokens than are kept
        server.complete(OTHER)
        server.process.terminate()
        assert server.process.wait(30) == 0
    assert [text.n_tokens for text in library.texts()] == [len(OTHER) + 15]  # the last token was not read any more


def test_what_is_asked_once_around_a_conversation_is_not_kept(serve: Any, library: Library) -> None:
    """Titles and tags, as Open WebUI asks for them. Asked again, they are, as is another edition of a document."""
    question = user("28 November: " + DOCUMENT + QUESTION)
    for tasks, n_kept in ((["title", "tags", "follow-ups"], 1), (["title", "title"], 3)):
        with serve() as server:
            answer = server.chat([question], 16, ignore_eos=True)["choices"][0]["message"]
            history = f"<chat_history>\nUSER: {question['content']}\nASSISTANT: {answer['content']}\n</chat_history>"
            for task in tasks:
                server.chat([user(f"Task: write {task}.\n{history}")])
            if n_kept > 1:
                server.chat([user("29 November: " + DOCUMENT + QUESTION)])
        assert len(library.texts()) == n_kept


@pytest.mark.parametrize("more", [[], ["--", "--cache-ram", "0"]])
def test_a_conversation_goes_back_and_forth_between_two_lists_of_tools(
    serve: Any, tmp_path: Path, more: list[str]
) -> None:
    """As an agent's that switches modes: each list's text is its own, also where only the library has it."""
    model = write_chat_model(tmp_path / "model.gguf", TOOLS)
    plans, writes = ([tool(f"{name}{i}", "Does what is asked. " * 5) for i in range(5)] for name in ("plan", "write"))
    bias = [[i, False] for i in range(128, 256)]  # bytes that are not characters alone
    messages = [user(DOCUMENT[:400])]
    with serve(*more, model=model) as server:
        for turn, tools in enumerate((plans, writes, plans, writes, plans)):
            answer = server.chat(messages, 16, tools=tools, ignore_eos=True, logit_bias=bias)
            if turn > 1:
                assert answer["timings"]["prompt_n"] < 300, "more than the last two turns"
            n = answer["usage"]["total_tokens"] - 1
            wait_for(lambda n=n: not more or n in [text["n_tokens"] for text in texts(server)])
            messages += [answer["choices"][0]["message"], user(f"And then? {turn}")]


def test_what_adapters_of_a_request_have_computed_is_not_kept(
    serve: Any, model_by_name: ModelByName, tmp_path: Path
) -> None:
    """The adapters that the server was started with are a part of the model."""
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
    """A text without images is."""
    with serve("--mmproj", mmproj, model=chat_model) as server:
        server.chat([about("What is this? " * 20, png(picture(1)))])
        server.chat([user("What is this? " * 30)])
        wait_for(lambda: len(texts(server)) > 0)
        assert [text["name"] for text in texts(server)] == ["What is this? What is this? What is this…"]
    with serve("--mmproj", mmproj, model=chat_model) as server:
        assert n_known(server.chat([about("What is this? " * 20, png(picture(1)))])) == 0
        assert n_known(server.chat([user("What is this? " * 30)])) > 300


def test_a_text_of_other_options_is_not_taken(serve: Any) -> None:
    """Nor listed; nor one taken that a slot has no room for."""
    with serve() as server:
        server.complete(DOCUMENT)
        wait_for(lambda: len(texts(server)) == 1)
    for options in (["--", "--cache-type-k", "q8_0"], ["--n-ctx", "512"], h2o_set(sink_tokens=0)):
        with case(options=options), serve(*options) as server:
            assert (len(texts(server)), n_known(server.complete(DOCUMENT[:400]))) == ("--n-ctx" in options, 0)


# --- failures


def test_the_server_goes_on_where_nothing_can_be_kept(serve: Any, library: Library, tmp_path: Path) -> None:
    (library.folder / "blocks").write_text("no folder")
    with serve() as server:
        first = server.complete(DOCUMENT)
        assert server.complete(DOCUMENT, cache_prompt=False)["content"] == first["content"]
        assert n_known(server.complete(DOCUMENT + QUESTION)) > 0, "the slot has it"
        assert texts(server) == []
    assert "this text is not kept" in (tmp_path / "log").read_text()


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


def test_other_slots_go_on_while_the_library_is_asked(serve: Any, library: Library) -> None:
    """Before a prompt is read, and when an answer is done; a request can be cancelled meanwhile."""
    with serve("--parallel", "2") as server, ThreadPoolExecutor(1) as pool:
        short = partial(server.complete, "short", 2)  # nothing of it is in the library
        server.complete("Some other text. " * 30)
        wait_for(lambda: len(texts(server)) == 1)
        with held(library):
            waiting = pool.submit(server.complete, DOCUMENT, id_slot=0)
            wait_for(lambda: server.get("/slots")[0]["is_processing"])
            short(id_slot=1)
            leave(server, "/completion", {"prompt": OTHER, "id_slot": 1}).close()
            short(id_slot=1)
            assert not waiting.done()
        first = waiting.result(60)
        wait_for(lambda: len(texts(server)) == 2)
        body = {"prompt": OTHER, "n_predict": 40, "ignore_eos": True, "stream": True, "id_slot": 0}
        stream = leave(server, "/completion", body)
        answer = stream.getresponse()
        answer.readline()
        with held(library):
            answer.read()
            stream.close()
            for slot in (1, 0):  # the library has not said yet whether the text is new
                short(id_slot=slot)
        assert first["content"] == server.complete(DOCUMENT, cache_prompt=False)["content"]
        going_on = pool.submit(server.complete, "short", 1900, id_slot=1, ignore_eos=True)
        wait_for(lambda: server.get("/slots")[1]["is_processing"])
        last = server.complete(TEXT[3000:4500], id_slot=0)  # its state is copied between steps of slot 1
        assert not going_on.done()
        wait_for(lambda: last["tokens_evaluated"] + 15 in [text["n_tokens"] for text in texts(server)])
        server.process.kill()
        server.process.wait()
    with serve("--parallel", "2") as server:
        again = server.complete(TEXT[3000:4500])
        assert n_known(again) >= len(TEXT[3000:4500]) - 64
        assert again["content"] == last["content"]


# --- the list


def test_the_list_and_what_is_removed(serve: Any, library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("H2O_LLAMA_LIBRARY_BYTES", "1000000000")  # else a part of the disk's free space
    with serve() as server:
        server.complete(DOCUMENT)
        server.complete(OTHER)
        wait_for(lambda: len(texts(server)) == 2)
        found = server.get("/h2o/library")
        assert found.keys() == {"n_bytes", "limit_bytes", "texts"}
        assert 0 < found["n_bytes"] == library.n_bytes < found["limit_bytes"] == Library(library.folder).limit_bytes
        last, first = found["texts"]
        assert last.keys() >= {"id", "name", "document", "begin", "folder", "question", "n_tokens", "n_bytes", "used"}
        assert first["name"] == " ".join(DOCUMENT[:200].split())[:40] + "…"
        assert last["n_tokens"] == len(OTHER) + 15
        assert last["used"] >= first["used"]
        for name in (first["id"][:-1], quote(first["name"]), "..%2F..", "0" * 24):
            assert server.request("DELETE", f"/h2o/library/{name}")[0] == 404
        assert server.request("DELETE", f"/h2o/library/{first['id']}") == (200, {"success": True})
        assert texts(server) == [last]
    with serve() as server:
        assert n_known(server.complete(DOCUMENT)) == 0
        wait_for(lambda: len(texts(server)) == 2)
        server.request("DELETE", f"/h2o/library/{texts(server)[0]['id']}")
        assert n_known(server.complete(DOCUMENT)) > 0, "the slot has it"
        wait_for(lambda: len(texts(server)) == 2)
