"""How far a command is, and how fast it was."""

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from rich.console import Console, RenderableType
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from h2o_llama._internal.terminal import counted, echo

_PAUSE = 10.0
"""Seconds between two lines of progress without a terminal."""

_PATIENCE = 1.5
"""Seconds before a bar is drawn: what is known already takes less."""


class _Bars(Progress):
    def get_renderables(self) -> Iterable[RenderableType]:
        return super().get_renderables() if any((t.elapsed or 0) > _PATIENCE for t in self.tasks) else ()


def took(verb: str, n: int, seconds: float, n_known: int = 0) -> str:
    """A line about reading or writing, the same in all commands. Few tokens do not tell a speed."""
    n_new = n - n_known
    what = f"{counted(n_new, 'new token')} ({n_known:,} known)" if n_known else counted(n, "token")
    speed = f" ({n_new / seconds:,.0f} tokens/s)" if n_new >= (64 if verb == "read" else 8) else ""
    return f"{verb} {what} in {seconds:,.1f} s{speed}"


@contextmanager
def progress_bars(unit: str = "", auto_refresh: bool = True) -> Iterator[Callable[[str, int, int], None]]:
    """Yield `update(name, n_done, n_total)`, a bar for each name and `unit` after numbers. Bars vanish at the end.

    Without a terminal there is a line now and then instead. Without `auto_refresh` bars are drawn by `update` only, not
    by a thread, which would take time from the measurement.
    """
    console = Console(stderr=True)
    done = TextColumn("{task.completed:,.0f} of {task.total:,.0f}" + unit)
    title, left = TextColumn("{task.description}", markup=False), (TimeRemainingColumn(), TextColumn("left"))
    columns = (title, BarColumn(), done, *left)
    tasks: dict[str, TaskID] = {}
    start = last = time.monotonic()
    with _Bars(
        *columns, console=console, transient=True, disable=not console.is_terminal, auto_refresh=auto_refresh
    ) as bars:

        def update(name: str, n_done: int, n_total: int) -> None:
            nonlocal last
            now = time.monotonic()
            if not console.is_terminal and now - last >= _PAUSE:
                last = now
                echo(f"{name}: {n_done:,} of {n_total:,}{unit}, {now - start:,.0f} s", err=True)
            if name not in tasks:
                tasks[name] = bars.add_task(name, total=n_total)
            bars.update(tasks[name], completed=n_done, total=n_total, refresh=not auto_refresh)

        yield update
