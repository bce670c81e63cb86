"""Which positions a memory set holds, and how heavy hitters are ranked. Design, section 3, and its tie rule."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from .rounding import Array


@dataclass(frozen=True)
class Scorer:
    """`counts` says which pairs of (query, key) positions add to a score, L given; `rank` makes ranks of scores [n]
    of candidates at positions [n] for the set built at `end`."""

    counts: Callable[[Array, Array, int], Array]
    rank: Callable[[Array, Array, int, int], Array] = lambda scores, positions, end, L: scores
    blocks: bool = False  # positions are ranked by blocks, and the scores of kept positions fade


SCORERS = {
    "sum": Scorer(lambda queries, keys, L: queries >= keys),
    "distant": Scorer(
        lambda queries, keys, L: queries - keys >= L,
        lambda scores, positions, end, L: scores / (end - L - positions),
    ),
    "block_ema": Scorer(lambda queries, keys, L: queries >= keys, blocks=True),
}


def candidate_ranks(
    scores: Array,
    previous: Array,
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
    ranks = np.full(end, -np.inf, dtype=scores.dtype)
    positions = np.array(sorted(_candidates(previous, chunk_start, end, L, A)), dtype=np.int64)
    if len(positions):
        own = scorer.rank(scores[positions], positions, end, L)
        own = np.where((positions >= S) & (positions % S < chunk_sink), -np.inf, own)
        if scorer.blocks:  # every candidate takes the sum of the ranks of its block's candidates
            blocks = positions // block_tokens
            own = np.array([own[blocks == block].sum(dtype=np.float64) for block in blocks])
        ranks[positions] = own
    return ranks


def select_memory(ranks: Array, previous: Array, chunk_start: int, end: int, *, L: int, H: int, A: int) -> Array:
    """M_c of one KV head by the ranks of positions [0, end): int32 [A + L + H], ascending, then -1."""

    def order(position: int) -> tuple[float, int]:
        rank = float(ranks[position])
        return (np.inf if np.isnan(rank) else -rank, position)

    heavy = sorted(_candidates(previous, chunk_start, end, L, A), key=order)[:H]
    kept = sorted({*heavy, *range(min(A, end)), *range(max(end - L, 0), end)})
    return np.pad(np.array(kept, np.int32), (0, A + L + H - len(kept)), constant_values=-1)


def _candidates(previous: Array, chunk_start: int, end: int, L: int, A: int) -> set[int]:
    """All but sinks and local window."""
    seen = {*previous[previous >= 0].tolist(), *range(chunk_start, end)}
    return seen - {*range(min(A, end)), *range(max(end - L, 0), end)}
