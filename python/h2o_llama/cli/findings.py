"""What the commands that measure do with what they found."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from rich.console import Console

from h2o_llama._internal import terminal
from h2o_llama.bench.tables import Table
from h2o_llama.inspect.html import check_target

STDOUT = Path("-")

Draw = Callable[[Sequence[Mapping[str, Any]]], list[Path]]


def check_files(*paths: Path | None) -> None:
    """Fail here, before anything is measured, if one of these files cannot be written."""
    for path in paths:
        if path is not None and path != STDOUT:
            check_target(path)


def drawing(plots: Literal["bench_plots", "eval_plots"], folder: Path) -> Draw:
    """What draws rows into a folder. Fails here, before anything is measured, if matplotlib or the folder cannot be."""
    import h2o_llama.inspect.plots

    draw = getattr(h2o_llama.inspect.plots, plots)
    folder.mkdir(parents=True, exist_ok=True)
    return lambda rows: draw(rows, folder)


def write(
    files: Sequence[tuple[Path | None, str]],
    rows: Sequence[Mapping[str, Any]],
    draw: Draw | None,
    facts: str,
    tables: Iterable[Table],
) -> None:
    """Write files, draw rows, then print facts and tables, unless one of the files is standard output."""
    written = []
    for path, content in files:
        if path == STDOUT:
            terminal.write(content)
        elif path is not None:
            path.write_text(content, encoding="utf-8")
            written.append(path)
    if draw is not None:
        written += draw(rows)
    if any(path == STDOUT for path, _ in files):
        return
    console = Console()
    if console.is_terminal:
        console.print(terminal.plain(facts), "")
        for table in tables:
            console.print(table.rich(), "")
    else:
        terminal.echo("\n\n".join([facts, *(table.markdown() for table in tables)]))
    name_files(written)


def name_files(paths: Sequence[Path]) -> None:
    """Say what was written."""
    for path in paths:
        terminal.echo(f"Written: {path}")
