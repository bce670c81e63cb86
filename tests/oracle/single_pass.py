"""Schedule `single_pass`: chunk by chunk through the model once.

One softmax over the memory set, the chunk and what the query sees of what was looked up.
"""

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
        self._look_up(first, last)
        positions = np.arange(first, last, dtype=np.int32)

        def attention(il: int, x: Array) -> Array:
            self.cache.append(il, *layers.key_value(self.model, il, x, positions))
            q = layers.query(self.model, il, x, positions)
            if il in self.dense_layers:
                return attend(q, *self.cache.read(il, slice(0, last)), np.arange(last) <= positions[:, None])[0].o
            # One softmax over the chunk so far, causally, and the past.
            chunk = np.arange(first // self.S * self.S, last)
            return self._attend_past(il, q, positions, chunk).o

        x = layers.forward(self.model, tokens, self.dtype, attention)
        self.cache.n_tokens = last
        return x
