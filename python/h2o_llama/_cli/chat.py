"""`h2o-llama chat`: a chat in the terminal."""

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import groupby
from pathlib import Path
from typing import Annotated, Any

from rich.console import Console

from h2o_llama import H2OError, Llama, Model
from h2o_llama._cli.ask import answer_options, open_for, open_read, say_answer
from h2o_llama._cli.command import describe
from h2o_llama._cli.inputs import open_model, read_text, said, title_of
from h2o_llama._cli.inspect import print_report, read_report
from h2o_llama._cli.options import Options, option
from h2o_llama._internal.terminal import counted, echo, write
from h2o_llama.chat._question import OTHER, Question
from h2o_llama.documents import ABOUT_A_DOCUMENT, document_messages
from h2o_llama.inspect._report import memory_report
from h2o_llama.library._index import Stored

_HELP = """\
/image F  the next message is about the image in the file F
/regen    answer once more
/inspect  what the last question read of the chat so far
/reset    begin a new chat, about the same document
/list     the library's texts for this model
/switch N begin a new chat about the document in text N of /list
/help     this
/exit     end (or Ctrl-D); Ctrl-C ends an answer"""


def chat(o: Options, system: Annotated[str, option("The system message.")] = "") -> None:
    """Chat with a model, about a document if you name one.

    Every line is a message; /help lists what else can be typed. The document is read once. Answers are written to
    standard output, a line of measurements after each to standard error.
    """
    o.thinking  # noqa: B018 (checks it)
    told = [] if o.file is None else [document_messages(read_text(o.file))[0]["content"]]
    told += [system] if system else []
    begin = [{"role": "system", "content": "\n\n".join(told)}] if told else []
    name: str | None = "the system message" if o.file is None else title_of(o.file)
    lines, images = _lines(), o.image or []
    with open_model(o) as weights:
        while name is not None:
            with _open(o, weights, begin, name) as llm:
                talk = _Chat(o, llm, begin, images)
                name = None
                for line in map(str.strip, lines):
                    if line in ("/exit", "/quit", "/bye"):
                        break
                    if line:
                        talk.say(line)
                    if talk.chosen is not None:
                        name, begin = talk.chosen
                        break


@contextmanager
def _open(o: Options, weights: Model, begin: list[dict[str, Any]], name: str) -> Iterator[Llama]:
    """A sequence that has read what the chat is about."""
    if begin:
        question = Question("chat", weights, [*begin, {"role": "user", "content": OTHER}], think=o.thinking)
        with open_read(o, question, name, begin[0]["content"]) as (llm, _):
            yield llm
    else:
        with open_for(o, weights, name, 0) as llm:
            yield llm


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

    def __init__(self, o: Options, llm: Llama, begin: list[dict[str, Any]], images: list[Path]) -> None:
        self._o, self._llm = o, llm
        self._begin = begin
        self._images = list(images)  # of the next message
        self._messages = list(begin)
        self.chosen: tuple[str, list[dict[str, Any]]] | None = None  # what the next chat is about

    def say(self, line: str) -> None:
        if line == "/help":
            echo(_HELP, err=True)
        elif line == "/reset":
            self._messages = list(self._begin)
        elif line in ("/regen", "/inspect"):
            self._regen() if line == "/regen" else self._inspect()
        elif line == "/list":
            for i, text in enumerate(self._texts(), 1):
                echo(f"{i:>3}  {text.contents.name}, {counted(len(text.contents.tokens), 'token')}", err=True)
        elif re.fullmatch(r"/switch +\d+", line):
            self._switch(int(line.split()[1]))
        elif line.split()[0] == "/switch":
            echo("/switch needs a number of /list.", err=True)
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
        text: list[str] = []
        try:
            question = self._asked(messages).on_known_day(self._llm._state)
            n = len(question.prompt)
            if n >= self._llm.n_ctx:
                room = f"the chat holds {self._llm.n_ctx:,}: begin it with a larger --n-ctx"
                echo(f"h2o-llama: with this message it has {n:,} tokens, and {room}", err=True)
                return
            say_answer(self._llm, question, answer_options(self._o), text)
        except (H2OError, ValueError, OSError) as error:
            echo(f"h2o-llama: {describe(error)}", err=True)
            return
        except KeyboardInterrupt:
            write("\n")
            if not any(text):
                return
        self._messages = [*messages, {"role": "assistant", "content": "".join(text)}]

    def _asked(self, messages: list[dict[str, Any]]) -> Question:
        return Question("chat", self._llm.model, messages, think=self._o.thinking)

    def _texts(self) -> list[Stored]:
        library = self._llm.library
        return [] if library is None else library.stored(self._llm._state.engine.origin)

    def _switch(self, n: int) -> None:
        """Choose the document of a text: from the words before one up to the next special token."""
        texts = self._texts()
        if not 0 < n <= len(texts):
            echo(f"Text {n} does not exist: /list lists them.", err=True)
            return
        text = texts[n - 1].contents
        pieces = (self._llm.detokenize([token]) if token >= 0 else b"" for token in text.tokens.tolist())
        parts = [b"".join(part).decode(errors="replace") for _, part in groupby(pieces, bool)]
        documents = [part.partition(ABOUT_A_DOCUMENT)[2] for part in parts if ABOUT_A_DOCUMENT in part]
        if documents:
            self.chosen = text.name, document_messages(documents[0])
        else:
            echo(f"{text.name} is not about a document: begin its chat again.", err=True)

    def _regen(self) -> None:
        if self._messages and self._messages[-1]["role"] == "assistant":
            self._answer(self._messages[:-1])
        else:
            echo("There is no answer yet.", err=True)

    def _inspect(self) -> None:
        llm = self._llm
        asked = self._messages[:-1] if self._messages and self._messages[-1]["role"] == "assistant" else self._messages
        if llm.h2o is None or not asked or asked[-1]["role"] != "user":
            echo("H2O is off." if llm.h2o is None else "There is no question yet.", err=True)
            return
        try:
            if llm.h2o.evict:
                report = memory_report(llm, llm.tokens, "the chat")
            else:
                question = self._asked(asked)
                question.day = llm._state.day
                report = read_report(llm, question.prompt, "the chat", question.document, question.again(OTHER).prompt)
            print_report(Console(), report, report.select())
        except ValueError as error:  # images, or too short a text
            echo(f"h2o-llama: {describe(error)}", err=True)
