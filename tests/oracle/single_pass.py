"""Schedule `single_pass`: chunk by chunk through the model once.

One softmax over the memory set, the chunk and the lookups that the query sees.
"""

from __future__ import annotations

import numpy as np

from .arrays import Array, IntArray
from .sequence import OracleSequence


class OracleSinglePass(OracleSequence):
    """K and V come from hidden states that saw the memory set."""

    def _prefill(self, tokens: IntArray) -> Array:
        start = self.n_tokens
        pieces = self._pieces(start, len(tokens))
        return np.concatenate([self._sparse(tokens[first - start : last - start]) for first, last in pieces])
