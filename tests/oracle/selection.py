"""Which positions a memory set holds. Design, section 3, and its tie rule."""

from __future__ import annotations

import numpy as np

from .arrays import Array, IntArray


def select_memory(scores: Array, previous: IntArray, chunk_start: int, end: int, *, L: int, H: int, A: int) -> IntArray:
    """M_c of one KV head: int32 [A + L + H], ascending, padded at the end with -1.

    `scores` covers positions [0, end), `previous` is M_{c-1} (padding allowed), the chunk is [chunk_start, end).
    """
    sinks = set(range(min(A, end)))
    local = set(range(max(end - L, 0), end))
    candidates = (set(previous[previous >= 0].tolist()) | set(range(chunk_start, end))) - sinks - local

    def rank(position: int) -> tuple[float, int]:
        score = float(scores[position])
        return (np.inf if np.isnan(score) else -score, position)

    heavy = sorted(candidates, key=rank)[:H]
    kept = sorted(sinks | local | set(heavy))
    memory = np.full(A + L + H, -1, dtype=np.int32)
    memory[: len(kept)] = kept
    return memory
