"""How much of dense attention's mass the memory sets hold, and how much they could."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from h2o_llama.inspect.attention_mass import chunk_masses
from h2o_llama.inspect.history import MemoryHistory
from h2o_llama.inspect.measures import mean
from h2o_llama.model import Tokens

if TYPE_CHECKING:
    from h2o_llama import Llama


@dataclass(frozen=True)
class CapturedMass:
    """Shares of the mass that dense attention gives to everything before a chunk, each float64 [n_chunks, n_heads].

    Row c is chunk c + 1 with memory set c. `captured` is the share of the positions in the memory set, `best` the most
    that a memory set of this size with the same sinks and local window could hold for this chunk.
    """

    heads: tuple[tuple[int, int], ...]
    captured: NDArray[np.float64]
    best: NDArray[np.float64]


def captured_mass(
    llm: Llama,
    tokens: Tokens,
    history: MemoryHistory,
    *,
    n_threads: int | None = None,
    progress: Callable[[int, int], object] | None = None,
) -> CapturedMass:
    """Read `tokens`, of which `history` tells what was kept, once more with dense attention, and compare.

    `progress` is called as progress(n_done, n) after every chunk. Raises what `chunk_masses` raises.
    """
    rows = []
    masses = chunk_masses(llm, tokens, chunk_size=history.chunk_size, n_threads=n_threads)
    for chunk, layers in enumerate(masses):
        if chunk > 0:
            older = np.concatenate([mass[:, : chunk * history.chunk_size] for mass in layers.values()])
            rows.append(_shares(older, history, chunk - 1))
        if progress is not None:
            progress(min((chunk + 1) * history.chunk_size, len(tokens)), len(tokens))
    shares = np.array(rows).reshape(len(rows), 2, len(history.heads))
    return CapturedMass(history.heads, captured=shares[:, 0], best=shares[:, 1])


def mean_over_heads(captured: CapturedMass) -> list[tuple[int, float, float]]:
    """(chunk, share held, best possible share), averaged over all heads."""
    held, best = mean(captured.captured, axis=1), mean(captured.best, axis=1)
    return list(zip(range(1, len(held) + 1), held.tolist(), best.tolist(), strict=True))


def _shares(mass: NDArray[np.float32], history: MemoryHistory, index: int) -> NDArray[np.float64]:
    """Of mass [n_heads, n_older], the share in memory set `index` and in the best one, float64 [2, n_heads]."""
    n_older = mass.shape[1]
    heavy = history.heavy[index]
    sinks_end = min(history.sink_tokens, n_older)
    local_start = max(sinks_end, n_older - history.local_window)
    always = mass[:, :sinks_end].sum(axis=1) + mass[:, local_start:].sum(axis=1)
    chosen = np.where(heavy >= 0, np.take_along_axis(mass, np.maximum(heavy, 0), axis=1), 0).sum(axis=1)
    others = -np.sort(-mass[:, sinks_end:local_start], axis=1)
    best = others[:, : history.heavy_budget].sum(axis=1)
    total = mass.sum(axis=1, dtype=np.float64)
    shares = np.full((2, len(mass)), np.nan)
    np.divide([always + chosen, always + best], total, out=shares, where=total > 0)
    return shares
