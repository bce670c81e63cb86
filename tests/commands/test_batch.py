"""`h2o-llama batch`: the same questions about many documents."""

import json
import os
import re
import signal
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import Result

import models
from chats import CHATML, INSTRUCT, user, write_chat_model
from command_line import h2o_set, invoke, succeeded
from compare import case
from h2o_llama import H2OConfig, Llama
from h2o_llama.batch import (
    Answerer,
    AnswersFile,
    BatchSettings,
    Question,
    find_documents,
    make_questions,
    read_questions,
)
from h2o_llama.documents import ABOUT_A_DOCUMENT
from spies import record_calls

CHUNK = 64
N = 6  # tokens of an answer
DOCUMENTS = {"a.txt": "All about ducks. " * 20, "sub/b.md": "Geese are no ducks. " * 15, "sub/long.RST": "quack " * 700}
QUESTIONS = ["What is this?", "Wann?", "Why are there ducks in it, and no geese?"]
CONFIGS: dict[str, tuple[list[str], H2OConfig | None]] = {
    "h2o": (h2o_set(local_window=8, heavy_budget=16), H2OConfig(chunk_size=CHUNK, local_window=8, heavy_budget=16)),
    "cold-store": (["--evict", "--cold-store", "memory"], H2OConfig(chunk_size=CHUNK, evict=True, cold_store="memory")),
    "dense": (["--h2o", "off"], None),
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder of documents, and next to it a file of questions."""
    for name, text in DOCUMENTS.items():
        path = tmp_path / "documents" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (tmp_path / "documents" / "picture.png").write_bytes(b"\x89PNG")
    (tmp_path / "questions.txt").write_text("\n".join(["", *QUESTIONS, ""]))
    return tmp_path


def run_batch(folder: Path, model: Path, *options: str | Path) -> Result:
    files = [
        "--documents",
        folder / "documents",
        "--questions",
        folder / "questions.txt",
        "--out",
        folder / "out.jsonl",
    ]
    chunks = [] if "off" in options else h2o_set(chunk_size=CHUNK)
    return invoke("batch", model, *files, "-n", N, *chunks, "--threads", 1, *options)


def rows_of(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "out.jsonl").read_text().splitlines()]


def answers_of(folder: Path) -> dict[tuple[str, str], str]:
    """By document and question."""
    rows = rows_of(folder)
    answers = {(row["document"], row["question_id"]): row["answer"] for row in rows}
    assert len(answers) == len(rows)
    return answers


@pytest.mark.parametrize(
    ("template", "config"),
    [(CHATML, "h2o"), (CHATML, "dense"), (INSTRUCT, "cold-store")],
    ids=["h2o", "dense", "no-system-role-cold-store"],
)
def test_answers_are_those_of_one_chat_each(
    template: str, config: str, folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Every document is read once; the longest does not fit into the first context."""
    model = write_chat_model(tmp_path / "model.gguf", template)
    options, h2o = CONFIGS[config]
    evaluated = record_calls(monkeypatch, Llama, "eval")
    result = succeeded(run_batch(folder, model, *options, "--parallel", "2"))
    assert len(evaluated) == len(DOCUMENTS)
    assert "left out, no documents by their suffixes: picture.png" in result.stderr
    assert f"{len(DOCUMENTS) * len(QUESTIONS)} answers added" in result.stderr

    expected = {}
    with Llama(model, n_ctx=6000, n_threads=1, h2o=h2o) as llm:
        for row in rows_of(folder):
            text, question = DOCUMENTS[row["document"]], row["question"]
            assert row["cached_tokens"] >= len(text)
            assert row["read_tokens"] < len(question) + 30
            completion = llm.create_chat_completion(
                [{"role": "system", "content": ABOUT_A_DOCUMENT + text}, user(question)],
                temperature=0,
                max_tokens=N,
                reuse=question != QUESTIONS[0],
                # without a system's message, the document is part of the last one
                dense_tail=None if template == CHATML else row["read_tokens"],
            )
            expected[row["document"], question] = completion["choices"][0]["message"]["content"]
    assert answers_of(folder) == expected
    assert len(expected) == len(DOCUMENTS) * len(QUESTIONS)


def test_a_run_that_was_cut_off_goes_on(
    chat_model: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, ctrl_c: None
) -> None:
    """Ctrl-C leaves whole lines; of a line that is torn the answer is made again."""
    (folder / "documents" / "sub" / "long.RST").unlink()
    succeeded(run_batch(folder, chat_model))
    expected = answers_of(folder)
    (folder / "out.jsonl").unlink()

    add, n_added = AnswersFile.add, 0

    def press(answers: AnswersFile, answer: Any) -> None:
        nonlocal n_added
        add(answers, answer)
        n_added += 1
        if n_added == 4:
            os.kill(os.getpid(), signal.SIGINT)

    with monkeypatch.context() as patch:
        patch.setattr(AnswersFile, "add", press)
        assert run_batch(folder, chat_model).exit_code != 0
    lines = (folder / "out.jsonl").read_bytes().splitlines(keepends=True)
    assert len(rows_of(folder)) == 4
    (folder / "out.jsonl").write_bytes(b"".join(lines[:3]) + lines[3][:100])

    result = run_batch(folder, chat_model)
    assert f"{len(expected) - 3} answers added" in result.stderr
    assert (folder / "out.jsonl").read_bytes().splitlines(keepends=True)[:3] == lines[:3]
    assert answers_of(folder) == expected

    content = (folder / "out.jsonl").read_bytes()
    assert "\n0 answers added" in run_batch(folder, chat_model).stderr
    assert (folder / "out.jsonl").read_bytes() == content


def test_only_what_is_new_is_asked(chat_model: Path, folder: Path) -> None:
    run_batch(folder, chat_model)
    before = rows_of(folder)
    (folder / "documents" / "a.txt").write_text("Now about swans.")
    (folder / "questions.txt").write_text("\n".join(["A new one?", *QUESTIONS]))
    succeeded(run_batch(folder, chat_model))
    assert rows_of(folder)[: len(before)] == before
    added = rows_of(folder)[len(before) :]
    assert sorted((row["document"], row["question"]) for row in added) == sorted(
        [("a.txt", question) for question in ["A new one?", *QUESTIONS]]
        + [(name, "A new one?") for name in DOCUMENTS if name != "a.txt"]
    )


def test_answers_of_other_settings_are_other_answers(chat_model: Path, one_layer_model: Path, folder: Path) -> None:
    (folder / "documents" / "sub" / "long.RST").unlink()
    run_batch(folder, chat_model)
    content = (folder / "out.jsonl").read_bytes()
    n, others = len(rows_of(folder)), [(chat_model, ["--max-tokens", "7"]), (chat_model, h2o_set(heavy_budget=5))]
    for i, (model, options) in enumerate([*others, (one_layer_model, []), (chat_model, ["--h2o", "off"])], 2):
        succeeded(run_batch(folder, model, *options))
        assert len(rows_of(folder)) == n * i
    assert "\n0 answers added" in run_batch(folder, chat_model).stderr
    (folder / "out.jsonl").write_text("notes\n" + content.decode())
    assert "line 1 of" in run_batch(folder, chat_model).stderr
    (folder / "out.jsonl").write_bytes(content)
    fingerprint, settings = rows_of(folder)[0]["fingerprint"], rows_of(folder)[0]["settings"]
    with AnswersFile(folder / "out.jsonl", fingerprint, settings):
        assert "another run is adding to" in run_batch(folder, chat_model).stderr


def test_what_is_no_document(chat_model: Path, folder: Path) -> None:
    """Hidden files, the questions, and the answers themselves."""
    documents = folder / "documents"
    for name in (".git/x.txt", "sub/.hidden.md"):
        (documents / name).parent.mkdir(exist_ok=True)
        (documents / name).write_text("no document")
    (documents / "questions.txt").write_text("What is this?")
    for _ in range(2):
        files = ["--documents", documents, "--questions", documents / "questions.txt", "--out", documents / "out.txt"]
        succeeded(invoke("batch", chat_model, *files, "-n", N, *h2o_set(chunk_size=CHUNK), "--threads", 1))
        rows = [json.loads(line) for line in (documents / "out.txt").read_text().splitlines()]
        assert sorted(row["document"] for row in rows) == sorted(DOCUMENTS)


def test_what_fails_is_told_and_the_rest_goes_on(chat_model: Path, folder: Path) -> None:
    bad = {"latin.txt": "Gänse".encode("latin-1"), "too-long.txt": b"x" * models.N_CTX_TRAIN}
    for name, content in bad.items():
        (folder / "documents" / name).write_bytes(content)
    with (folder / "questions.txt").open("a") as file:
        file.write("y" * (models.N_CTX_TRAIN - 4100))
    for _ in range(2):  # what failed is tried again
        result = run_batch(folder, chat_model)
        assert result.exit_code == 1
        assert "latin.txt is not UTF-8: byte 0xe4 at 1" in result.stderr
        assert "\ntoo-long.txt has 8,2" in result.stderr
        errors = [row for row in rows_of(folder) if row["error"] is not None]
        assert [(row["document"], row["question_id"] and row["question_id"][:1]) for row in errors] == [
            ("latin.txt", None),
            ("sub/long.RST", "y"),
            ("too-long.txt", None),
        ]
        assert "but this model reads 8,192: cut it" in errors[1]["error"]
        assert len(rows_of(folder)) - len(errors) == len(DOCUMENTS) * len(QUESTIONS) + 2
    for name in bad:
        (folder / "documents" / name).write_text("now short")
    assert run_batch(folder, chat_model).stderr.endswith("; 1 error\n")
    assert [row["document"] for row in rows_of(folder) if row["error"] is not None] == ["sub/long.RST"]


def test_questions_from_a_file(tmp_path: Path) -> None:
    """Half of a surrogate pair is not a character."""
    path = tmp_path / "questions"
    for content, expected in [
        (
            b'{"id": 1, "question": " Who?\xe2\x80\xa8"}\n\n{"question": "Wo, \\ud83e\\udd86\\ud800", "more": []}\n',
            [Question("1", "Who?"), Question("Wo, 🦆?", "Wo, 🦆?")],
        ),
        (b"", "there are no questions"),
        (b"Who?\n Who?", "two questions have the id 'Who\\?'"),
        (b'{"id": 1, "question": "Who?"}\nWhere?', "line 2 of .* must be JSON such as"),
        (b'{"id": []}', "line 1 of"),
        (b'{"id": 1, "question": " "}', "question '1' is empty"),
        (b"Wo \xe4?", "must be UTF-8: .* at byte 3"),
    ]:
        path.write_bytes(content)
        with case(content=content):
            if isinstance(expected, list):
                assert read_questions(path) == expected
            else:
                with pytest.raises(ValueError, match=expected):
                    read_questions(path)


def test_names_that_are_no_text_are_told_apart(tmp_path: Path) -> None:
    for name in (b"\xfe.txt", b"\xff.txt", "ä.txt".encode()):
        try:
            (tmp_path / os.fsdecode(name)).write_text("x")
        except OSError:
            pytest.skip("file names are text here")
    assert list(find_documents(tmp_path)) == [r"\xfe.txt", r"\xff.txt", "ä.txt"]


# --- from Python


def test_the_program_for_ray_by_a_plain_map(chat_model: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The documentation's: its rows are those of the file of answers, with their settings as text."""
    written: list[dict[str, Any]] = []

    def flat_map(actor: Any, **options: Any) -> Any:
        answers, rows = actor(), [{"name": name, "text": text} for name, text in DOCUMENTS.items()]
        return SimpleNamespace(write_json=lambda path: written.extend(row for given in rows for row in answers(given)))

    data: Any = SimpleNamespace(ActorPoolStrategy=dict, read_parquet=lambda path: SimpleNamespace(flat_map=flat_map))
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(data=data))  # type: ignore[arg-type]
    monkeypatch.setitem(sys.modules, "ray.data", data)
    page = (Path(__file__).parents[2] / "docs" / "batch.md").read_text()
    (code,) = re.findall(r"```python\n(import json\n.*?)```", page, re.DOTALL)
    assert code.count('"model.gguf"') == code.count("n_threads=4") == 1
    code = code.replace('"model.gguf"', repr(str(chat_model))).replace("n_threads=4", "n_threads=1")
    exec(code, {"__name__": "program"})
    with Answerer(chat_model, BatchSettings(max_tokens=64), n_threads=1) as answerer:
        questions = make_questions(["Who signed it?", "When?"])
        for name in DOCUMENTS:
            for expected in answerer.answer_file(name, folder / "documents" / name, questions):
                found = written.pop(0)
                assert json.loads(found["settings"]) == expected["settings"]
                assert found.keys() == expected.keys()
                assert all(found[name] == expected[name] for name in ("document", "question", "answer", "error"))
    assert not written
