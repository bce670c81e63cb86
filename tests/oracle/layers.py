"""A token's way through the layers, on rows of tokens. x is [n_tokens, n_embd]."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from .arrays import Array, IntArray
from .causal import causal
from .feed_forward import feed_forward
from .gguf_model import Attention, GGUFModel, LatentAttention, Layer, ShortConv
from .kv_cache import OracleKVCache
from .latent import latent_key_value, latent_query
from .norm import rms_norm
from .rope import rotated
from .short_conv import short_conv

# (layer, its input x) -> the heads' outputs [n_head, n_tokens, size of a value].
AttentionToText = Callable[[int, Array], Array]


def forward(model: GGUFModel, cache: OracleKVCache, tokens: IntArray, dtype: Any, attention: AttentionToText) -> Array:
    """The last hidden states [n_tokens, n_embd] of tokens that follow those in the cache.

    `attention` computes the layers that attend to the whole text. The others are computed here, which appends to what
    the cache has of them.
    """
    hp = model.hparams
    positions = np.arange(cache.n_tokens, cache.n_tokens + len(tokens), dtype=np.int32)
    x = model.tok_embd.rows(tokens, dtype) * np.dtype(dtype).type(hp.embedding_scale)
    for il, layer in enumerate(model.layers):
        if isinstance(layer.mixer, ShortConv):
            mixed, cache.conv[il] = short_conv(layer.mixer, normed(model, il, x), cache.conv.get(il))
        elif layer.mixer is None:
            # deci: one matrix takes the place of attention.
            mixed = _output(layer, normed(model, il, x))
        elif hp.window[il]:
            cache.append(il, *key_value(model, il, x, positions))
            heads = causal(query(model, il, x, positions), cache, il, positions, hp.window[il])
            mixed = _output(layer, merge_heads(heads))
        else:
            mixed = _output(layer, merge_heads(values_of_heads(layer, attention(il, x))))
        x = x + _post_normed(model, mixed, layer.attn_post_norm)
        out = feed_forward(hp, layer.ffn, rms_norm(x, layer.ffn_norm, hp.rms_eps))
        x = x + _post_normed(model, out, layer.ffn_post_norm)
    return x


def normed(model: GGUFModel, il: int, x: Array) -> Array:
    """What a layer reads of its input."""
    return rms_norm(x, model.layers[il].attn_norm, model.hparams.rms_eps)


def query(model: GGUFModel, il: int, x: Array, positions: IntArray) -> Array:
    """Scaled queries [n_head, n_tokens, size of a key]: norm, projection, QK-norm, RoPE, scale."""
    hp, mixer = model.hparams, model.layers[il].mixer
    if isinstance(mixer, LatentAttention):
        q = latent_query(model, il, mixer, normed(model, il, x), positions)
    else:
        assert isinstance(mixer, Attention)
        q = mixer.wq(normed(model, il, x)).reshape(len(x), hp.n_head[il], hp.head_dim)
        q = _normed_and_rotated(model, il, q, mixer.q_norm, positions)
    return q * x.dtype.type(hp.attention_scale)


def key_value(model: GGUFModel, il: int, x: Array, positions: IntArray) -> tuple[Array, Array]:
    """Keys and values [n_head_kv, n_tokens, their size], not yet rounded to the cache type."""
    hp, mixer = model.hparams, model.layers[il].mixer
    x = normed(model, il, x)
    if isinstance(mixer, LatentAttention):
        return latent_key_value(model, il, mixer, x, positions)
    assert isinstance(mixer, Attention)
    k = mixer.wk(x).reshape(len(x), hp.n_head_kv[il], hp.head_dim)
    v = mixer.wv(x).reshape(len(x), hp.n_head_kv[il], hp.value_dim)
    return _normed_and_rotated(model, il, k, mixer.k_norm, positions), v.transpose(1, 0, 2)


def output_logits(model: GGUFModel, x: Array) -> Array:
    hp = model.hparams
    logits = model.output(rms_norm(x, model.output_norm, hp.rms_eps))
    return np.tanh(logits / hp.softcap) * hp.softcap if hp.softcap else logits


def values_of_heads(layer: Layer, heads: Array) -> Array:
    """Of a weighted sum of latents, every head makes its weighted sum of values."""
    return layer.mixer.wv_b(heads) if isinstance(layer.mixer, LatentAttention) else heads


def merge_heads(heads: Array) -> Array:
    """[n_head, n_tokens, size] -> [n_tokens, n_head * size]."""
    n_head, n_tokens, size = heads.shape
    return heads.transpose(1, 0, 2).reshape(n_tokens, n_head * size)


def _output(layer: Layer, x: Array) -> Array:
    assert layer.wo is not None
    return layer.wo(x)


def _post_normed(model: GGUFModel, x: Array, norm: Array | None) -> Array:
    return x if norm is None else rms_norm(x, norm, model.hparams.rms_eps)


def _normed_and_rotated(model: GGUFModel, il: int, x: Array, norm: Array | None, positions: IntArray) -> Array:
    hp = model.hparams
    if norm is not None:
        x = rms_norm(x, norm, hp.rms_eps)
    x = rotated(x, positions, hp.rope[il], neox=hp.rope_neox, factors=model.rope_factors)
    return x.transpose(1, 0, 2)
