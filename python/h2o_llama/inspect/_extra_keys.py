"""Which distant tokens the tiles of the last chunk read in addition to the memory sets."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from h2o_llama.errors import H2OError

if TYPE_CHECKING:
    from h2o_llama import Llama

# The neighbours of a token that is read often are too: one of them stands for all.
_APART = 8


@dataclass(frozen=True)
class ExtraKeys:
    """How many of the `n_tiles` tiles of the last chunk read each position as an extra key, int32 [n_heads, n_tokens].

    Heads are (layer, KV head), in the order of `MemoryReport.heads`.
    """

    n_tiles: int
    counts: NDArray[np.int32]

    def most_read(self, heads: Sequence[int], n: int) -> list[tuple[int, float]]:
        """The n positions that most tiles of these heads read, and the share of these: at least 8 apart."""
        counts = self.counts[heads].sum(axis=0)
        chosen: list[tuple[int, float]] = []
        for position in np.argsort(-counts, kind="stable").tolist():
            if len(chosen) == n or counts[position] == 0:
                break
            if all(abs(position - other) >= _APART for other, _ in chosen):
                chosen.append((position, float(counts[position]) / (len(heads) * self.n_tiles)))
        return chosen


def last_tiles(llm: Llama) -> range:
    """The tiles of the last chunk, which is not empty."""
    assert llm.h2o is not None
    start = llm.kv.chunk_boundaries[-1][0]
    first = start // llm.kv.chunk_size * -(-llm.kv.chunk_size // llm.h2o.tile)
    return range(first, first - (start - llm.n_tokens) // llm.h2o.tile)


def read_extra_keys(llm: Llama) -> ExtraKeys | None:
    """The last chunk's of what `llm` has evaluated; None without a lookup budget."""
    if llm.h2o is None or llm.h2o.lookup_budget == 0 or llm.n_tokens == 0:
        return None
    kv, tiles = llm.kv, last_tiles(llm)
    heads = [(layer, head) for layer in kv.layers for head in range(len(kv.memory_indices(layer)))]
    counts = np.zeros((len(heads), kv.n_tokens), np.int32)
    for row, (layer, head) in zip(counts, heads, strict=True):
        for tile in tiles:
            with suppress(H2OError):  # it attended to everything
                row[kv.extra_keys(layer, head, tile)] += 1
    return ExtraKeys(len(tiles), counts)
