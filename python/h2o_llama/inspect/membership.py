"""The HTML page's picture of which positions are heavy hitters of which memory set."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from h2o_llama.inspect.history import MemoryHistory, count_in_bins
from h2o_llama.inspect.memory import SHADES

# A cell per bin, memory set and head goes into the page: a model with many heads gets fewer bins.
_MAX_BINS = 96
_MAX_CELLS = 2_000_000


@dataclass(frozen=True)
class Membership:
    """A column per memory set, a row per bin of positions up to `n_positions`, with evenly spaced `ticks`.

    `bands` are ("sinks" or "local", column, start, stop) of what is always kept, `cells` (column, start, stop, shade)
    of every bin, by the mean over all heads. The strongest shade ends at the share `strongest` of a bin's positions,
    every weaker one at half the share of the next; shade 0 is for bins without heavy hitters. `data` is for the page's
    script, to draw single heads.
    """

    n_positions: int
    ticks: list[int]
    columns: list[int]
    bands: list[tuple[str, int, int, int]]
    cells: list[tuple[int, int, int, int]]
    strongest: float
    data: dict[str, Any]


def membership(history: MemoryHistory) -> Membership:
    """The picture of a history with at least one heavy hitter."""
    bins = count_in_bins(history, max(1, min(_MAX_BINS, int(math.sqrt(_MAX_CELLS / len(history.heads))))))
    sets, edges = bins.sets.tolist(), bins.edges.tolist()
    ends = [(c + 1) * history.chunk_size for c in sets]
    share = bins.counts.mean(axis=1) / np.diff(bins.edges)
    strongest = float(share.max())
    shade = _shade(share / strongest)
    bands = []
    for column, end in enumerate(ends):
        bands.append(("local", column, max(0, end - history.local_window), end))
        bands.append(("sinks", column, 0, min(history.sink_tokens, end)))
    return Membership(
        n_positions=ends[-1],
        ticks=[ends[-1] * i // 4 for i in range(5)],
        columns=sets,
        bands=[band for band in bands if band[2] < band[3]],
        cells=[
            (column, start, min(stop, end), int(shade[column, b]))
            for column, end in enumerate(ends)
            for b, (start, stop) in enumerate(pairwise(edges))
            if start < end
        ],
        strongest=strongest,
        data={
            "sets": sets,
            "edges": edges,
            # Zeros at the end are left out.
            "counts": [[np.trim_zeros(c, "b").tolist() for c in head] for head in bins.counts.swapaxes(0, 1)],
        },
    )


def _shade(relative: NDArray[np.float64]) -> NDArray[np.int64]:
    """SHADES above 1/2, one less above 1/4, and so on; 0 only for 0."""
    is_some = relative > 0
    halvings = np.floor(-np.log2(relative, where=is_some, out=np.zeros_like(relative)))
    return np.where(is_some, np.maximum(1, SHADES - halvings), 0).astype(np.int64)
