"""Positions in the cache, beyond the T tokens that the model was trained for.

By the definition: keys are stored before RoPE, and rotated whenever they are attended to. The chunk is at the
last S of T positions, the memory set at those before, and at 0 whatever is further away. So nothing here knows of a
first rotation, or of differences.
"""

from __future__ import annotations

import numpy as np

from . import layers
from .arrays import Array, IntArray
from .gguf_model import GGUFModel
from .kv_rounding import CacheRounding
from .rope import rotated


class CachePositions:
    """Of one sequence. A chunk that ends within the trained length has the positions of the text."""

    def __init__(self, model: GGUFModel, S: int, n_trained: int, kv_type: str) -> None:
        self._model, self._S, self._n_trained = model, S, n_trained
        self._round = CacheRounding(kv_type, model.hparams.head_dim, keys=True)
        self._keys: dict[int, Array] = {}

    def has(self, position: int) -> bool:
        """Whether the chunk of this position has positions in the cache."""
        return (position // self._S + 1) * self._S > self._n_trained

    def places(self, positions: IntArray, chunk_start: int) -> IntArray:
        """Where RoPE has these positions for a chunk that has positions in the cache."""
        return np.maximum(positions - (chunk_start - (self._n_trained - self._S)), 0)

    def append(self, il: int, x: Array) -> None:
        """A layer's keys of the tokens with hidden states x."""
        k, _ = layers.key_value(self._model, il, x, np.zeros(len(x), np.int32))  # rotated by nothing
        self._keys[il] = np.concatenate([self._keys[il], k], axis=1) if il in self._keys else k

    def keys(self, il: int, positions: IntArray, chunk_start: int) -> Array:
        """Keys [n_head_kv, n, d] of each KV head's own positions [n_head_kv, n], for queries of a chunk."""
        hp, factors = self._model.hparams, self._model.rope_factors
        k = np.take_along_axis(self._keys[il], positions[..., None], axis=1)
        places = self.places(positions, chunk_start)
        heads = [
            rotated(head[:, None], at, hp.rope[il], neox=hp.rope_neox, factors=factors)[:, 0]
            for head, at in zip(k, places, strict=True)
        ]
        return self._round(np.stack(heads))
