"""`h2o-llama ask`: questions about a document, and `read`: documents for later questions. `chat` uses its parts."""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from h2o_llama import H2OConfig, Llama, Model
from h2o_llama._cli.command import describe
from h2o_llama._cli.inputs import open_llama, open_model, read_text, read_tokens
from h2o_llama._cli.options import FILE, MODEL, Options
from h2o_llama._cli.progress import took
from h2o_llama._internal.terminal import counted, echo, write, write_thoughts
from h2o_llama._prompt import Tokens
from h2o_llama.batch._answerer import Prompts, check_length, quotable
from h2o_llama.batch._answers import find_documents
from h2o_llama.chat._known import known_day
from h2o_llama.documents import document_messages

_ROOM = 8192
"""Tokens of questions and answers after the document, at most the model's trained length."""

_LEAST_ROOM = 1024

CUT = ", cut off by --max-tokens"


def ask(
    o: Options,
    file: Annotated[Path, typer.Argument(metavar="FILE", help=FILE)],
    questions: Annotated[list[str], typer.Argument(metavar="QUESTION…", help="Each is answered by itself.")],
) -> None:
    """Ask questions about a document, which is read once.

    Answers are written to standard output, a line of measurements after each to standard error.
    """
    for question in questions:
        if not question.strip():
            raise ValueError("a question is empty")
        if os.path.isfile(question):
            raise ValueError(f"{question} is a file, but ask reads one document: batch reads several")
    text, options = read_text(file), answer_options(o)
    with (
        open_model(o) as weights,
        open_read(o, weights, file.name, partial(Prompts(weights, o.thinking).shared, text)) as llm,
    ):
        for question in questions:
            if len(questions) > 1:
                echo(f"> {question}")
            if llm.chat_template is None:
                write(llm.ask(text, question, **options) + "\n")
            else:
                say_answer(llm, document_messages(text, question), options)


def answer_options(o: Options) -> dict[str, Any]:
    """As `create_chat_completion` takes them."""
    return {"max_tokens": o.max_tokens, "temperature": o.temp, "seed": o.seed, "think": o.thinking}


@contextmanager
def open_begun(
    o: Options, weights: Model, name: str, begin: Callable[[str | None], Tokens]
) -> Iterator[tuple[Llama, Tokens]]:
    """A sequence with room for a text, questions and answers; and the text's tokens, as `begin` makes them on a day."""
    tokens = begin(None)
    check_length(weights, o.attention, name, len(tokens), 1, o.n_ctx)
    n_ctx, h2o, n = o.n_ctx, o.attention, len(tokens)
    if n_ctx == 0 and not (isinstance(h2o, H2OConfig) and h2o.evict):
        n_ctx = max(min(n + _ROOM, weights.n_ctx_train), n + _LEAST_ROOM)
    with open_llama(o, weights, n_ctx, h2o) as llm:
        llm.text_name = name
        day = known_day(llm._state, tokens, begin)
        yield llm, tokens if day is None else begin(day)


@contextmanager
def open_read(o: Options, weights: Model, name: str, begin: Callable[[str | None], Tokens]) -> Iterator[Llama]:
    """The same, when it has read the text."""
    with open_begun(o, weights, name, begin) as (llm, tokens):
        try:
            if len(tokens) > 0:
                read_tokens(llm, tokens, name)
        except (KeyboardInterrupt, SystemExit):
            if llm.library is not None:
                llm.library.flush()
                n = llm.library.n_known(llm._state.engine.origin, tokens)
                kept = f"{n:,} of {counted(len(tokens), 'token')} of {name} are kept"
                echo(f"stopped: {kept}{'; the same command continues' * (n > 0)}", err=True)
            raise
        yield llm


def say_answer(
    llm: Llama, messages: list[dict[str, Any]], options: dict[str, Any], text: list[str] | None = None
) -> None:
    """Write an answer while it comes, also to the end of `text`; and a line of measurements to standard error."""
    start, first, reason, usage = time.perf_counter(), None, None, None
    for chunk in llm.create_chat_completion(messages, stream=True, **options):
        delta = chunk["choices"][0]["delta"]
        write_delta(delta)
        if first is None and (delta.get("content") or delta.get("reasoning_content")):
            first = time.perf_counter()
        if text is not None:
            text.append(delta.get("content", ""))
        reason, usage = chunk["choices"][0]["finish_reason"], chunk.get("usage")
    write("\n")
    if usage is not None:
        end = time.perf_counter()
        first, n_known = first or end, usage["prompt_tokens_details"]["cached_tokens"]
        told = took("read", usage["prompt_tokens"], first - start, n_known, "before")
        told += f"; {took('wrote', usage['completion_tokens'], end - first)}{CUT * (reason == 'length')}"
        echo(f"[{told}]{quotable(llm)}", err=True)


def write_delta(delta: dict[str, Any]) -> None:
    """A part of an answer: its text to standard output, thoughts to standard error."""
    if thoughts := delta.get("reasoning_content"):
        write_thoughts(thoughts)
    write(delta.get("content") or "")


def read(
    o: Options,
    paths: Annotated[list[Path], typer.Argument(metavar="FILE|FOLDER…", help="Texts, PDF or HTML files.")],
    model: Annotated[str, MODEL],
) -> None:
    """Read documents now, for questions later.

    After an interruption the same command continues. All commands then find the documents in the library.
    """
    files = [file for path in paths for file in (find_documents(path).values() if path.is_dir() else [path])]
    has_failed = False
    with open_model(replace(o, model=model)) as weights:
        prompts = Prompts(weights, o.thinking)
        for file in files:
            try:
                with open_read(o, weights, file.name, partial(prompts.shared, read_text(file))):
                    pass
            except (OSError, ValueError) as error:
                has_failed = True
                echo(f"h2o-llama: {describe(error)}", err=True)
    if has_failed:
        raise typer.Exit(1)
