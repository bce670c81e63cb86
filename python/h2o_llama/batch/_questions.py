"""The questions of a batch."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Question:
    """A question about every document.

    Parameters
    ----------
    id : str
        What answers call it.
    text : str
        The question, without white space around it.
    """

    id: str
    text: str


def make_questions(questions: Iterable[str | Question]) -> list[Question]:
    """Questions with ids; that of a text is the text itself, so that it keeps its answers wherever it stands.

    Raises
    ------
    ValueError
        If there are none, one is empty, or two have the same id.
    """
    made: dict[str, Question] = {}
    for given in [questions] if isinstance(questions, str) else questions:
        question = given if isinstance(given, Question) else Question(str(given).strip(), str(given))
        # half of a surrogate pair is not a character
        question = Question(*(part.encode(errors="replace").decode().strip() for part in (question.id, question.text)))
        if not question.text:
            raise ValueError(f"[batch] question {question.id!r} is empty")
        if question.id in made:
            raise ValueError(f"[batch] two questions have the id {question.id!r}: give each its own")
        made[question.id] = question
    if not made:
        raise ValueError("[batch] there are no questions")
    return list(made.values())


def read_questions(path: str | os.PathLike[str]) -> list[Question]:
    """Read a file with a question on each line, or, if the first line begins with {, with JSON on each.

    Raises
    ------
    OSError
        If it cannot be read.
    ValueError
        As `make_questions`; or if the file is not UTF-8, or a line is not {"id": …, "question": …}.
    """
    try:
        text = Path(path).read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"[batch] {path} must be UTF-8: {error.reason} at byte {error.start}") from error
    lines = [(i, line.strip()) for i, line in enumerate(text.split("\n"), 1) if line.strip()]
    if not lines or not lines[0][1].startswith("{"):
        return make_questions(line for _, line in lines)
    return make_questions(_parse(f"line {i} of {path}", line) for i, line in lines)


def _parse(where: str, line: str) -> Question:
    try:
        value = json.loads(line)
    except ValueError:
        value = None
    text = value.get("question") if isinstance(value, dict) else None
    id_ = value.get("id", text) if isinstance(value, dict) else None
    if not isinstance(text, str) or not isinstance(id_, str | int):
        raise ValueError(f'[batch] {where} must be JSON such as {{"id": "who", "question": "Who signed it?"}}')
    return Question(str(id_), text)
