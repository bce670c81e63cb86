"""Tokens per second against the prompt length, as a picture. Needs matplotlib: pip install "h2o-llama[bench]"."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, NullLocator

from results import Run
from settings import DENSE_FLASH, DENSE_PLAIN, SINGLE_PASS, TWO_PHASE

COLOURS = {SINGLE_PASS: "#0b5fa5", TWO_PHASE: "#c2570c", DENSE_FLASH: "#333333", DENSE_PLAIN: "#808080"}
LABEL_HEIGHT = 0.055  # of the axes; labels that are nearer to each other would touch


def plot(run: Run, path: Path) -> None:
    """Draw one line per setting, named at its end; dense ones are dashed."""
    figure, axes = plt.subplots(figsize=(8, 4.5), layout="constrained", facecolor="white")
    lines = {s: run.of(s) for s in COLOURS}
    lines = {s: results for s, results in lines.items() if results}
    for setting, results in lines.items():
        x, y = [r.case.n_tokens for r in results], [r.speed for r in results]
        axes.plot(x, y, color=COLOURS[setting], linestyle="--" if setting.is_dense else "-", marker="o", markersize=4)

    axes.set_xscale("log", base=2)
    axes.set_xticks(run.lengths)
    axes.xaxis.set_minor_locator(NullLocator())
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axes.set_ylim(0, 1.1 * max(r.speed for results in lines.values() for r in results))
    axes.set_xlabel("prompt length N, tokens")
    axes.set_title(f"Prefill, tokens per second; threads: {run.plan['n_threads']}", loc="left", fontsize=11)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="#e6e6e6", linewidth=0.8)
    axes.set_axisbelow(True)

    ends = {s.name: (results[-1].case.n_tokens, results[-1].speed, COLOURS[s]) for s, results in lines.items()}
    _label(axes, ends)
    figure.savefig(path, dpi=150, transparent=False)
    plt.close(figure)


def _label(axes: Axes, ends: Mapping[str, tuple[float, float, str]]) -> None:
    """Names at the ends of the lines, from the bottom up, pushed apart where lines of the same length end together."""
    top = axes.get_ylim()[1]
    free: dict[float, float] = {}
    for name, (x, y, colour) in sorted(ends.items(), key=lambda item: item[1][1]):
        height = max(y, free.get(x, 0.0))
        free[x] = height + LABEL_HEIGHT * top
        axes.annotate(
            name,
            (x, height),
            (8, 0),
            textcoords="offset points",
            va="center",
            color=colour,
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 1},
            annotation_clip=False,
        )
