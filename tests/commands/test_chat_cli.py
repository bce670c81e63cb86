"""`h2o-llama chat`, and `run` with models that have a chat template."""

import io
import re
import sys
from pathlib import Path
from typing import Any

import pytest

import models
from chats import CHATML, dictate, rendered, user
from command_line import assert_one_line_error, h2o_set, invoke, succeeded
from h2o_llama import H2OError, H2OWarning, Llama, Model, document_messages
from h2o_llama._cli import ask, chat
from h2o_llama._cli.options import Options
from h2o_llama.chat._question import Question
from h2o_llama.chat.chat_completion import answer_to
from h2o_llama.sequence._state import State
from spies import record_calls

FAST = ["--threads", "1", *h2o_set(chunk_size=64)]
SYSTEM = "Answer questions about this text:\n\n"


@pytest.fixture
def chats(monkeypatch: pytest.MonkeyPatch) -> list[list[Any]]:
    """The messages of every answer. The model says "1", "2", ..."""
    calls: list[list[Any]] = []

    def spy(owner: str, state: State, question: Question, **options: Any) -> Any:
        calls.append(list(question.messages))
        return answer_to(owner, state, question, **options, logits_processor=dictate(str(len(calls))))

    monkeypatch.setattr(ask, "answer_to", spy)
    return calls


def assistant(content: str) -> dict[str, str]:
    return {"role": "assistant", "content": content}


def test_a_chat_goes_on(chat_model: Path, chats: list[list[Any]]) -> None:
    with pytest.warns(H2OWarning, match="no thoughts: think is ignored") as said:
        result = succeeded(invoke("chat", chat_model, *FAST, "--think", "on", stdin="one\n\n  two \n/quit\nthree\n"))
    assert len(said) == 1
    assert result.stdout == "1\n2\n"
    assert chats == [[user("one")], [user("one"), assistant("1"), user("two")]]


def test_commands_of_a_chat(chat_model: Path, chats: list[list[Any]]) -> None:
    result = invoke(
        "chat", str(chat_model), *FAST, stdin="/regen\none\n/image a\n/regen\n/reset\ntwo\n/help\n/nonsense x\n"
    )
    assert "start the chat with --mmproj FILE" in result.stderr
    assert result.stdout == "1\n2\n3\n"
    assert chats == [[user("one")], [user("one")], [user("two")]]
    assert "There is no answer yet." in result.stderr
    assert "There is no /nonsense." in result.stderr
    assert result.stderr.count("/inspect  what the last question read") == 2


def test_a_chat_about_two_documents_is_continued(
    chat_model: Path, chats: list[list[Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By --resume, and by its number in the list that was shown."""
    monkeypatch.setenv("H2O_LLAMA_LIBRARY", str(tmp_path / "library"))
    ducks, geese = tmp_path / "ducks.txt", tmp_path / "geese.txt"
    ducks.write_text("All about ducks. " * 30)
    geese.write_text("All about geese. " * 30)
    said = user("Which of them are larger, and why would anybody want to know that?")
    files = ["--file", ducks, "-f", geese, "--system", "Be brief."]
    told = invoke("chat", chat_model, *files, *FAST, stdin=f"{said['content']}\n").stderr
    assert "ducks.txt, geese.txt: read 1," in told
    assert f"`h2o-llama chat {chat_model} --resume` continues this chat." in told
    (first,) = chats
    assert first[0]["content"] == f"{SYSTEM}{ducks.read_text()}\n\n{SYSTEM}{geese.read_text()}\n\nBe brief."
    succeeded(invoke("read", geese, "--model", chat_model, *FAST))
    told = succeeded(invoke("chat", chat_model, "--resume", *FAST, stdin="/reset\nSure?\n")).stderr
    assert "assistant: 1\n" in told
    assert chats[1:] == [[first[0], user("Sure?")]]
    more = "Is that all that can be said about ducks, geese and whoever else has feathers? " * 4
    more = more.strip()
    told = succeeded(invoke("chat", chat_model, *FAST, stdin=f"/list\n{more}\n/switch 4\n{more}\n")).stderr
    assert re.search("\n  4  ducks.txt, geese.txt, 1,.* tokens: Which of them are larger", told), told
    assert chats[2:] == [[user(more)], [*first, assistant("1"), user(more)]]
    assert "name a file" in invoke("chat", chat_model, "--file", "-", *FAST, stdin="x").stderr
    assert "leave out --file" in invoke("chat", chat_model, "--resume", *files, *FAST).stderr


def test_a_short_chat_is_continued(
    chat_model: Path, chats: list[list[Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the last turn of a long one. Nothing is promised where nothing is kept."""
    monkeypatch.setenv("H2O_LLAMA_LIBRARY", str(tmp_path / "library"))
    said = [succeeded(invoke("chat", chat_model, *FAST, stdin=text)).stderr for text in ("/help\n", "Hi\n/reset\n")]
    assert "continues this chat" not in said[0] + said[1]
    for i in (1, 2):
        told = succeeded(invoke("chat", chat_model, "--resume", *FAST, stdin="So?\n")).stderr
        assert f"assistant: {i}\n" in told
        assert "--resume` continues this chat." in told
    assert [message["content"] for message in chats[-1]] == ["Hi", "1", "So?", "2", "So?"]


def test_what_the_heads_kept_of_a_chat(chat_model: Path, chats: list[list[Any]], tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("abc " * 100)
    for evict in ([], ["--evict"]):
        options = ["--file", str(tmp_path / "a.txt"), *evict, *h2o_set(chunk_size=256), "--threads", "1"]
        result = succeeded(invoke("chat", str(chat_model), *options, stdin="hi\n/inspect\n"))
        assert ("heavy hitters" if evict else "tokens read most") in result.stdout
    assert "H2O is off." in invoke("chat", str(chat_model), "--h2o", "off", stdin="/inspect\n").stderr
    assert "There is no question yet." in invoke("chat", str(chat_model), *FAST, stdin="/inspect\n").stderr


@pytest.mark.parametrize("error", [H2OError("no"), KeyboardInterrupt()])
def test_a_chat_stays_as_it_was_where_there_is_no_answer(
    chat_model: Path, chats: list[list[Any]], monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    """Neither to a message, nor once more: as when Ctrl-C comes while the prompt is read."""
    answer = ask.answer_to

    def fail_twice(owner: str, state: State, question: Question, **options: Any) -> Any:
        if len(chats) in (1, 2):
            chats.append(list(question.messages))
            raise error
        return answer(owner, state, question, **options)

    monkeypatch.setattr(ask, "answer_to", fail_twice)
    succeeded(invoke("chat", str(chat_model), *FAST, stdin="one\n/regen\nlost\ntwo\n"))
    first = [user("one"), assistant("1")]
    assert chats == [[user("one")], [user("one")], [*first, user("lost")], [*first, user("two")]]


def test_what_a_model_says_is_not_obeyed_by_a_terminal(chat_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file or another program gets every byte."""
    evil = "a\x1b[2J\x07b"
    monkeypatch.setattr(
        ask, "answer_to", lambda *asked, **options: answer_to(*asked, **options, logits_processor=dictate(evil))
    )
    assert succeeded(invoke("chat", str(chat_model), *FAST, stdin="one\n")).stdout == evil + "\n"
    terminal = io.StringIO()
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stdout", terminal)
    chat._Chat(Options(), Llama(chat_model, n_ctx=256, n_threads=1), [], []).say("one")
    assert terminal.getvalue() == "a␛[2J␇b\n"


def test_a_document_that_is_too_long_for_the_model(chat_model: Path, chats: list[list[Any]], tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("abc " * (models.N_CTX_TRAIN // 4))
    command = [str(chat_model), "--file", str(tmp_path / "a.txt"), "--threads", "1"]
    assert_one_line_error(invoke("chat", *command, stdin="hi\n"), "a.txt has 8,237 tokens, but .* 8,192: cut it")
    (tmp_path / "b.txt").write_text("abc")
    asked = invoke("ask", chat_model, tmp_path / "b.txt", "?" * models.N_CTX_TRAIN, "--threads", "1")
    assert_one_line_error(asked, r"the question about b.txt has 8,\d+ tokens, but .* 8,192: cut it, take")
    result = succeeded(invoke("chat", *command, "--evict", stdin="hi\n"))
    assert "[only the last " in result.stderr
    assert result.stdout == "1\n"


# --- run


def test_run_asks_as_ask_does(chat_model: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The document is read first, and the question's turn attends to all of it. Else there is no template."""
    evals = record_calls(monkeypatch, State, "read")
    (tmp_path / "a.txt").write_text("abc ")
    question = "?" * 200
    options = [str(chat_model), "--file", str(tmp_path / "a.txt"), "--prompt", question, "-n", "1", *FAST]
    asked = rendered(CHATML, document_messages("abc ", question), add_generation_prompt=True)
    assert "add --raw" in invoke("run", *options, "--save", str(tmp_path / "saved")).stderr
    for more in ([], ["--raw"]):
        succeeded(invoke("run", *options, *more))
    with Model(chat_model) as llm:
        parts = asked.partition("<|im_start|>user")
        begin, turn = (llm.tokenize(part, parse_special=True) for part in (parts[0], parts[1] + parts[2]))
    found = [(list(call["prompt"]), call["dense_tail"]) for call in evals]
    assert found == [(begin, 0), (turn, len(turn)), (list(("abc " + question).encode()), 128)]
