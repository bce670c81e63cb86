"""Which heavy hitters came into the memory sets when: data of a `Llama` that recorded, and the page's picture of it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from h2o_llama.errors import H2OError

if TYPE_CHECKING:
    from h2o_llama import Llama

SHADES = 5
_NOWHERE = np.iinfo(np.int32).max

# A cell per bin, memory set and head goes into the page: a model with many heads gets fewer bins.
_MAX_BINS = 96
_MAX_CELLS = 2_000_000


@dataclass(frozen=True)
class MemoryHistory:
    """The heavy hitters of all memory sets so far. Sinks and local windows, the same for every head, are left out.

    `heads` are (layer, KV head), in the order of the rows of `heavy`, int32 [n_sets, n_heads, k]: positions, ascending,
    padded at the end with -1. Set c was built after chunk c, which ends at (c + 1) * S.
    """

    heads: tuple[tuple[int, int], ...]
    heavy: NDArray[np.int32]
    chunk_size: int
    local_window: int
    sink_tokens: int

    def since(self, row: int, positions: NDArray[np.int32]) -> list[int]:
        """The first memory set of a head with each of these positions, which are heavy hitters of one."""
        first: list[int] = np.array([np.isin(positions, kept) for kept in self.heavy[:, row]]).argmax(axis=0).tolist()
        return first


def memory_history(llm: Llama) -> MemoryHistory:
    """What `llm`, opened with keep_history=True, kept after every chunk. Raises H2OError if it did not record."""
    if llm.h2o is None:
        raise H2OError("[memory_history] H2O is off: pass h2o=H2OConfig() and keep_history=True to Llama")
    kv, h2o = llm.kv, llm.h2o
    layers = kv.layers
    heads = tuple((layer, head) for layer in layers for head in range(len(kv.memory_indices(layer))))
    sets = kv.history
    indices = np.empty((len(sets), len(heads), h2o.memory_size), np.int32)
    for row, memory in zip(indices, sets, strict=True):
        np.concatenate([memory[layer] for layer in layers], out=row)

    local_start = (np.arange(len(sets))[:, None, None] + 1) * kv.chunk_size - h2o.local_window
    is_heavy = (indices >= h2o.sink_tokens) & (indices < local_start)
    heavy = np.sort(np.where(is_heavy, indices, _NOWHERE), axis=-1)[..., : is_heavy.sum(axis=-1).max(initial=0)]
    return MemoryHistory(
        heads=heads,
        heavy=np.where(heavy == _NOWHERE, -1, heavy),
        chunk_size=kv.chunk_size,
        local_window=h2o.local_window,
        sink_tokens=h2o.sink_tokens,
    )


@dataclass(frozen=True)
class Bins:
    """Heavy hitters of each set and head counted by where in the document they are, int64 [n, n_heads, n_bins].

    `sets`, int64 [n], were counted: all, or evenly spaced ones and the last. Bin b holds the positions edges[b] to
    edges[b + 1] - 1.
    """

    sets: NDArray[np.int64]
    edges: NDArray[np.int64]
    counts: NDArray[np.int64]


def count_in_bins(history: MemoryHistory, n_max: int) -> Bins:
    """Count in at most about `n_max` bins and sets: parts of a chunk, or several chunks if there are more than that."""
    n, size = len(history.heavy), history.chunk_size
    chunks_per_bin = max(1, -(-n // n_max))
    bins_per_chunk = max(1, min(size, n_max // n)) if chunks_per_bin == 1 and n else 1
    sets = np.arange(n - 1, -1, -chunks_per_bin)[::-1]
    n_bins = -(-n * bins_per_chunk // chunks_per_bin)
    # Bin of a position: position * bins_per_chunk // (size * chunks_per_bin); an edge is the first position of its bin.
    edges = -(-np.arange(n_bins + 1) * size * chunks_per_bin // bins_per_chunk)
    counts = np.zeros((len(sets), len(history.heads), n_bins), np.int64)
    kept = history.heavy[sets]
    i, row, slot = np.nonzero(kept >= 0)
    bins = kept[i, row, slot].astype(np.int64) * bins_per_chunk // (size * chunks_per_bin)
    np.add.at(counts, (i, row, bins), 1)
    return Bins(sets, np.minimum(edges, n * size), counts)


@dataclass(frozen=True)
class Membership:
    """A column per memory set, a row per bin of positions up to `n_positions`, with evenly spaced `ticks`.

    `bands` are ("sinks" or "local", column, start, stop) of the positions that are always kept, `cells` (column, start,
    stop, shade) of every bin, by the mean over all heads. The strongest shade ends at the share `strongest` of a bin's
    positions, every weaker one at half the share of the next; shade 0 is for bins without heavy hitters. `data` is for
    the page's script, to draw single heads.
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
