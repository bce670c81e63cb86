"""Lookups by brute force: every query's n-grams are compared with all of the text before them.

For n = 1, 2, 3 and query q, there are c positions p < e = max(c0 - L, 0) at which the n tokens that end there are those
that end at q. For the newest MAX_VISITS of them and each (j, w) of FOLLOW, score[p + j] += w * (n/c). Chosen from are
[A, e), but for what the query sees already. Of equal scores the higher position wins.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .rounding import Array

MAX_VISITS = 32

# What a position p at which an n-gram was found before is worth: of every p + j, the weight of j.
FOLLOW: tuple[tuple[int, float], ...] = ((1, 1.0), (0, 0.5), (2, 0.5), (3, 0.25))
OFFSETS, WEIGHTS = (np.array(column) for column in zip(*FOLLOW, strict=True))

# An entry of the log: a position, and the query that asked for it.
Row = tuple[int, int]


@dataclass(frozen=True)
class Lookup:
    S: int
    T: int
    B: int
    A: int = 0
    L: int = 0

    @property
    def share(self) -> int:
        """Rows that a query adds at most."""
        return -(-self.B // 4)

    def seen(self, log: Sequence[Row], query: int) -> tuple[int, int]:
        """The part of the log with the last B rows before the tile, and the tile's rows up to the query."""
        n_before = bisect_left(log, query - query % self.S % self.T, key=lambda row: row[1])
        return max(n_before - self.B, 0), bisect_right(log, query, key=lambda row: row[1])

    def end(self, query: int) -> int:
        """Candidates for this query are before this position."""
        return max(query // self.S * self.S - self.L, 0)

    def scores(self, tokens: Sequence[int] | Array, query: int) -> Array:
        """Of the positions [0, end); 0 where a position is not a candidate."""
        text = np.asarray(tokens, dtype=np.int64)
        end = self.end(query)
        scores = np.zeros(end)
        for n in (1, 2, 3):
            found = occurrences(text, query, n, end)
            if len(found) == 0:
                continue
            visited = found[::-1][:MAX_VISITS]
            positions = (visited[:, None] + OFFSETS).ravel()
            values = np.tile(WEIGHTS * (n / len(found)), len(visited))
            inside = (positions >= self.A) & (positions < end)
            # One after another, in this order: sums are rounded.
            np.add.at(scores, positions[inside], values[inside])
        return scores

    def choose(self, tokens: Sequence[int] | Array, first: int, last: int, log: Sequence[Row] = ()) -> list[Row]:
        """The rows that the queries [first, last) add to the log of those before them."""
        text = np.asarray(tokens, dtype=np.int64)
        rows = list(log)
        for query in range(first, last):
            scores = self.scores(text, query)
            begin, end = self.seen(rows, query)
            held = np.array([position for position, _ in rows[begin:end]], dtype=np.int64)
            wanted = np.setdiff1d(np.flatnonzero(scores > 0), held)
            best = wanted[np.lexsort((-wanted, -scores[wanted]))][: self.share]
            rows += [(position, query) for position in sorted(best.tolist())]
        return rows[len(log) :]


def occurrences(text: Array, q: int, n: int, end: int) -> Array:
    """Where before `end` the n tokens that end at q end too, ascending."""
    if q + 1 < n or end < n:
        return np.array([], dtype=np.int64)
    same = np.all([text[n - 1 - i : end - i] == text[q - i] for i in range(n)], axis=0)
    return np.flatnonzero(same) + n - 1
