"""How far a command is, and how fast it was."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from h2o_llama._internal.terminal import counted, echo

_PAUSE = 10.0
"""Seconds between two lines of progress without a terminal."""


def took(verb: str, n: int, seconds: float, n_known: int = 0, where: str = "from the library") -> str:
    """A line about reading or writing, the same in all commands. Few tokens do not tell a speed."""
    known, n_new = f" ({n_known:,} {where})" if n_known else "", n - n_known
    speed = f" ({n_new / seconds:,.0f} tokens/s)" if n_new >= (64 if verb == "read" else 8) else ""
    return f"{verb} {counted(n, 'token')}{known} in {seconds:,.1f} s{speed}"


@contextmanager
def progress_bars(auto_refresh: bool = True) -> Iterator[Callable[[str, int, int], None]]:
    """Yield `update(name, n_done, n_total)`, with one bar per name. The bars vanish at the end.

    Without a terminal there is a line now and then instead. Without `auto_refresh` bars are drawn by `update` only, not
    by a thread, which would take time from the measurement.
    """
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    tasks: dict[str, TaskID] = {}
    start = last = time.monotonic()
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal, auto_refresh=auto_refresh
    ) as bars:

        def update(name: str, n_done: int, n_total: int) -> None:
            nonlocal last
            now = time.monotonic()
            if not console.is_terminal and now - last >= _PAUSE:
                last = now
                echo(f"{name}: {n_done:,} of {n_total:,}, {now - start:,.0f} s", err=True)
            if name not in tasks:
                tasks[name] = bars.add_task(name)
            bars.update(tasks[name], completed=n_done, total=n_total, refresh=not auto_refresh)

        yield update
