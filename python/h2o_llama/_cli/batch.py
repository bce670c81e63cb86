"""`h2o-llama batch`: the same questions about many documents."""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from h2o_llama._cli.command import as_typed
from h2o_llama._cli.inputs import has_library
from h2o_llama._cli.options import Options, option
from h2o_llama._cli.progress import progress_bars, took
from h2o_llama._internal.terminal import counted, echo
from h2o_llama.batch import Answerer, AnswersFile, BatchSettings, Question, find_documents, read_questions
from h2o_llama.batch._answers import Answer
from h2o_llama.model import fingerprint_of
from h2o_llama.models._files import check_model_file


def batch(
    o: Options,
    documents: Annotated[Path, option("The documents in it, and in its folders.", metavar="DIR")],
    questions: Annotated[Path, option('One on each line, or JSON lines: {"id": …, "question": …}.', metavar="FILE")],
    out: Annotated[Path, option("JSON lines. Answered questions are not asked again.", metavar="FILE")],
    parallel: Annotated[int, option("Questions that are answered at once.", min=1, max=255)] = 4,
) -> None:
    """Ask the same questions about many documents. Each document is read once.

    Each answer is added to --out at once. An interrupted run continues when it is started again. A document that
    cannot be read or is too long is a line with an "error" there, and the exit code is 1.
    """
    settings = BatchSettings(o.attention, o.max_tokens, o.temp, o.seed or 0, o.thinking)
    if out.suffix.lower() in (".csv", ".tsv", ".xlsx"):
        raise typer.BadParameter(f"answers are JSON lines, no table: name it {out.with_suffix('.jsonl')}")
    asked = read_questions(questions)
    others = [path for path in (questions, out) if path.exists()]
    no_text: dict[str, Path] = {}
    found = find_documents(documents, no_text)
    files, left_out = (
        {name: file for name, file in some.items() if not any(map(file.samefile, others))} for some in (found, no_text)
    )
    if left_out:
        echo(f"left out, no documents by their suffixes: {', '.join(left_out)}", err=True)
    path = check_model_file("batch", o.model).absolute()
    n_total, n_added, n_errors = len(files) * len(asked), 0, 0
    done: dict[str, Any] = {}
    with AnswersFile(out, fingerprint_of(path, **o.changes), settings.to_json()) as answers:
        missing = answers.missing(files, asked)
        n_known = n_total - sum(map(len, missing.values()))
        try:
            with progress_bars() as update:
                update("answers", n_known, n_total)
                for answer in _answered(o, path, settings, files, missing, update, parallel):
                    answers.add(answer)
                    name, error = answer["document"], answer["error"]
                    if error is None:
                        n_added += 1
                        if name not in done and answer["note"]:
                            echo(f"{name}: {answer['note']}", err=True)
                        done[name] = answer
                    else:
                        n_errors += 1
                        echo(as_typed(error if error.startswith(name) else f"{name}: {error}"), err=True)
                    update("answers", n_known + n_added, n_total)
        finally:
            keys = ("cached_tokens", "document_seconds", "library_tokens")
            sums = [sum(answer[key] for answer in done.values()) for key in keys]
            told = f"; {counted(len(done), 'document')}: {took('read', *sums)}" if done else ""
            told += f"; {counted(n_errors, 'error')}" if n_errors else ""
            echo(f"{counted(n_added, 'answer')} added to {out}, {n_known:,} there before{told}", err=True)
    if n_errors:
        raise typer.Exit(1)


def _answered(
    o: Options,
    model: Path,
    settings: BatchSettings,
    files: Mapping[str, Path],
    missing: Mapping[str, list[Question]],
    update: Callable[[str, int, int], None],
    parallel: int,
) -> Iterator[Answer]:
    """The missing answers. Where there are none, the model is not opened."""
    if not missing:
        return
    options: dict[str, Any] = {"n_ctx": o.n_ctx, "n_threads": o.threads, "n_gpu_layers": o.gpu_layers, **o.changes}
    with Answerer(model, settings, parallel=parallel, library=has_library(o.library), **options) as answerer:
        for name, questions in missing.items():
            yield from answerer.answer_file(name, files[name], questions, partial(update, "reading"))
