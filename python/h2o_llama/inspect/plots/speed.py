"""Plots of what `h2o-llama bench` measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullLocator

from h2o_llama.inspect.plots.style import line_style, new_figure

_TITLES = {"prefill": ("Prefill", "prompt length N (tokens)"), "generation": ("Generation", "depth (tokens before)")}


def bench_plots(rows: Sequence[Mapping[str, Any]], directory: Path) -> list[Path]:
    """Draw tokens per second against length, as SVG files.

    Parameters
    ----------
    rows : sequence of mapping
        "rows" of what `h2o-llama bench --json` writes.
    directory : Path
        Where the files go; it is made if it is missing.

    Returns
    -------
    list of Path
        "prefill.svg" and "generation.svg", if there are such rows.

    Raises
    ------
    OSError
        If a file cannot be written.
    """
    directory.mkdir(parents=True, exist_ok=True)
    paths = []
    for test in _TITLES:
        if found := [row for row in rows if row["test"] == test]:
            paths.append(directory / f"{test}.svg")
            # a date and random names would make equal figures different files
            speed(test, found).savefig(paths[-1], metadata={"Date": None})
    return paths


def speed(test: str, rows: Sequence[Mapping[str, Any]]) -> Figure:
    """Tokens per second against length: a line for each mode."""
    title, label = _TITLES[test]
    figure, (axes,) = new_figure(8, 5)
    for i, mode in enumerate(dict.fromkeys(row["mode"] for row in rows)):
        points = sorted((row["n_tokens"], row["tokens_per_s"]) for row in rows if row["mode"] == mode)
        axes.plot(*zip(*points, strict=True), label=mode, **line_style(i))
    axes.set_xscale("log", base=2)
    axes.set_xticks(sorted({row["n_tokens"] for row in rows}))
    axes.xaxis.set_minor_locator(NullLocator())
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axes.set(title=title, xlabel=label, ylabel="tokens per second", ylim=(0, None))
    axes.grid(alpha=0.3)
    axes.legend()
    return figure
