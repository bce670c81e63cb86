"""Progress bars on stderr, so that stdout has only results."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn


@contextmanager
def progress_bars(auto_refresh: bool = True) -> Iterator[Callable[[str, int, int], None]]:
    """Yield `update(name, n_done, n_total)`, with one bar per name. The bars vanish at the end.

    They are shown only in a terminal. Without `auto_refresh` they are drawn by `update` only, not by a thread, which
    would take time from the measurement.
    """
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    tasks: dict[str, TaskID] = {}
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal, auto_refresh=auto_refresh
    ) as bars:

        def update(name: str, n_done: int, n_total: int) -> None:
            if name not in tasks:
                tasks[name] = bars.add_task(name)
            bars.update(tasks[name], completed=n_done, total=n_total, refresh=not auto_refresh)

        yield update
