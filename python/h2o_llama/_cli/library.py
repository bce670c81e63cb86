"""`h2o-llama library`: texts that were read."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Annotated

import typer
from rich.console import Console
from rich.filesize import decimal
from rich.table import Table

from h2o_llama._cli.errors import Commands, with_debug
from h2o_llama._internal.terminal import echo, plain, printable
from h2o_llama.library import Library, Text

library = typer.Typer(
    cls=Commands, help="Texts that were read, and need not be read again.", invoke_without_command=True
)


def _list() -> None:
    """List the texts, last used first. "Own" are the bytes that no other text shares."""
    shelf = Library()
    texts = shelf.texts()
    table = Table(box=None, header_style="bold")
    for title in ("Id", "Name", "Model", "Tokens", "Bytes", "Own", "Last used"):
        is_long = title in ("Name", "Model")
        table.add_column(title, no_wrap=not is_long, overflow="fold", justify="right" if title in _NUMBERS else "left")
    for text in texts:
        table.add_row(*map(plain, _row(text)))
    if texts:
        Console().print(table)
    echo(f"{len(texts):,} texts, {decimal(shelf.n_bytes)} of at most {decimal(shelf.limit_bytes)}: {shelf.folder}")


_NUMBERS = ("Tokens", "Bytes", "Own")


def _row(text: Text) -> tuple[str, ...]:
    sizes = (decimal(text.n_bytes), decimal(text.n_own_bytes))
    return (text.id[:8], text.name, text.model, f"{text.n_tokens:,}", *sizes, f"{text.used:%Y-%m-%d %H:%M}")


def remove(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="TEXT…", help="Names, or six or more first digits of ids.")
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="Empty the library.")] = False,
) -> None:
    """Remove texts. Where a person is at the terminal, they are asked first."""
    if everything == bool(names):
        raise typer.BadParameter("name texts, or pass --all")
    shelf = Library()
    if everything:
        _ask(f"Remove all {len(shelf.texts()):,} texts of {shelf.folder}?")
        n = shelf.clear()
    else:
        texts = {text.path.name: text.contents for text in (shelf._named("remove", name) for name in names or ())}
        for name, text in texts.items():
            _ask(f"Remove {text.name} ({name[:8]}, {len(text.tokens):,} tokens)?")
        n = shelf.remove(*texts)
    echo(f"{n:,} texts removed")


def _ask(question: str) -> None:
    """Nobody is asked where nobody is at the terminal."""
    if sys.stdin.isatty():
        typer.confirm(printable(question), abort=True, err=True)


def verify(
    repair: Annotated[
        bool, typer.Option("--repair", help="Remove damaged files, and blocks that no text has.")
    ] = False,
) -> None:
    """Read every file, and name the damaged ones; the exit code is 1 then."""
    problems = Library().verify(repair=repair)
    for problem in problems:
        echo(problem, err=True)
    removed = ": removed, but for those that cannot be read" if repair else ": --repair removes them"
    echo(f"{len(problems):,} damaged files{removed}" if problems else "nothing is damaged")
    if problems:
        raise typer.Exit(1)


_COMMANDS: dict[str, Callable[..., None]] = {
    "list": _list,
    "rm": remove,
    "verify": verify,
}

for _name, _command in _COMMANDS.items():
    library.command(_name)(with_debug(_command))


@library.callback()
def _list_without_a_command(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        _list()
