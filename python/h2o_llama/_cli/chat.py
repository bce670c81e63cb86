"""`h2o-llama chat`: a chat in the terminal."""

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from textwrap import shorten
from typing import Annotated, Any

import typer
from rich.console import Console

from h2o_llama import H2OError, Llama, Model
from h2o_llama._cli.ask import open_about, open_for, say_answer
from h2o_llama._cli.command import describe
from h2o_llama._cli.inputs import open_model, read_text, said, title_of
from h2o_llama._cli.inspect import print_report, read_report
from h2o_llama._cli.options import DOCUMENT, Options, option
from h2o_llama._internal.terminal import counted, echo, write
from h2o_llama.chat._question import OTHER, Question, messages_of
from h2o_llama.documents import ABOUT_A_DOCUMENT, document_messages
from h2o_llama.inspect._report import memory_report
from h2o_llama.library import Text

_HELP = """\
/image F  the next message is about the image in the file F
/regen    answer once more
/inspect  what the last question read of the chat so far
/reset    begin a new chat, about the same document
/list     documents and chats of this model that are kept
/switch N continue number N of /list
/help     this
/exit     end (or Ctrl-D); Ctrl-C ends an answer"""


Messages = list[dict[str, Any]]


def chat(
    o: Options,
    file: Annotated[list[Path] | None, option(f"{DOCUMENT}. Repeatable.", "--file", "-f")] = None,
    system: Annotated[str, option("The system message.")] = "",
    resume: Annotated[bool, option("Continue the last chat with this model.", "--resume")] = False,
) -> None:
    """Chat with a model, about documents if you name some.

    Every line is a message; /help lists what else can be typed. Documents are read once. Answers are written to
    standard output, a line of measurements after each to standard error.
    """
    o.thinking  # noqa: B018 (checks it)
    if Path("-") in (file or []):
        raise typer.BadParameter("your messages come from standard input: name a file")
    if resume and (file or system):
        raise typer.BadParameter("--resume continues a chat with its documents: leave out --file and --system")
    told = [document_messages(read_text(path, o.library))[0]["content"] for path in file or []]
    told += [system] if system else []
    o = replace(o, file=file[0] if file and len(file) == 1 else None)
    name = ", ".join(map(title_of, file or [])) or "the system message"
    messages: Messages | None = [{"role": "system", "content": "\n\n".join(told)}] if told else []
    lines, images = _lines(), o.image or []
    with open_model(o) as weights:
        if resume:
            with open_for(o, weights, "", 0) as llm:
                name, messages = _Chat(o, llm, [], []).last()
        while messages is not None:
            with _open(o, weights, name, messages) as llm:
                talk, messages = _Chat(o, llm, messages, images), None
                for line in map(str.strip, lines):
                    if line in ("/exit", "/quit", "/bye"):
                        break
                    if line:
                        talk.say(line)
                    if talk.chosen is not None:
                        name, messages = talk.chosen
                        break
                if talk.is_kept() and messages is None:
                    echo(f"`h2o-llama chat {o.model} --resume` continues this chat.", err=True)


def _begin(messages: Messages) -> Messages:
    """What the chat is about."""
    return messages[:1] if messages and messages[0]["role"] == "system" else []


@contextmanager
def _open(o: Options, weights: Model, name: str, messages: Messages) -> Iterator[Llama]:
    """A sequence that has read how the chat begins, with room for all of it."""
    begin, n = _begin(messages), 0
    if len(messages) > len(begin):
        n = len(Question("chat", weights, messages, think=o.thinking).prompt)
    if begin:
        question = Question("chat", weights, [*begin, {"role": "user", "content": OTHER}], think=o.thinking)
        with open_about(o, question, name, begin[0]["content"], n) as (llm, _):
            yield llm
    else:
        with open_for(o, weights, "", n) as llm:
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

    def __init__(self, o: Options, llm: Llama, messages: Messages, images: list[Path]) -> None:
        self._o, self._llm, self._messages = o, llm, messages
        self._images = list(images)  # of the next message
        self._listed: list[Text] = []
        self._has_answers = False
        self.chosen: tuple[str, Messages] | None = None  # the one that continues instead, and its name

    def say(self, line: str) -> None:
        if line == "/help":
            echo(_HELP, err=True)
        elif line == "/reset":
            self.is_kept()
            self._messages, self._has_answers = _begin(self._messages), False
        elif line in ("/regen", "/inspect"):
            self._regen() if line == "/regen" else self._inspect()
        elif line == "/list":
            self._list()
        elif re.fullmatch(r"/switch +\d+", line):
            self._switch(int(line.split()[1]))
        elif line.split()[0] == "/switch":
            echo("/switch needs a number of /list.", err=True)
        elif line.startswith("/image "):
            self._add_image(Path(line.removeprefix("/image ").strip()))
        elif line.startswith("/"):
            echo(f"There is no {line.split()[0]}.\n{_HELP}", err=True)
        else:
            images, self._images = self._images, []
            self._answer([*self._messages, said(line, images)])

    def _answer(self, messages: Messages) -> None:
        """Answer these messages. Without a word of an answer the chat stays as it was."""
        text: list[str] = []
        try:
            question = self._asked(messages).on_known_day(self._llm._state)
            n = len(question.prompt)
            if n >= self._llm.n_ctx:
                room = f"the chat holds {self._llm.n_ctx:,}: begin it with a larger --n-ctx"
                echo(f"h2o-llama: with this message it has {n:,} tokens, and {room}", err=True)
                return
            say_answer(self._o, self._llm, question, text)
        except (H2OError, ValueError, OSError) as error:
            echo(f"h2o-llama: {describe(error)}", err=True)
            return
        except KeyboardInterrupt:
            write("\n")
            if not any(text):
                return
        self._messages = [*messages, {"role": "assistant", "content": "".join(text)}]
        self._has_answers = True

    def is_kept(self) -> bool:
        """Keep the last turns, too, however short they are. Whether there is a chat to continue."""
        llm, kept = self._llm, list[Text]()
        if self._has_answers and llm.library is not None:
            llm._state.give_away(is_last=True)
            kept = llm.library.stored(llm._state.engine.origin) if llm.library.flush() else []
        return bool(kept) and len(self._said(kept[0])) > 1

    def _add_image(self, image: Path) -> None:
        """Of the next message, if it can be read."""
        try:
            if self._o.mmproj is None:
                raise ValueError("start the chat with --mmproj FILE to show images")
            said("", [image])
            self._images.append(image)
        except (OSError, ValueError) as error:
            echo(f"h2o-llama: {describe(error)}", err=True)

    def _asked(self, messages: Messages) -> Question:
        return Question("chat", self._llm.model, messages, think=self._o.thinking)

    def _list(self) -> None:
        library = self._llm.library
        self._listed = [] if library is None else library.stored(self._llm._state.engine.origin)
        for i, text in enumerate(self._listed, 1):
            asked = [message["content"] for message in self._said(text) if message["role"] == "user"]
            told = f"{text.name}, {counted(text.n_tokens, 'token')}"
            echo(f"{i:>3}  {told}{': ' * bool(asked)}{_shown(*asked[-1:])}", err=True)

    def _said(self, text: Text) -> Messages:
        return messages_of(self._llm.model, text.contents.tokens, text.contents.day)

    def last(self) -> tuple[str, Messages]:
        """The last chat that is kept, and its name. Raises ValueError if there is none."""
        library = self._llm.library
        for text in library.stored(self._llm._state.engine.origin) if library else ():
            if len(messages := self._said(text)) > 1:
                return self._continued(text, messages)
        raise ValueError("no chat with this model is kept")

    def _switch(self, n: int) -> None:
        """Choose a text of the list that was shown."""
        if not self._listed:
            self._list()
        if not 0 < n <= len(self._listed):
            echo(f"There is no number {n}: /list lists them.", err=True)
        elif messages := self._said(self._listed[n - 1]):
            self.chosen = self._continued(self._listed[n - 1], messages)
        else:
            echo(f"Number {n} is neither a chat nor a document: begin its chat again.", err=True)

    def _continued(self, text: Text, messages: Messages) -> tuple[str, Messages]:
        for message in messages[len(_begin(messages)) :][-2:]:
            echo(f"{message['role']}: {_shown(message['content'])}", err=True)
        return text.name if ABOUT_A_DOCUMENT in str(messages[0]["content"]) else "", messages

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


def _shown(text: str = "") -> str:
    """In one line."""
    return shorten(text, 60, placeholder="…")
