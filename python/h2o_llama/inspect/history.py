"""Which heavy hitters came into the memory sets when, and how long they stayed: data of a `Llama` that recorded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from h2o_llama.errors import H2OError

if TYPE_CHECKING:
    from h2o_llama import Llama

_NOWHERE = np.iinfo(np.int32).max


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
    heavy_budget: int
    sink_tokens: int

    @property
    def n_sets(self) -> int:
        """How many memory sets there are."""
        return len(self.heavy)


@dataclass(frozen=True)
class Stays:
    """Every position that was a heavy hitter of one head: the first and the last memory set with it, each int64 [n].

    `positions` ascend.
    """

    positions: NDArray[np.int64]
    first: NDArray[np.int64]
    last: NDArray[np.int64]


@dataclass(frozen=True)
class Bins:
    """Heavy hitters of each set and head counted by where in the document they are, int64 [n, n_heads, n_bins].

    `sets`, int64 [n], were counted: all, or evenly spaced ones and the last. Bin b holds the positions edges[b] to
    edges[b + 1] - 1.
    """

    sets: NDArray[np.int64]
    edges: NDArray[np.int64]
    counts: NDArray[np.int64]


def memory_history(llm: Llama) -> MemoryHistory:
    """What `llm`, opened with record=True, kept after every chunk. Raises H2OError if it did not record."""
    if llm.h2o is None:
        raise H2OError("[memory_history] H2O is off: pass h2o=H2OConfig() and record=True to Llama")
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
        heavy_budget=h2o.heavy_budget,
        sink_tokens=h2o.sink_tokens,
    )


def stays(history: MemoryHistory, row: int) -> Stays:
    """When each position came into the memory sets of one head and when it left."""
    kept = history.heavy[:, row]
    sets, slots = np.nonzero(kept >= 0)
    positions, first = np.unique(kept[sets, slots], return_index=True)
    _, last = np.unique(kept[sets, slots][::-1], return_index=True)
    return Stays(positions.astype(np.int64), sets[first], sets[::-1][last])


def count_in_bins(history: MemoryHistory, n_max: int) -> Bins:
    """Count in at most about `n_max` bins and sets: parts of a chunk, or several chunks if there are more than that."""
    n, size = history.n_sets, history.chunk_size
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
