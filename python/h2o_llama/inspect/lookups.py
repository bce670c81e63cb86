"""What the tokens of a text looked up, tile by tile."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from h2o_llama.errors import H2OError

if TYPE_CHECKING:
    from h2o_llama import Llama

# Of a place that is looked up often, so are its neighbours: one of them stands for all.
_APART = 8


@dataclass(frozen=True)
class Lookups:
    """All positions that were looked up, and the query that asked for each, int32 [n].

    They are the same for every layer and head, and stand by the query, then by the position. A query sees `budget` (B)
    of the newest. `tiles`, of `tile_size` (T) positions each, are those of all chunks but the first, in which nothing
    can be looked up.
    """

    positions: NDArray[np.int32]
    queries: NDArray[np.int32]
    budget: int
    tile_size: int
    tiles: range

    def of_tile(self, tile: int) -> list[tuple[int, list[int]]]:
        """(query, its positions) for every query of a tile that asked for something, in order."""
        start, stop = np.searchsorted(self.queries, [tile * self.tile_size, (tile + 1) * self.tile_size])
        rows = zip(self.queries[start:stop].tolist(), self.positions[start:stop].tolist(), strict=True)
        return [(query, [position for _, position in group]) for query, group in groupby(rows, lambda row: row[0])]

    @property
    def share(self) -> int:
        """So many positions a query looks up at most."""
        return -(-self.budget // self.tile_size)

    @property
    def seen_at_the_end(self) -> frozenset[int]:
        """The positions that the last query sees: the newest B."""
        return frozenset(self.positions[-self.budget :].tolist())

    @property
    def mean_per_tile(self) -> float:
        """Positions that the queries of a tile of `tiles` looked up, on average; 0 without tiles."""
        return len(self.positions) / max(1, len(self.tiles))


def read_lookups(llm: Llama) -> Lookups:
    """What `llm` looked up for the tokens it has evaluated.

    Raises H2OError with lookup_budget=0 or retrieval="index", and if H2O is off.
    """
    if llm.h2o is None or not llm.h2o.has_lookups:
        raise H2OError("[read_lookups] nothing is looked up by the text: pass H2OConfig(retrieval='ngrams')")
    kv, size = llm.kv, llm.h2o.tile
    tiles = range(kv.chunk_size // size, -(-kv.n_tokens // size))
    rows = np.concatenate([np.empty((0, 2), np.int32), *map(kv.lookup_indices, tiles)])
    return Lookups(rows[:, 0], rows[:, 1], llm.h2o.lookup_budget, size, tiles)


def most_wanted(lookups: Lookups, n: int) -> list[tuple[int, int]]:
    """The n positions that most tiles looked up, and by how many tiles: at least 8 apart, of equal ones the first."""
    # In a tile of more than B rows a position can come again.
    asked = np.unique(np.stack([lookups.positions, lookups.queries // lookups.tile_size]), axis=1)
    positions, counts = np.unique(asked[0], return_counts=True)
    chosen: list[tuple[int, int]] = []
    for i in np.argsort(-counts, kind="stable").tolist():
        if len(chosen) == n:
            break
        if all(abs(int(positions[i]) - position) >= _APART for position, _ in chosen):
            chosen.append((int(positions[i]), int(counts[i])))
    return chosen


def examples(lookups: Lookups, n: int) -> list[tuple[int, list[int]]]:
    """(query, its positions) of the last n tiles that looked something up: of the query that asked for most.

    Of several such queries it is the first.
    """
    found: list[tuple[int, list[int]]] = []
    for tile in reversed(lookups.tiles):
        asked = lookups.of_tile(tile)
        if asked and len(found) < n:
            found.append(max(asked, key=lambda row: len(row[1])))
    return found[::-1]


def places(positions: Sequence[int]) -> list[range]:
    """Ascending positions as runs of neighbours."""
    runs: list[range] = []
    for position in positions:
        if runs and runs[-1].stop == position:
            runs[-1] = range(runs[-1].start, position + 1)
        else:
            runs.append(range(position, position + 1))
    return runs
