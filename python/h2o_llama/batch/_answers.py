"""Answers, and their file."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, BinaryIO

from h2o_llama._internal.atomic import replacing
from h2o_llama.batch._inputs import BatchSettings, Question, read_document

try:
    import fcntl
except ImportError:  # not on this system
    fcntl = None  # type: ignore[assignment]

Answer = dict[str, Any]
"""A line of the file, with the keys of `ANSWER_TYPES`."""

ANSWER_TYPES: dict[str, type] = {
    "document": str,
    "sha256": str,
    "question_id": str,
    "question": str,
    "answer": str,
    "reasoning": str,
    "finish_reason": str,
    "cached_tokens": int,
    "read_tokens": int,
    "generated_tokens": int,
    "document_seconds": float,
    "seconds": float,
    "model": str,
    "fingerprint": str,
    "settings": dict,
    "error": str,
}
"""Names and types of what an answer tells; what does not apply to one is None."""

_IDENTITY = ("document", "sha256", "question_id", "question", "answer", "model", "fingerprint", "settings", "error")
"""What every version has told. What else is missing was not known to the version that wrote the answer."""


class AnswersFile:
    """A file of JSON lines, to which each answer is added at once.

    The incomplete line of an interrupted run is dropped, and so are errors: these questions are asked again.

    Parameters
    ----------
    path : str or os.PathLike
        It need not exist.
    fingerprint, settings
        Model and settings of the answers that will be added.

    Raises
    ------
    ValueError
        If it holds something else, or answers of another model or with other settings.
    OSError
        If it cannot be read or written, or another run is adding to it.
    """

    def __init__(self, path: str | os.PathLike[str], fingerprint: str, settings: dict[str, Any]) -> None:
        self._path = Path(path)
        self._file = _open(self._path)
        try:
            content = self._path.read_bytes()
            answers = [self._parse(i, line) for i, line in enumerate(content.split(b"\n")[:-1], 1)]
            for i, answer in enumerate(answers, 1):
                if answer["error"] is None:
                    answer["settings"] = _with_defaults(answer["settings"])
                    self._check_origin(i, answer, {"fingerprint": fingerprint, "settings": settings})
            kept = [answer for answer in answers if answer["error"] is None]
            if len(kept) < len(answers) or content[-1:] not in (b"", b"\n"):
                with replacing(self._path) as file:
                    file.writelines(map(_line, kept))
                self._file.close()
                self._file = _open(self._path)
        except BaseException:
            self._file.close()
            raise
        self._known = {_key(answer) for answer in kept}

    def missing(self, files: dict[str, Path], questions: list[Question]) -> dict[str, list[Question]]:
        """The questions without an answer about the present content of each document, by its name."""
        known = {name for name, *_ in self._known}
        missing = {}
        for name, path in files.items():
            if name not in known:  # it need not be read
                missing[name] = questions
                continue
            try:
                digest = read_document(name, path).sha256
            except (OSError, ValueError):  # reading it will fail, too
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

    def __enter__(self) -> AnswersFile:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _parse(self, i: int, line: bytes) -> Answer:
        try:
            answer = json.loads(line)
        except ValueError:  # no JSON, or no UTF-8
            answer = None
        if not isinstance(answer, dict) or not set(_IDENTITY) <= answer.keys() <= ANSWER_TYPES.keys():
            raise ValueError(
                f"[batch] line {i} of {self._path} is not an answer of this command: name another file, or remove it"
            )
        return dict.fromkeys(ANSWER_TYPES) | answer

    def _check_origin(self, i: int, answer: Answer, wanted: dict[str, Any]) -> None:
        differences = _differences(answer, wanted)
        if differences:
            raise ValueError(
                f"[batch] line {i} of {self._path} was answered otherwise: {'; '.join(differences)}. "
                "Name another file, or remove it"
            )


def _open(path: Path) -> BinaryIO:
    while True:
        file = path.open("ab")
        if fcntl is None:
            return file
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(file.fileno()), path.stat()):
                return file
        except FileNotFoundError:
            pass
        except OSError as error:
            file.close()
            raise OSError(f"[batch] another run is adding to {path}: wait for it, or name another file") from error
        file.close()  # another run has put a new file in its place


def _with_defaults(settings: Any) -> Any:
    """Settings, with defaults where an earlier version lacked one."""
    if not isinstance(settings, dict):
        return settings
    h2o = settings.get("h2o")
    defaults = BatchSettings(h2o="auto" if isinstance(h2o, dict) else None).to_json()
    if isinstance(h2o, dict):
        settings = settings | {"h2o": defaults["h2o"] | h2o}
    return defaults | settings


def _key(answer: Answer) -> tuple[str, str, str, str]:
    return answer["document"], answer["sha256"], answer["question_id"], answer["question"]


def _line(answer: Answer) -> bytes:
    return json.dumps(answer, ensure_ascii=False).encode() + b"\n"


def _differences(found: Any, wanted: dict[str, Any], prefix: str = "") -> list[str]:
    """Where values differ, in words; dicts in dicts by their own names."""
    texts = []
    for name, value in wanted.items():
        other = found.get(name)
        if isinstance(value, dict) and isinstance(other, dict):
            texts += _differences(other, value, f"{prefix}{name}.")
        elif other != value:
            texts.append(f"{prefix}{name} was {other!r:.80}, not {value!r:.80}")
    return texts
