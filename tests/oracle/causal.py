"""Causal attention to what the cache has of a layer: to the whole text, or through a sliding window."""

from __future__ import annotations

import numpy as np

from .arrays import Array, IntArray
from .attention import attend
from .kv_cache import OracleKVCache

# Queries per attention block, so that no n × n matrix of logits exists.
QUERY_BLOCK = 512


def causal(q: Array, cache: OracleKVCache, il: int, positions: IntArray, window: int = 0) -> Array:
    """Outputs [n_head, n_tokens, head_dim] of queries, which see `window` positions up to their own; 0: all."""
    blocks = []
    for first in range(0, len(positions), QUERY_BLOCK):
        rows = slice(first, first + QUERY_BLOCK)
        queries = positions[rows, None]
        keys = np.arange(max(int(queries[0, 0]) + 1 - window, 0) if window else 0, int(queries[-1, 0]) + 1)
        allowed = keys <= queries
        if window:
            allowed &= keys > queries - window
        state, _ = attend(q[:, rows], *cache.read(il, slice(int(keys[0]), int(keys[-1]) + 1)), allowed)
        blocks.append(state.o)
    return np.concatenate(blocks, axis=1)
