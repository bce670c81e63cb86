"""What a batch is given: documents, questions and settings; and the file of its answers."""

import hashlib
import json
import os
import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from filelock import Timeout
from typing_extensions import Self

from h2o_llama._internal import check
from h2o_llama._internal.atomic import alone_with, replacing
from h2o_llama._thoughts import check_think
from h2o_llama.chat._generation import MAX_TOKENS
from h2o_llama.config import H2OConfig, named_config
from h2o_llama.documents import SUFFIXES, text_of
from h2o_llama.library._library import Library
from h2o_llama.sampling import Sampling

_OWNER = "batch"


@dataclass(frozen=True)
class Document:
    """A text that questions are about. Answers call it by its `name`; `sha256` is of its bytes, in hexadecimal."""

    name: str
    text: str
    sha256: str

    @classmethod
    def of_text(cls, name: str, text: str) -> Self:
        """A text that comes from no file."""
        # half of a surrogate pair is not a character
        content = text.encode(errors="replace")
        return cls(name, content.decode(), hashlib.sha256(content).hexdigest())


def find_documents(folder: str | os.PathLike[str], left_out: dict[str, Path] | None = None) -> dict[str, Path]:
    """The documents in a folder and the folders in it, by their names: paths in the folder, sorted.

    They are known by the ends of their names: text, Markdown, HTML, PDF, CSV, JSON, source code. `left_out` gets
    other files. Files and folders whose names begin with a dot are in neither.

    Raises ValueError if it is not a folder, or has no documents.
    """
    root = Path(folder)
    if not root.is_dir():
        raise ValueError(f"[batch] documents must be a folder, got {root}")
    found = [path for path in sorted(root.rglob("*")) if path.is_file()]
    seen = {
        _name(path.relative_to(root)): path
        for path in found
        if not re.search(r"(^|/)\.", path.relative_to(root).as_posix())
    }
    files = {name: path for name, path in seen.items() if path.suffix.lower() in SUFFIXES}
    if not files:
        raise ValueError(f"[batch] {root} has no documents: their names end with .txt, .pdf, .docx, .eml or the like")
    if left_out is not None:
        left_out.update((name, path) for name, path in seen.items() if name not in files)
    return dict(sorted(files.items()))


def _name(path: Path) -> str:
    """On Linux a file's name may be any bytes: invalid UTF-8 is written as \\xff."""
    return os.fsencode(path.as_posix()).decode(errors="backslashreplace")


def read_file(name: str, path: str | os.PathLike[str], library: Library | None = None) -> Document:
    """Read a file. Raises as `documents.read_document`."""
    content = Path(path).read_bytes()
    text = text_of(content, name, None if library is None else library.folder)
    return Document(name, text, hashlib.sha256(content).hexdigest())


@dataclass(frozen=True)
class Question:
    """A question about every document. Answers call it by its `id`; `text` has no white space around it."""

    id: str
    text: str


def make_questions(questions: Iterable[str | Question]) -> list[Question]:
    """Questions with ids; that of a text is the text itself, so that it keeps its answers wherever it stands.

    Raises ValueError if there are none, one is empty, or two have the same id.
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

    Raises OSError if it cannot be read; ValueError as `make_questions`, or if it is not UTF-8, or a line is not {"id":
    …, "question": …}.
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


@dataclass(frozen=True)
class BatchSettings:
    """How documents are read and questions answered. Raises ValueError if a value is bad.

    `h2o` is as in `Llama`; a model that H2O cannot work with needs "auto" or None, dense attention. `max_tokens`,
    `temperature` and `think` are as in `Llama.create_chat_completion`. With a temperature, documents, and questions
    that are asked together, are drawn by seeds made from `seed`.
    """

    h2o: H2OConfig | Literal["auto", "fast", "balanced", "faithful"] | None = "auto"
    max_tokens: int = MAX_TOKENS
    temperature: float = 0.0
    seed: int = 0
    think: bool | int | None = None

    def __post_init__(self) -> None:
        check.integer(_OWNER, "max_tokens", self.max_tokens, 1)
        check.integer(_OWNER, "seed", self.seed, 0)
        check_think(_OWNER, self.think, None)
        Sampling(temperature=self.temperature)
        config = named_config(_OWNER, self.h2o)
        if not (config is None or isinstance(config, H2OConfig)):
            raise check.bad_argument(_OWNER, "h2o", "an H2OConfig, 'auto' or None", self.h2o)

    def to_json(self) -> dict[str, Any]:
        """As an answer tells them. Where a cold store is does not matter, only whether there is one."""
        config = named_config(_OWNER, self.h2o)
        values = asdict(replace(self, h2o=config))
        if config is not None and config.cold_store is not None:
            values["h2o"]["cold_store"] = "memory"
        as_read: dict[str, Any] = json.loads(json.dumps(values))  # without tuples
        return as_read


Answer = dict[str, Any]
"""A line of the file, with the keys of `KEYS`."""

KEYS = (
    *("document", "sha256", "question_id", "question", "answer", "reasoning", "finish_reason"),
    *("cached_tokens", "read_tokens", "generated_tokens", "document_seconds", "library_tokens", "seconds"),
    *("model", "fingerprint", "settings", "error", "note"),
)
"""What an answer tells; what does not apply to one is None."""


class AnswersFile:
    """A file of JSON lines, to which each answer is added at once.

    The incomplete line of an interrupted run is dropped, and so are errors: these questions are asked again. Answers of
    another model or with other settings stay, and are other answers.

    Raises ValueError if it holds something else; OSError if it cannot be read or written, or another run is adding to
    it.

    The file need not exist. `fingerprint` and `settings` are the model and the settings of the answers to be added.
    """

    def __init__(self, path: str | os.PathLike[str], fingerprint: str, settings: dict[str, Any]) -> None:
        self._path = Path(path)
        self._file = self._path.open("ab")
        self._alone = alone_with(self._path, 0)
        try:
            self._alone.acquire()
            content = self._path.read_bytes()
            answers = [self._parse(i, line) for i, line in enumerate(content.split(b"\n")[:-1], 1)]
            kept = [answer for answer in answers if answer["error"] is None]
            if len(kept) < len(answers) or content[-1:] not in (b"", b"\n"):
                with replacing(self._path) as file:
                    file.writelines(map(_line, kept))
                self._file.close()
                self._file = self._path.open("ab")
        except BaseException as error:
            self.close()
            if isinstance(error, Timeout):
                message = f"[batch] another run is adding to {path}: wait for it, or name another file"
                raise OSError(message) from error
            raise
        of = {"fingerprint": fingerprint, "settings": settings}
        self._known = {_key(answer) for answer in kept if of.items() <= answer.items()}

    def missing(self, files: dict[str, Path], questions: list[Question]) -> dict[str, list[Question]]:
        """The questions without an answer about the present content of each document, by its name."""
        known = {name for name, *_ in self._known}
        missing = {}
        for name, path in files.items():
            if name not in known:  # it need not be read
                missing[name] = questions
                continue
            try:
                digest = hashlib.sha256(path.read_bytes()).hexdigest()
            except OSError:  # reading it will fail, too
                digest = ""
            missing[name] = [q for q in questions if (name, digest, q.id, q.text) not in self._known]
        return {name: some for name, some in missing.items() if some}

    def add(self, answer: Answer) -> None:
        """Write an answer, whole lines at a time."""
        self._file.write(_line(answer))
        self._file.flush()
        self._known.add(_key(answer))

    def close(self) -> None:
        """Close the file."""
        self._file.close()
        self._alone.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _parse(self, i: int, line: bytes) -> Answer:
        try:
            answer = json.loads(line)
        except ValueError:  # no JSON, or no UTF-8
            answer = None
        if not isinstance(answer, dict) or answer.keys() != set(KEYS):
            raise ValueError(
                f"[batch] line {i} of {self._path} is not an answer of this command: name another file, or remove it"
            )
        return answer


def _key(answer: Answer) -> tuple[str, str, str, str]:
    return answer["document"], answer["sha256"], answer["question_id"], answer["question"]


def _line(answer: Answer) -> bytes:
    return json.dumps(answer, ensure_ascii=False).encode() + b"\n"
