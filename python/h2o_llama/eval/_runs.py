"""Runs of tasks over settings and lengths, which continue where they were interrupted."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

from h2o_llama._internal import check
from h2o_llama._internal.atomic import alone_with, replacing
from h2o_llama.config import H2OConfig
from h2o_llama.eval._settings import Setting
from h2o_llama.eval._subject import Row, Subject, Task
from h2o_llama.eval._tasks import Continuation, Perplexity
from h2o_llama.eval._text import default_text
from h2o_llama.llama import Llama
from h2o_llama.model import Model

_OWNER = "eval"


def evaluate(
    model: str | os.PathLike[str] | Model | Llama,
    settings: Sequence[Setting],
    *,
    text: str | bytes | None = None,
    text_name: str | None = None,
    n_tokens: Sequence[int] = (4096,),
    tasks: Sequence[Task] = (Perplexity(), Continuation()),
    chunk_size: int = H2OConfig.chunk_size,
    n_threads: int | None = None,
    n_gpu_layers: int | None = None,
    seed: int = 0,
    json_file: str | os.PathLike[str] | None = None,
    progress: Callable[[str, int, int], object] | None = None,
) -> list[Row]:
    """Measure the cost of sparse attention: every setting against dense attention on the same tokens.

    Dense attention and as many settings as fit into half of the machine's memory read a text side by side.

    Parameters
    ----------
    model : str, os.PathLike or Llama
        A GGUF file, or an open model, whose weights are used.
    settings : sequence of Setting
        See `sweep` and `window`.
    text : str or bytes, optional
        What "perplexity" and "continuation" read; by default source of this Python's standard library.
    text_name : str, optional
        What tables call it.
    n_tokens : sequence of int, default 4096
        Lengths N, at least two chunks each.
    tasks : sequence of Task
        `Perplexity`, `Continuation`, `Ruler`.
    chunk_size : int, default 1024
        S, for all settings.
    n_threads, n_gpu_layers
        As in `Llama`.
    seed : int, default 0
        For sampling, and for generated documents.
    json_file : str or os.PathLike, optional
        A list of rows: those in it are not measured again, and finished ones are added at once.
    progress : callable, optional
        Called as progress(name, n_done, n), with a name for each task and length.

    Returns
    -------
    list of dict
        Rows for each length, task and setting. "task", "setting", "n_tokens", "chunk_size", "model",
        "model_fingerprint" (SHA-256 of parts of the file), "h2o", "seed" and the task's options, the text's
        SHA-256 among them, identify it; "file" is llama.cpp's description of the model, with its file type,
        "text" the text's name, "machine" where and with which version it was measured; the others are results: "nats"
        are natural logarithms per token, "_se" is a standard error, "_dense" is dense attention's number.

    Raises
    ------
    ValueError
        If an argument is bad, the text is too short, or `json_file` holds something else.
    H2OError
        If the model cannot be measured.
    """
    _check_settings(settings)
    check.integer(_OWNER, "chunk_size", chunk_size, 2)
    check.integer(_OWNER, "seed", seed, 0)
    for n in n_tokens:
        if check.integer(_OWNER, "n_tokens", n, 1) < 2 * chunk_size:
            raise ValueError(
                f"[{_OWNER}] n_tokens must be at least two chunks, got {n} with chunks of {chunk_size}: the first "
                "chunk is read densely, and there would be too little after it to tell settings apart"
            )
    path = None if json_file is None else Path(json_file)
    known: list[Row] = []
    if path is not None:
        append_rows(path, [])  # if it cannot be written, fail before anything is measured
        known = read_rows(path)
    source = default_text() if text is None else text.encode() if isinstance(text, str) else text
    name = text_name or ("Python's library" if text is None else "a text")
    subject = Subject(
        model, source, name, chunk_size=chunk_size, n_threads=n_threads, n_gpu_layers=n_gpu_layers, seed=seed
    )
    try:
        about = {"file": subject.weights.desc, "machine": subject.machine}
        plan = [(n, task, task.variants(subject, n)) for n in n_tokens for task in tasks]
        rows: list[Row] = []
        for n, task, variants in plan:
            identities = {s.name: [_identity(subject, s, n, task, v) for v in variants] for s in settings}
            missing = [s for s in settings if not all(find_row(known, i) for i in identities[s.name])]
            rounds = subject.rounds(missing, n, task.contexts_each)
            for i, some in enumerate(rounds):
                label = f"{task.name}, {n:,} tokens" + (f" ({i + 1} of {len(rounds)})" if len(rounds) > 1 else "")
                results = task.measure(subject, some, n, _named(progress, label))
                new = [
                    identity | result | about
                    for s in some
                    for identity, result in zip(identities[s.name], results[s.name], strict=True)
                ]
                known += new
                if path is not None:
                    append_rows(path, new)
            rows += [row for s in settings for i in identities[s.name] if (row := find_row(known, i))]
        return rows
    finally:
        subject.close()


def _check_settings(settings: Sequence[Setting]) -> None:
    names = [s.name for s in settings]
    if not names or len(set(names)) < len(names):
        raise ValueError(f"[{_OWNER}] settings must be at least one, each with its own name, got {names}")
    if any(s.h2o is None for s in settings):
        raise ValueError(f"[{_OWNER}] dense attention is measured with every setting: leave it out of settings")


def _identity(subject: Subject, setting: Setting, n_tokens: int, task: Task, variant: Row) -> Row:
    """What a row is about; equal for equal measurements only."""
    model = Path(subject.weights.model_path)
    return {
        "task": task.name,
        "setting": setting.name,
        "n_tokens": n_tokens,
        "chunk_size": subject.chunk_size,
        "model": model.name,
        "model_fingerprint": subject.fingerprint,
        "h2o": None if setting.h2o is None else _as_read(asdict(setting.h2o)),
        "seed": subject.seed,
        **variant,
    }


def _as_read(values: Row) -> Row:
    """Values as a file of rows gives them back: it has no tuples."""
    return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}


def _named(progress: Callable[[str, int, int], object] | None, name: str) -> Callable[[int, int], object]:
    return lambda n_done, n_total: None if progress is None else progress(name, n_done, n_total)


def read_rows(path: Path) -> list[Row]:
    """The rows of a file; none if it is missing or empty.

    Raises ValueError if it is not a list of rows as `evaluate` writes them.
    """
    try:
        content = path.read_bytes()
        rows = json.loads(content) if content else []
    except FileNotFoundError:
        return []
    except ValueError as error:  # no JSON, or no UTF-8
        raise _bad_file(path) from error
    if not isinstance(rows, list) or not all(isinstance(row, dict) and "task" in row for row in rows):
        raise _bad_file(path)
    return rows


def append_rows(path: Path, rows: Sequence[Row]) -> None:
    """Add rows to a file, to which other runs may add theirs.

    It is replaced as a whole: readers see all of the rows or none of them.
    """
    with alone_with(path):
        text = json.dumps([*read_rows(path), *rows], indent=1) + "\n"
        with replacing(path) as file:
            file.write(text.encode())


def find_row(rows: Sequence[Row], identity: Row) -> Row | None:
    """The newest row that has all of these values."""
    return next((row for row in reversed(rows) if identity.items() <= row.items()), None)


def _bad_file(path: Path) -> ValueError:
    return ValueError(f"[eval] {path} is not a list of rows of this command: name another file, or remove it")
