"""The stand-alone `KVCache` with scores set by hand: what the tests of the score bookkeeping and selection share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

import h2o_llama

# The seeds' numbers, a sixteenth of them.
S, L, H = 64, 16, 16
M = L + H


def make_cache(path: Path, **kwargs: Any) -> h2o_llama.KVCache:
    arguments = {"kv_size": 8 * S, "chunk_size": S, "local_window": L, "heavy_budget": H}
    return h2o_llama.KVCache(str(path), **(arguments | kwargs))


def first_layer(cache: h2o_llama.KVCache) -> int:
    """The one that is looked at."""
    return int(cache.layers[0])


def n_head_kv(cache: h2o_llama.KVCache) -> int:
    return int(cache.memory_indices(first_layer(cache)).shape[0])


def per_head(cache: h2o_llama.KVCache, row: Any) -> Any:
    """The same column sums for every KV head: float32 [n_head_kv, len(row)]."""
    return np.tile(np.asarray(row, dtype=np.float32), (n_head_kv(cache), 1))


def add_chunk(cache: h2o_llama.KVCache, colsum: Any) -> None:
    """Score the next chunk, build its memory set, move on: one turn of the seeds' loop. colsum [n_head_kv, len]."""
    layer, start = first_layer(cache), cache.n_tokens
    n = colsum.shape[1]
    cache.init_chunk_scores(layer, start, colsum)
    cache.build_memory_set(layer, start + n)
    cache.next_chunk(n)


def kept(cache: h2o_llama.KVCache, head: int = 0) -> list[int]:
    """Positions in the memory set, without padding."""
    row = cache.memory_indices(first_layer(cache))[head]
    return [int(p) for p in row[row >= 0]]
