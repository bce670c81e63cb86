"""`h2o-llama library`: texts that were read."""

from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.filesize import decimal

from h2o_llama import Model
from h2o_llama._cli.ask import open_about
from h2o_llama._cli.command import as_typed, confirm, group
from h2o_llama._cli.inputs import open_model, read_text
from h2o_llama._cli.options import DOCUMENT, MODEL, Options, option
from h2o_llama._internal.terminal import counted, echo
from h2o_llama._prompt import shared_prefix, where_they_part
from h2o_llama.chat._question import Question
from h2o_llama.library import Library
from h2o_llama.library._texts import Text, key_of


def _list() -> None:
    """List documents, and the questions about them that are kept."""
    shelf = Library()
    texts = shelf.texts()
    rows: dict[str, list[Text]] = {}
    for text in texts:
        rows.setdefault(text.document, []).append(text)
    first: dict[str, Text] = {}  # by name
    for id, row in rows.items():
        text = next(text for text in row if text.id == id)
        old = ", of an earlier version: `library rm --old` removes it" * text.is_old
        echo(f"{id[:8]}  {text.name}{f', in {text.about.folder}' * bool(text.about.folder)}{old}")
        if text.about.begin not in ("", text.name):
            echo(f"          “{text.about.begin}”")
        size = decimal(max(text.n_bytes for text in row) + sum(text.n_own_bytes for text in row[1:]))
        of = f"{counted(text.n_tokens, 'token')} of {text.model}" + ", of an API key" * bool(text.owner)
        echo(f"          {of}, {size}, last used {row[0].used:%Y-%m-%d %H:%M}")
        other = first.setdefault(text.name, text)
        if other is not text:
            differences = text.contents.origin.differences(other.contents.origin)
            echo(
                f"          like {other.id[:8]}, read with {'; '.join(differences)}"
                if differences
                else f"          another document than {other.id[:8]}, of the same name"
            )
        for question in dict.fromkeys(text.about.question for text in row if text.about.question):
            echo(f"          > {question}")
    n = f"{counted(len(rows), 'document')} in {counted(len(texts), 'text')}"
    echo(f"{n}, {decimal(shelf.n_bytes)} of at most {decimal(shelf.limit_bytes)}: {shelf.folder}")


def remove(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="TEXT…", help="Names, or six or more first digits of ids.")
    ] = None,
    everything: Annotated[bool, option("Empty the library.", "--all")] = False,
    old: Annotated[bool, option("Remove the texts of earlier versions, which none finds.", "--old")] = False,
) -> None:
    """Remove documents, and the questions about them. In a terminal you are asked first."""
    if everything + old + bool(names) != 1:
        raise typer.BadParameter("name texts, or pass --all or --old")
    shelf = Library()
    if everything:
        confirm(f"Remove {counted(len(shelf.texts()), 'text')}, all of {shelf.folder}?")
        n = shelf.clear()
    elif old:
        n = shelf.remove(*(text.id for text in shelf.texts() if text.is_old))
    else:
        texts = shelf.texts()
        ids = {shelf._named("remove", name).id for name in names or ()}
        for text in texts:
            if text.id in ids:
                others = sum(other.document == text.id for other in texts) - (text.document == text.id)
                more = f", and {counted(others, 'text')} about it" * (others > 0)
                confirm(f"Remove {text.name} ({text.id[:8]}, {counted(text.n_tokens, 'token')}{more})?")
        n = shelf.remove(*ids)
    echo(f"{counted(n, 'text')} removed")


def verify(
    repair: Annotated[bool, option("Remove damaged texts, and blocks that no text has.", "--repair")] = False,
) -> None:
    """Read every text, and name the damaged ones. If there are any, the exit code is 1."""
    problems = Library().verify(repair=repair)
    for problem in problems:
        echo(as_typed(problem), err=True)
    told = "removed: read them again" if repair else "--repair removes them"
    echo(f"{counted(len(problems), 'text')} damaged, {told}" if problems else "nothing is damaged")
    if problems:
        raise typer.Exit(1)


def export(
    name: Annotated[str, typer.Argument(metavar="TEXT", help="A name, or six or more first digits of an id.")],
    file: Annotated[Path, typer.Argument(metavar="FILE", help="It must not be there yet.")],
) -> None:
    """Write a text to one file, to give away."""
    if file.exists():
        raise typer.BadParameter(f"{file} exists: name another file")
    Library().export_text(name, file)
    echo(f"{decimal(file.stat().st_size)}: {file}")


def add(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="From `h2o-llama library export`.")],
    model: Annotated[str | None, MODEL] = None,
) -> None:
    """Add the text of a file.

    Only the same model with the same settings finds it; --model refuses another one's.
    """
    with nullcontext() if model is None else Model(model) as loaded:
        text = Library().import_text(file, loaded)
    echo(f"{text.name}: {counted(text.n_tokens, 'token')} of {text.model}")


def why(
    o: Options,
    file: Annotated[Path, typer.Argument(metavar="FILE", help=f"{DOCUMENT}.")],
    model: Annotated[str | None, MODEL] = None,
) -> None:
    """Say whether a document is kept, or why not."""
    shelf = Library()
    named = [text for text in shelf.stored() if text.name == file.name]
    if model is None:
        for text in named:
            echo(f"{file.name} ({text.id[:8]}) is kept for {text.model}")
        if not named:
            echo(f"no text is called {file.name}: --model compares its content")
        return
    with open_model(replace(o, model=model)) as weights:
        content = read_text(file, True)
        question = Question.about("why", weights, content, think=o.thinking)
        with open_about(o, question, file.name, content, is_read=False) as (llm, question):
            ids, origin, core = question.shared.ids, llm._state.engine.origin, weights._handle
    n = shelf.n_known(origin, ids)
    near = max(shelf.stored(origin), key=lambda text: shared_prefix(text.contents.tokens, ids), default=None)
    others = sorted({text.model for text in named})
    echo(f"{n:,} of {counted(len(ids), 'token')} are kept for {origin.model}")
    if near is not None and (stop := where_they_part(core, near.contents.tokens, ids)) is not None:
        same = f"has the same first {counted(stop['token'], 'token')}"
        echo(f"{near.name} ({near.id[:8]}) {same}, then {stop['kept']!r}, not {stop['asked']!r}")
    elif n == 0 and not named:
        echo("nothing in the library begins like it")
    if n == 0 and others and origin.model not in others:
        echo(f"{file.name} was read by {', '.join(others)} only")
    for text in named:
        other = text.contents.origin
        if other.model == origin.model and key_of(other) != key_of(origin):
            echo(f"{file.name} ({text.id[:8]}) is not for it: {'; '.join(other.differences(origin))}")


library = group(
    "List and remove texts that were read.", _list, rm=remove, verify=verify, export=export, **{"import": add}
)
