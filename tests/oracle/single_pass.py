"""Schedule `single_pass`: chunk by chunk through the model once, one softmax over the memory set and the chunk."""

from __future__ import annotations

import numpy as np

from . import layers
from .arrays import Array, IntArray
from .attention import attend
from .sequence import OracleSequence


class OracleSinglePass(OracleSequence):
    """K and V come from hidden states that saw the memory set."""

    def _prefill(self, tokens: IntArray) -> Array:
        start = self.n_tokens
        pieces = self._pieces(start, len(tokens))
        return np.concatenate([self._piece(tokens[first - start : last - start]) for first, last in pieces])

    def _piece(self, tokens: IntArray) -> Array:
        """Append tokens that lie in one chunk. Returns their last hidden states."""
        first, last = self.n_tokens, self.n_tokens + len(tokens)
        self._begin_chunk(first)
        self._extend_scores(len(tokens))
        positions = np.arange(first, last, dtype=np.int32)

        def attention(il: int, x: Array) -> Array:
            self.cache.append(il, *layers.key_value(self.model, il, x, positions))
            return self._joint(il, layers.query(self.model, il, x, positions), positions)

        x = layers.forward(self.model, tokens, self.dtype, attention)
        self.cache.n_tokens = last
        return x

    def _joint(self, il: int, q: Array, positions: IntArray) -> Array:
        """Attention to the whole memory set and, causally, to the chunk so far, scored. [n_head, n_q, head_dim]."""
        memory = self._memory(il)
        chunk = np.arange(positions[0] // self.S * self.S, positions[-1] + 1)
        keys = np.concatenate([memory, np.broadcast_to(chunk, (len(memory), len(chunk)))], axis=1)
        # Every head sees the same keys of the chunk, and all of its memory set: that is older than any query.
        in_memory = np.ones((len(positions), memory.shape[1]), dtype=bool)
        allowed = np.concatenate([in_memory, chunk <= positions[:, None]], axis=1)
        state, colsum = attend(q, *self.cache.gather(il, keys), allowed, self._counts(positions, keys))
        self._add_scores(il, keys, colsum)
        return state.o
