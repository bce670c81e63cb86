"""Lookups by brute force: every tile's n-grams are compared with all of the text before them.

For n = 1, 2, 3 and query q, there are c positions p < e = max(c0 - L, 0) at which the n tokens that end there are those
that end at q. The newest MAX_VISITS of them give w = n/c: score[p + 1] += w, score[p] += w/2. Chosen from are [A, e).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from .arrays import IntArray

MAX_VISITS = 64

# A position and the first query that may see it.
Row = tuple[int, int]


@dataclass(frozen=True)
class Lookup:
    """G: how many queries of a tile choose together; all of them if 0."""

    S: int
    T: int
    B: int
    A: int = 0
    L: int = 0
    G: int = 0

    def end(self, query: int) -> int:
        """Candidates for this query are before this position."""
        return max(query // self.S * self.S - self.L, 0)

    def scores(self, tokens: Sequence[int], queries: Iterable[int]) -> dict[int, tuple[float, int]]:
        """Score, and the first query that gave it one, by position; of queries of one chunk."""
        text = np.array(tokens, dtype=np.int64)
        scores: dict[int, tuple[float, int]] = {}
        for q in queries:
            end = self.end(q)
            for n in (1, 2, 3):
                found = occurrences(text, q, n, end)
                for p in found[::-1][:MAX_VISITS].tolist():
                    w = n / len(found)
                    for position, value in ((p + 1, w), (p, w / 2)):
                        if self.A <= position < end:
                            total, first = scores.get(position, (0.0, q))
                            scores[position] = (total + value, first)
        return scores

    def choose(self, tokens: Sequence[int], q0: int, q1: int, chosen: Sequence[Row] = ()) -> list[Row]:
        """New rows for the queries [q0, q1) of a tile that has the rows `chosen`."""
        t0 = q0 // self.T * self.T
        G = self.G or self.T
        rows = list(chosen)
        for k in range(0, self.T, G):
            queries = range(max(t0 + k, q0), min(t0 + k + G, q1))
            scores = self.scores(tokens, queries)
            for position, _ in rows:
                scores.pop(position, None)
            room = max(self.B * (k + G) // self.T - len(rows), 0) if queries else 0
            best = sorted(scores, key=lambda position: (-scores[position][0], position))[:room]
            rows += [(position, scores[position][1]) for position in sorted(best)]
        return rows[len(chosen) :]


def occurrences(text: IntArray, q: int, n: int, end: int) -> IntArray:
    """Where before `end` the n tokens that end at q end too, ascending."""
    if q + 1 < n or end < n:
        return np.array([], dtype=np.int64)
    same = np.all([text[n - 1 - i : end - i] == text[q - i] for i in range(n)], axis=0)
    return np.flatnonzero(same) + n - 1
