"""`h2o-llama chat`: a chat in the terminal."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from h2o_llama import H2OError, Llama, Model, shared_prefix
from h2o_llama._cli import options
from h2o_llama._cli.errors import describe
from h2o_llama._cli.inspect import print_report
from h2o_llama._cli.options import NONE, Changes
from h2o_llama._cli.prompt import has_library, open_model, progress_bars, read_text, said
from h2o_llama._internal.terminal import echo, write
from h2o_llama.chat._template import ABOUT_A_DOCUMENT
from h2o_llama.inspect._report import memory_report

_ROOM = 8192
"""Tokens of the chat after the document, at most the model's trained length."""

_LEAST_ROOM = 1024

_HELP = """\
/image F  the next message is about the image in the file F
/regen    answer once more
/inspect  what the heads kept of the chat so far
/reset    begin a new chat, about the same document
/help     this
/exit     end (or Ctrl-D); Ctrl-C ends an answer"""


def chat(
    model: options.Model,
    file: Annotated[
        Path | None, typer.Option("--file", "-f", help="A text to talk about, or a name that `pull` lists.")
    ] = None,
    h2o: options.Attention = None,
    mmproj: options.Mmproj = None,
    image: options.Images = None,
    system: Annotated[str, typer.Option(help="The system message.")] = "",
    max_tokens: Annotated[int, options.max_tokens()] = 512,
    n_ctx: Annotated[int, typer.Option(min=0, help=f"Tokens of the chat; 0: the document's and up to {_ROOM:,}.")] = 0,
    threads: options.Threads = None,
    threads_batch: options.ThreadsBatch = None,
    gpu_layers: options.RpcGpuLayers = None,
    rpc: options.Rpc = None,
    mlock: options.Mlock = False,
    no_mmap: options.NoMmap = False,
    changes: Changes = NONE,
    temp: options.Temp = 0.8,
    seed: options.Seed = None,
    library: options.Library = True,
) -> None:
    """Chat with a model, about a document if you name one.

    Every line is a message; /help lists what else can be typed. The document is read once. Answers are written to
    standard output, a line of measurements after each to standard error.
    """
    told = [system] if system else []
    if file is not None:
        told.append(ABOUT_A_DOCUMENT + read_text(file).decode(errors="replace"))
    begin = [{"role": "system", "content": "\n\n".join(told)}] if told else []
    with open_model(model, gpu_layers, rpc, h2o, "auto", mlock, no_mmap, changes, mmproj) as weights:
        read_first = _shared_tokens(weights, begin)
        n_trained = weights.n_ctx_train
        evicts = h2o is not None and h2o.evict
        if n_ctx == 0 and not evicts:
            n_ctx = max(min(len(read_first) + _ROOM, n_trained), len(read_first) + _LEAST_ROOM)
        llm = Llama(
            weights,
            n_ctx=n_ctx,
            n_threads=threads,
            n_threads_batch=threads_batch,
            h2o=h2o,
            library=has_library(library),
        )
    if len(read_first) >= n_trained and (llm.h2o is None or llm.h2o.positions == "text"):
        echo(
            f"The document has {len(read_first):,} tokens, more than the {n_trained:,} that this model was trained "
            "for: answers are likely to be unusable.",
            err=True,
        )
    with llm:
        llm.text_name = "" if file is None else file.name
        if begin:
            with progress_bars() as update:
                llm.eval(read_first, progress=lambda done, total: update("document", done, total))
            if llm.n_cached:
                echo(f"[{llm.n_cached:,} of {len(read_first):,} tokens are from the library]", err=True)
        talk = _Chat(llm, begin, image or [], {"max_tokens": max_tokens, "temperature": temp, "seed": seed})
        for line in _lines():
            if line.strip() == "/exit":
                break
            if line.strip():
                talk.say(line.strip())


def _shared_tokens(model: Model, begin: list[dict[str, Any]]) -> Sequence[int]:
    """The tokens that all chats with this begin share, as the template makes them."""
    a, b = (model.chat_tokens([*begin, {"role": "user", "content": text}]) for text in "AB")
    return a[: shared_prefix(a, b)]


def _lines() -> Iterator[str]:
    """Lines of standard input, with editing and history in a terminal."""
    if not sys.stdin.isatty():
        yield from sys.stdin
        return
    with suppress(ImportError):  # not on every system
        import readline  # noqa: F401 (input() uses it)
    while True:
        try:
            yield input("> ")
        except EOFError:
            return
        except KeyboardInterrupt:
            print()


class _Chat:
    """The messages so far, and what a line does to them."""

    def __init__(self, llm: Llama, begin: list[dict[str, Any]], images: list[Path], options: dict[str, Any]) -> None:
        self._llm = llm
        self._begin = begin
        self._images = list(images)  # of the next message
        self._options = options
        self._messages = list(begin)

    def say(self, line: str) -> None:
        commands = {"/help": self._help, "/reset": self._reset, "/regen": self._regen, "/inspect": self._inspect}
        if line in commands:
            commands[line]()
        elif line.startswith("/image "):
            self._images.append(Path(line.removeprefix("/image ").strip()))
        elif line.startswith("/"):
            echo(f"There is no {line.split()[0]}.\n{_HELP}", err=True)
        else:
            images, self._images = self._images, []
            try:
                message = said(line, images)
            except (OSError, ValueError) as error:
                echo(f"h2o-llama: {describe(error)}", err=True)
                return
            self._answer([*self._messages, message])

    def _answer(self, messages: list[dict[str, Any]]) -> None:
        """Answer these messages. Without a word of an answer the chat stays as it was."""
        start, text, usage = time.perf_counter(), "", None
        try:
            for chunk in self._llm.create_chat_completion(messages, stream=True, **self._options):
                delta = chunk["choices"][0]["delta"]
                write(delta.get("reasoning_content", "") + delta.get("content", ""))
                text += delta.get("content", "")
                usage = chunk.get("usage")
        except (H2OError, ValueError, OSError) as error:
            echo(f"h2o-llama: {describe(error)}", err=True)
            return
        except KeyboardInterrupt:
            if not text:
                write("\n")
                return
        write("\n")
        self._messages = [*messages, {"role": "assistant", "content": text}]
        if usage is not None:
            seconds = time.perf_counter() - start
            n_read = usage["prompt_tokens"] - usage["prompt_tokens_details"]["cached_tokens"]
            echo(
                f"[{usage['prompt_tokens']:,} tokens, {n_read:,} of them new; "
                f"{usage['completion_tokens']:,} generated; {seconds:,.1f} s]",
                err=True,
            )

    def _help(self) -> None:
        echo(_HELP, err=True)

    def _reset(self) -> None:
        self._messages = list(self._begin)

    def _regen(self) -> None:
        if self._messages and self._messages[-1]["role"] == "assistant":
            self._answer(self._messages[:-1])
        else:
            echo("There is no answer yet.", err=True)

    def _inspect(self) -> None:
        tokens = self._llm.tokens.tolist()
        if self._llm.h2o is None or not tokens:
            echo("H2O is off." if self._llm.h2o is None else "Nothing has been read yet.", err=True)
            return
        report = memory_report(self._llm, tokens, "the chat")
        print_report(Console(), report, report.select(), self._llm.kv.chunk_size)
