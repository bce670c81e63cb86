"""Schedule `single_pass`: chunk by chunk through the model once.

One softmax over the memory set, the chunk and what the query's tile has looked up.
"""

from __future__ import annotations

import numpy as np

from . import layers
from .arrays import Array, BoolArray, IntArray
from .attention import attend
from .sequence import OracleSequence


class OracleSinglePass(OracleSequence):
    """K and V come from hidden states that saw the memory set."""

    has_lookup = True

    def _prefill(self, tokens: IntArray) -> Array:
        start = self.n_tokens
        pieces = self._pieces(start, len(tokens))
        return np.concatenate([self._piece(tokens[first - start : last - start]) for first, last in pieces])

    def _piece(self, tokens: IntArray) -> Array:
        """Append tokens that lie in one chunk. Returns their last hidden states."""
        first, last = self.n_tokens, self.n_tokens + len(tokens)
        self._begin_chunk(first)
        self._extend_scores(len(tokens))
        self._look_up(first, last)
        positions = np.arange(first, last, dtype=np.int32)

        def attention(il: int, x: Array) -> Array:
            self.cache.append(il, *layers.key_value(self.model, il, x, positions))
            q = layers.query(self.model, il, x, positions)
            self._score_queries(il, q, positions)
            return self._joint(il, q, positions)

        x = layers.forward(self.model, tokens, self.dtype, attention)
        self.cache.n_tokens = last
        return x

    def _look_up(self, first: int, last: int) -> None:
        """Each of these queries chooses for itself, within what its tile's budget is up to its place."""
        if not self.lookup.B:
            return
        for query in range(first, last):
            rows = self.lookups.setdefault(query // self.lookup.T, [])
            rows += self.lookup.choose(self.text[: query + 1], query, query + 1, rows)

    def _joint(self, il: int, q: Array, positions: IntArray) -> Array:
        """Attention to the whole memory set, causally to the chunk so far, and to what was looked up.

        All but the last is scored. Returns [n_head, n_q, head_dim].
        """
        memory = self._memory(il)
        chunk = np.arange(positions[0] // self.S * self.S, positions[-1] + 1)
        looked_up, is_visible = self._looked_up(positions)
        others = np.concatenate([chunk, looked_up])
        keys = np.concatenate([memory, np.broadcast_to(others, (len(memory), len(others)))], axis=1)
        n_scored = keys.shape[1] - len(looked_up)
        # Every head sees the same keys of the chunk, and all of its memory set: that is older than any query.
        in_memory = np.ones((len(positions), memory.shape[1]), dtype=bool)
        allowed = np.concatenate([in_memory, chunk <= positions[:, None], is_visible], axis=1)
        # What a head has in its memory set counts once.
        is_first = np.ones(keys.shape, dtype=bool)
        is_first[:, n_scored:] = [~np.isin(looked_up, kept) for kept in memory]
        state, colsum = attend(
            q, *self.cache.gather(il, keys), allowed & is_first[:, None], self._counts(positions, keys)
        )
        self._add_scores(il, keys[:, :n_scored], colsum[:, :n_scored])
        return state.o

    def _looked_up(self, positions: IntArray) -> tuple[IntArray, BoolArray]:
        """The rows [n] of these queries' tiles, one tile after another, and which query sees which: [n_q, n]."""
        T = self.lookup.T
        tiles = range(positions[0] // T, positions[-1] // T + 1)
        rows = [(tile, *row) for tile in tiles for row in self.lookups.get(tile, ())]
        tile, position, first = np.array(rows, dtype=np.int64).reshape(-1, 3).T
        return position, (tile == positions[:, None] // T) & (first <= positions[:, None])
