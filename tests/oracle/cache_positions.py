"""Positions in the cache (StreamingLLM, arXiv:2309.17453), beyond what the model was trained for.

By the definition: keys are kept as they are before RoPE, and rotated whenever they are attended to. The memory set's
are at 0, 1, …, and the chunk follows. So nothing here knows of a first rotation, or of differences.
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

    def append(self, il: int, x: Array) -> None:
        """A layer's keys of the tokens with hidden states x."""
        k, _ = layers.key_value(self._model, il, x, np.zeros(len(x), np.int32))  # rotated by nothing
        self._keys[il] = np.concatenate([self._keys[il], k], axis=1) if il in self._keys else k

    def keys(self, il: int, positions: IntArray) -> Array:
        """Keys [n_head_kv, n, d] of each KV head's own positions [n_head_kv, n], which lie one after the other."""
        hp = self._model.hparams
        k = np.take_along_axis(self._keys[il], positions[..., None], axis=1).transpose(1, 0, 2)
        places = np.arange(len(k), dtype=np.int32)
        k = rotated(k, places, hp.rope[il], neox=hp.rope_neox, factors=self._model.rope_factors)
        return self._round(k.transpose(1, 0, 2))
