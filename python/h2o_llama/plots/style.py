"""The look that all plots share. It can be read in grayscale: lines differ in dashes and markers, maps in lightness."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from numpy.typing import ArrayLike

_DASHES: list[Any] = ["-", "--", "-.", ":", (0, (5, 1)), (0, (1, 1))]
_MARKERS = "os^DvPX"
# Okabe and Ito's colours for all kinds of colour vision, without the yellow, which is too light for lines.
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#000000", "#e69f00", "#56b4e9")
_MAP = "cividis"

# More cells than that are too small for their numbers.
_MAX_NUMBERS = 400


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


def heat_map(
    axes: Axes,
    values: ArrayLike,
    columns: Sequence[object],
    rows: Sequence[object],
) -> AxesImage:
    """Draw shares [n_rows, n_columns] with their names, and with numbers if there is room; NaN stays empty."""
    table = np.asarray(values, dtype=np.float64)
    image = axes.imshow(table, cmap=_MAP, vmin=0, vmax=1, aspect="auto", interpolation="nearest")
    axes.set_xticks(range(len(columns)), [str(c) for c in columns])
    axes.set_yticks(range(len(rows)), [str(r) for r in rows])
    if table.size <= _MAX_NUMBERS:
        for (y, x), value in np.ndenumerate(table):
            if not np.isnan(value):
                colour = "black" if value > 0.5 else "white"
                axes.text(x, y, f"{value:.2f}", ha="center", va="center", fontsize=8, color=colour)
    return image
