"""`h2o-llama ask`: questions about a document, and `read`: documents for later questions. `chat` uses its parts."""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from h2o_llama import H2OConfig, Llama, Model
from h2o_llama._cli.command import describe
from h2o_llama._cli.inputs import open_llama, open_model, read_text, title_of
from h2o_llama._cli.options import FILE, MODEL, Options
from h2o_llama._cli.progress import progress_bars, took
from h2o_llama._internal.terminal import counted, echo, write, write_thoughts
from h2o_llama._prompt import Tokens
from h2o_llama.batch._answers import find_documents
from h2o_llama.chat._generation import quotable
from h2o_llama.chat._question import Question, check_length
from h2o_llama.chat.chat_completion import answer_to
from h2o_llama.sequence._keeping import LEAST_TOKENS

_ROOM = 8192
"""Tokens of questions and answers after the document, at most the model's trained length."""

_LEAST_ROOM = 1024


def ask(
    o: Options,
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="FILE QUESTION…", help=f"{FILE} Each question is answered by itself."),
    ] = None,
) -> None:
    """Ask questions about a document, which is read once.

    Answers are written to standard output, a line of measurements after each to standard error. --file names the
    document, too; then all words are questions.
    """
    named = [*([] if o.file is None else [str(o.file)]), *(words or [])]
    if not named:
        raise typer.BadParameter("name a document and a question about it")
    answer_all(o, Path(named[0]), named[1:])


def answer_all(o: Options, file: Path, questions: list[str], **more: Any) -> None:
    """Answer questions about a document, each by itself."""
    if not questions:
        raise typer.BadParameter(f"name a question about {file}, too")
    for question in questions:
        if question.strip() in ("", "-"):
            raise ValueError("a question is empty; - stands for a document alone")
        if os.path.isfile(question):
            raise ValueError(f"{question} is a file, but ask reads one document: batch reads several")
    o = replace(o, file=file)
    text, name = read_text(file, o.library), title_of(file)
    with open_model(o) as weights:
        first = Question.about("ask", weights, text, questions[0], think=o.thinking)
        n_longest = max(len(asked.prompt) for asked in (first, *map(first.again, questions[1:])))
        with open_about(o, first, name, text, n_longest) as (llm, first):
            for i, question in enumerate(questions):
                if len(questions) > 1:
                    echo(f"> {question}")
                say_answer(o, llm, first.again(question) if i else first, **more)


@contextmanager
def open_for(o: Options, weights: Model, name: str, n_tokens: int, n_longest: int = 0) -> Iterator[Llama]:
    """A sequence with room for a text, questions and answers; `n_longest` are its tokens with the longest question."""
    n_ctx, h2o = o.n_ctx, o.attention
    if n_ctx == 0 and not (isinstance(h2o, H2OConfig) and h2o.evict):
        n_ctx = max(min(n_tokens + _ROOM, weights.n_ctx_train), max(n_tokens, n_longest) + _LEAST_ROOM)
    with open_llama(o, weights, n_ctx, h2o) as llm:
        is_file = o.file is not None and name == title_of(o.file) and o.file.is_file()
        llm.text_name = os.path.abspath(o.file) if is_file and o.file else name
        yield llm


@contextmanager
def open_about(
    o: Options, question: Question, name: str, text: str, n_longest: int = 0, is_read: bool = True
) -> Iterator[tuple[Llama, Question]]:
    """The same for a document, which is read; and the question about it, on the day of a text that is known."""
    check_length(question.model, o.attention, name, text, question.n_shared, 1, o.n_ctx)
    if n_longest:
        check_length(question.model, o.attention, f"the question about {name}", "", n_longest, 1, o.n_ctx)
    with open_for(o, question.model, name, question.n_shared, n_longest) as llm:
        asked = question.on_known_day(llm._state)
        if is_read:
            read_first(llm, asked.shared, name)
        yield llm, asked


def read_first(llm: Llama, tokens: Tokens, name: str) -> None:
    """Read what questions are about, and say how fast that was; or, when it is stopped, how much is kept."""
    start, n = time.perf_counter(), len(tokens)
    if n == 0:
        return
    try:
        with progress_bars(" tokens") as update:
            update(name, 0, n)
            llm.eval(tokens, progress=lambda done, total: update(name, done, total))
    except (KeyboardInterrupt, SystemExit):
        if llm.library is not None:
            llm.library.flush()
            n_known = llm.library.n_known(llm._state.engine.origin, tokens)
            kept = f"{n_known:,} of {counted(n, 'token')} of {name} are kept"
            echo(f"stopped: {kept}{'; the same command continues' * (n_known > 0)}", err=True)
        raise
    short = ", too short to keep" if llm.library is not None and n < LEAST_TOKENS else ""
    if name:
        echo(f"[{name}: {took('read', n, time.perf_counter() - start, llm.n_cached)}{short}]", err=True)


def say_answer(o: Options, llm: Llama, question: Question, text: list[str] | None = None, **more: Any) -> None:
    """Write an answer while it comes, also to the end of `text`; and a line of measurements to standard error."""
    start, first = time.perf_counter(), None
    said = [] if text is None else text
    more |= {"max_tokens": o.max_tokens, "temperature": o.temp, "seed": o.seed}
    run = answer_to("ask", llm._state, question, **more)
    for chunk in run.stream():
        delta = chunk["choices"][0]["delta"]
        if thoughts := delta.get("reasoning_content"):
            write_thoughts(thoughts)
        said.append((delta.get("content") or "") if any(said) else (delta.get("content") or "").lstrip())
        write(said[-1])
        if first is None and (thoughts or said[-1]):
            first = time.perf_counter()
    write("\n")
    end, answer = time.perf_counter(), run.generation
    first = first or end
    told = took("read", len(answer.prompt), first - start, answer.n_cached)
    told += f"; {took('wrote', answer.answer.n_tokens, end - first)}"
    if answer.finish_reason == "length":
        is_full = answer.answer.is_full(o.max_tokens)
        told += ", cut off by " + ("--max-tokens" if is_full else f"the context of {llm.n_ctx:,} tokens (--n-ctx)")
    told += "" if any(said) else "; there is no answer"
    echo(f"[{told}]{quotable(llm._state)}", err=True)


def read(
    o: Options,
    paths: Annotated[list[Path], typer.Argument(metavar="FILE|FOLDER…", help="Documents, and folders of them.")],
    model: Annotated[str, MODEL],
) -> None:
    """Read documents now, for questions later.

    After an interruption the same command continues. All commands then find the documents in the library.
    """
    left_out: dict[str, Path] = {}
    files = [file for path in paths for file in (find_documents(path, left_out).values() if path.is_dir() else [path])]
    if left_out:
        echo(f"left out, no documents by their suffixes: {', '.join(left_out)}", err=True)
    has_failed = False
    with open_model(replace(o, model=model)) as weights:
        for file in files:
            try:
                text = read_text(file, o.library)
                question = Question.about("read", weights, text, think=o.thinking)
                with open_about(replace(o, file=file), question, title_of(file), text):
                    pass
            except (OSError, ValueError) as error:
                has_failed = True
                echo(f"h2o-llama: {describe(error)}", err=True)
    if has_failed:
        raise typer.Exit(1)
