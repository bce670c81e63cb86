"""Ordinary causal attention over the whole sequence."""

from __future__ import annotations

from typing import Any

import numpy as np

from . import layers
from .arrays import Array, IntArray
from .causal import causal
from .gguf_model import GGUFModel
from .kv_cache import OracleKVCache


class DenseOracle:
    """Dense causal forward pass, K and V rounded to the cache type."""

    def __init__(self, model: GGUFModel, kv_type: str = "f16", dtype: Any = np.float32) -> None:
        self.model = model
        self.kv_type = kv_type
        self.dtype = dtype

    def logits(self, tokens: IntArray) -> Array:
        """Logits [len(tokens), n_vocab] of a fresh sequence."""
        cache = OracleKVCache(self.model.hparams, self.kv_type)
        return layers.output_logits(self.model, dense_forward(self.model, cache, np.asarray(tokens), self.dtype))


def dense_forward(model: GGUFModel, cache: OracleKVCache, tokens: IntArray, dtype: Any) -> Array:
    """Append the tokens to the cache and return their last hidden states [len(tokens), n_embd]."""
    start = cache.n_tokens
    positions = np.arange(start, start + len(tokens), dtype=np.int32)

    def attention(il: int, x: Array) -> Array:
        cache.append(il, *layers.key_value(model, il, x, positions))
        return causal(layers.query(model, il, x, positions), cache, il, positions)

    x = layers.forward(model, cache, tokens, dtype, attention)
    cache.n_tokens += len(tokens)
    return x
