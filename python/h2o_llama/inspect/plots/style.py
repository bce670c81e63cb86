"""The look that all plots share. It can be read in grayscale: lines differ in dashes and markers."""

from __future__ import annotations

from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

_DASHES: list[Any] = ["-", "--", "-.", ":", (0, (5, 1)), (0, (1, 1))]
_MARKERS = "os^DvPX"
# Okabe and Ito's colours for all kinds of colour vision, without the yellow, which is too light for lines.
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#000000", "#e69f00", "#56b4e9")


def new_figure(width: float, height: float, n_rows: int = 1, n_columns: int = 1) -> tuple[Figure, list[Axes]]:
    """A figure of that many inches, and its axes row by row."""
    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.subplots(n_rows, n_columns, squeeze=False)
    return figure, list(axes.flat)


def line_style(index: int) -> dict[str, Any]:
    """Dashes, marker and colour of the index-th line; the dashes and the marker repeat after 42 lines."""
    return {
        "linestyle": _DASHES[index % len(_DASHES)],
        "marker": _MARKERS[index % len(_MARKERS)],
        "markersize": 5,
        "color": _COLOURS[index % len(_COLOURS)],
    }


DENSE_LINE: dict[str, Any] = {"linestyle": "-", "linewidth": 2.5, "color": "0.65", "zorder": 0}
