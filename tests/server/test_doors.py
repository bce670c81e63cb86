"""The same completions through every door: `Llama`, `h2o-llama serve`, `run`, `chat`, `ask` and `batch`."""

import random
import re
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import partial
from pathlib import Path

import pytest

from chats import write_model_of_calls
from command_line import invoke, succeeded
from compare import case
from documents import READ, UNREADABLE
from doors import ANSWERED, MESSAGES, PICKY, REFUSED, Fields, Refused, ask_llama, ask_server
from h2o_llama import H2OConfig, Llama, demo_model_path, document_messages, documents, read_document
from h2o_llama.documents import SUFFIXES
from h2o_llama.library import Library
from h2o_llama.sequence._state import State
from servers import Server, ServerOf
from spies import record_calls

Door = Callable[[Fields], Fields | Refused | None]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("doors") / "model.gguf"
    return write_model_of_calls(demo_model_path(), path, PICKY)


@pytest.fixture(scope="module")
def llm(model: Path) -> Iterator[Llama]:
    with Llama(model, n_ctx=2048, n_threads=1) as llm:
        yield llm


@pytest.fixture
def server(model: Path, server_of: ServerOf) -> Server:
    return server_of(model, "--threads", "1", "--parallel", "2", "--n-ctx", "2048")


@pytest.fixture(params=["Llama", pytest.param("serve", marks=pytest.mark.slow)])
def doors(request: pytest.FixtureRequest, model: Path, llm: Llama) -> tuple[str, list[Door]]:
    """The name of a door; its answers at once, and as a stream."""
    if request.param == "Llama":
        return request.param, [partial(ask_llama, llm), partial(ask_llama, llm, stream=True)]
    server = request.getfixturevalue("server")
    return request.param, [partial(ask_server, server), partial(ask_server, server, stream=True)]


def test_all_answer_alike(doors: tuple[str, list[Door]], llm: Llama) -> None:
    n_answers = 0
    for fields in ANSWERED:
        asked = fields if "prompt" in fields else {**MESSAGES, **fields}
        with case(fields=fields):
            expected = ask_llama(llm, asked)
            assert isinstance(expected, dict), expected
            for door in doors[1][doors[0] == "Llama" :]:  # what is expected is that door's
                found = door(asked)
                if found is not None:
                    assert isinstance(found, dict), found
                    assert found == {name: expected[name] for name in found}
                    n_answers += 1
    assert n_answers > 5


def test_all_refuse_the_same(doors: tuple[str, list[Door]], capfd: pytest.CaptureFixture[str]) -> None:
    """With the reason; this process prints nothing."""
    name, (ask, *_) = doors
    capfd.readouterr()
    n_refused = 0
    for fields, by_server, by_llama in REFUSED:
        said = {"serve": by_server and re.escape(by_server), "Llama": by_llama}[name]
        if said is not None:
            with case(fields=fields):
                found = ask(fields if "prompt" in fields else {**MESSAGES, **fields})
                assert isinstance(found, Refused)
                assert re.search(said, found)
                n_refused += 1
    assert n_refused > 5
    assert capfd.readouterr() == ("", "")


# --- documents


@pytest.mark.parametrize("name", READ)
def test_a_document_is_its_text(name: str, tmp_path: Path) -> None:
    content, text = READ[name]
    (tmp_path / name).write_bytes(content)
    assert read_document(tmp_path / name) == text


def test_a_document_is_extracted_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a process of its own, page by page; kept until a text is removed from the library."""
    content, text = READ["a.pdf"]
    pages = record_calls(monkeypatch, documents, "iterate_apart")
    told: list[tuple[int, int]] = []
    for _ in range(2):
        assert documents.text_of(content, "a.pdf", tmp_path, lambda *page: told.append(page)) == text
    assert (len(pages), told) == (1, [(1, 3), (2, 3), (3, 3)])
    assert (tmp_path / "documents").stat().st_mode & 0o077 == 0
    Library(tmp_path).clear()
    assert not (tmp_path / "documents").exists()


@pytest.mark.parametrize("name", UNREADABLE)
def test_a_file_without_a_text_is_refused_by_name(name: str, tmp_path: Path, model: Path, llm: Llama) -> None:
    content, reason = UNREADABLE[name]
    path = tmp_path / "texts" / name
    path.parent.mkdir()
    path.write_bytes(content)
    (tmp_path / "questions").write_text("What?")
    with pytest.raises(ValueError, match=re.escape(reason)):
        llm.ask(path, "What?")
    batch = ["--documents", path.parent, "--questions", tmp_path / "questions", "--out", tmp_path / "out"]
    for arguments in (
        ["run", model, "--file", path, "-p", "What?"],
        ["chat", model, "--file", path],
        ["ask", model, path, "What?"],
        ["read", path, "--model", model],
        ["inspect", model, "--file", path],
        ["eval", model, "--file", path],
        *([["batch", model, *batch]] if path.suffix in SUFFIXES else []),  # of the others it reads none
    ):
        with case(arguments=arguments):
            result = invoke(*arguments)
            assert (result.exit_code, result.stderr.count(name)) == (1, 1)
            assert reason in result.stderr


QUESTIONS = ["What is it?", "Who wrote it?"]
FAST = ["--threads", "1", "-n", "3", "--h2o-set", "chunk_size=64"]


def ask_python(model: Path, file: Path, form: str) -> None:
    """By `ask`, or as a program with OpenAI's client does."""
    with Llama(model, h2o=H2OConfig(chunk_size=64), n_threads=1, n_ctx=2048, library=True) as llm:
        if form == "ask":
            llm.ask(file, QUESTIONS, max_tokens=3)
        else:
            llm.create_chat_completion(document_messages(read_document(file), QUESTIONS[0]), max_tokens=3)


def ask_batch(model: Path, file: Path) -> None:
    (file.parent.parent / "questions").write_text("\n".join(QUESTIONS))
    files = ["--questions", file.parent.parent / "questions", "--out", file.parent.parent / "out"]
    succeeded(invoke("batch", model, "--documents", file.parent, *files, *FAST))


ASK: dict[str, Callable[[Path, Path], object]] = {
    "run": lambda model, file: succeeded(invoke("run", model, "-f", file, "-p", QUESTIONS[0], *FAST)),
    "chat": lambda model, file: succeeded(invoke("chat", model, "-f", file, *FAST, stdin="\n".join(QUESTIONS))),
    "ask": lambda model, file: succeeded(invoke("ask", model, file, *QUESTIONS, *FAST)),
    "read": lambda model, file: succeeded(invoke("read", file, "--model", model, *FAST[:2], *FAST[4:])),
    "batch": ask_batch,
    "Llama.ask": partial(ask_python, form="ask"),
    "messages": partial(ask_python, form="messages"),
}
"""The doors to questions about a file."""


@pytest.mark.parametrize("first", ASK)
def test_one_file_is_read_once(first: str, chat_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever asks about it first, and in whatever order the others follow."""
    file = tmp_path / "texts" / "a.html"
    file.parent.mkdir()
    file.write_bytes(b"<html><p>" + b"All about ducks. " * 70)
    reads = record_calls(monkeypatch, State, "eval")
    others = sorted(ASK.keys() - {first})
    random.Random(first).shuffle(others)
    for door in (first, *others):
        with case(doors=[first, *others], door=door):
            ASK[door](chat_model, file)
            n_long = sum(len(call["prompt"]) > 200 for call in reads if not call["decode"])
            assert n_long == 1


def test_a_reading_that_is_interrupted_keeps_whole_chunks(chat_model: Path, tmp_path: Path) -> None:
    tokens = [97] * 1000

    def stop(n_done: int, n: int) -> None:
        if n_done > 640:
            raise KeyboardInterrupt

    for n_known in (0, 640):
        with Llama(chat_model, h2o=H2OConfig(chunk_size=64), n_threads=1, n_ctx=1024, library=tmp_path) as llm:
            with pytest.raises(KeyboardInterrupt) if n_known == 0 else nullcontext():
                llm.eval(tokens, progress=stop if n_known == 0 else None)
            assert llm.n_cached == n_known


def test_where_texts_are_kept_is_said_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("H2O_LLAMA_LIBRARY", str(tmp_path / "library"))
    first, second = (invoke("run", "demo", "-p", "x", "-n", "1", "--threads", "1").stderr for _ in range(2))
    assert f"Texts are kept in {tmp_path}/library once read" in first
    assert "Texts are kept" not in second
