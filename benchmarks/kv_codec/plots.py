"""Plot of what `python benchmarks/codec_sizes.py` measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from h2o_llama.inspect.plots.style import line_style, new_figure


def codec_plots(rows: Sequence[Mapping[str, Any]], directory: Path) -> list[Path]:
    """Draw the ratio of every layer's K and V, as an SVG file.

    Parameters
    ----------
    rows : sequence of mapping
        "rows" of what `python benchmarks/codec_sizes.py --json` writes.
    directory : Path
        Where the file goes; it is made if it is missing.

    Returns
    -------
    list of Path
        "codec.svg".

    Raises
    ------
    OSError
        If the file cannot be written.
    """
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / "codec.svg"
    # a date would make equal figures different files
    ratios(rows).savefig(path, metadata={"Date": None})
    return [path]


def ratios(rows: Sequence[Mapping[str, Any]]) -> Figure:
    """Ratio against layer: K and V beside each other, a line for each view."""
    auto = [row for row in rows if row["predictor"] == "auto"]
    figure, panels = new_figure(10, 4, 1, 2)
    for axes, part in zip(panels, "KV", strict=True):
        for i, view in enumerate(dict.fromkeys(row["view"] for row in auto)):
            points = sorted((r["layer"], r["ratio"]) for r in auto if (r["view"], r["part"]) == (view, part))
            axes.plot(*zip(*points, strict=True), label=view, **line_style(i))
        axes.set(title=part, xlabel="layer", ylabel="bytes over bytes of frames", ylim=(1, None))
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.grid(alpha=0.3)
        axes.legend()
    return figure
