"""Documents: files of all kinds as text, and why some have none. Through the server: test_doors.py."""

import re
from pathlib import Path

import pytest

from command_line import invoke
from compare import case
from documents import READ, UNREADABLE
from h2o_llama import Llama, documents, read_document
from h2o_llama.documents import SUFFIXES
from h2o_llama.library import Library
from spies import record_calls


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


IN_A_PROCESS = (".pdf", ".docx", ".epub", ".xlsx")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * name.endswith(IN_A_PROCESS)) for name in UNREADABLE]
)
def test_a_file_without_a_text_is_refused_by_name(name: str, tmp_path: Path, chat_model: Path, llm: Llama) -> None:
    content, reason = UNREADABLE[name]
    path = tmp_path / "texts" / name
    path.parent.mkdir()
    path.write_bytes(content)
    (tmp_path / "questions").write_text("What?")
    with pytest.raises(ValueError, match=re.escape(reason)):
        llm.ask(path, "What?")
    batch = ["--documents", path.parent, "--questions", tmp_path / "questions", "--out", tmp_path / "out"]
    for arguments in (
        ["run", chat_model, "--file", path, "-p", "What?"],
        ["chat", chat_model, "--file", path],
        ["ask", chat_model, path, "What?"],
        ["read", path, "--model", chat_model],
        ["inspect", chat_model, "--file", path],
        ["eval", chat_model, "--file", path],
        *([["batch", chat_model, *batch]] if path.suffix in SUFFIXES else []),  # of the others it reads none
    ):
        with case(arguments=arguments):
            result = invoke(*arguments)
            assert (result.exit_code, result.stderr.count(name)) == (1, 1)
            assert reason in result.stderr
