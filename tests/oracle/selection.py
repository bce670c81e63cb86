"""Which positions a memory set holds. Design, section 3, and its tie rule."""

from __future__ import annotations

import numpy as np

from .arrays import Array, IntArray
from .scorers import SCORERS, Scorer, block_sums


def candidate_ranks(
    scores: Array,
    previous: IntArray,
    chunk_start: int,
    end: int,
    *,
    L: int,
    A: int,
    scorer: Scorer = SCORERS["sum"],
    S: int = 1,
    chunk_sink: int = 0,
    block_tokens: int = 16,
) -> Array:
    """Ranks of positions [0, end) of one KV head, -inf where a position cannot be a heavy hitter.

    `scores` covers positions [0, end), `previous` is M_{c-1} (padding allowed), the chunk is [chunk_start, end).
    The first `chunk_sink` positions of chunks of S, but for the first chunk, have no rank of their own.
    """
    always = {*range(min(A, end)), *range(max(end - L, 0), end)}
    seen = set(previous[previous >= 0].tolist()) | set(range(chunk_start, end))
    positions = np.array(sorted(seen - always), dtype=np.int64)
    ranks = np.full(end, -np.inf, dtype=scores.dtype)
    if len(positions):
        own = scorer.rank(scores[positions], positions, end, L)
        own = np.where((positions >= S) & (positions % S < chunk_sink), -np.inf, own)
        ranks[positions] = block_sums(own, positions, block_tokens) if scorer.blocks else own
    return ranks


def select_memory(scores: Array, previous: IntArray, chunk_start: int, end: int, *, L: int, H: int, A: int) -> IntArray:
    """M_c of one KV head by plain sums: int32 [A + L + H], ascending, padded at the end with -1."""
    return select_ranked(
        candidate_ranks(scores, previous, chunk_start, end, L=L, A=A), previous, chunk_start, end, L=L, H=H, A=A
    )


def select_ranked(ranks: Array, previous: IntArray, chunk_start: int, end: int, *, L: int, H: int, A: int) -> IntArray:
    """M_c of one KV head by the ranks of positions [0, end)."""
    sinks = set(range(min(A, end)))
    local = set(range(max(end - L, 0), end))
    candidates = (set(previous[previous >= 0].tolist()) | set(range(chunk_start, end))) - sinks - local

    def order(position: int) -> tuple[float, int]:
        rank = float(ranks[position])
        return (np.inf if np.isnan(rank) else -rank, position)

    heavy = sorted(candidates, key=order)[:H]
    kept = sorted(sinks | local | set(heavy))
    memory = np.full(A + L + H, -1, dtype=np.int32)
    memory[: len(kept)] = kept
    return memory
