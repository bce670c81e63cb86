"""Building blocks of a transformer layer, on rows of tokens. x is [n_tokens, n_embd] unless stated."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from .arrays import Array, IntArray
from .gguf_model import GGUFModel, HParams, Layer

# (layer, its input x) -> the heads' outputs [n_head, n_tokens, head_dim].
Attention = Callable[[int, Array], Array]


def rms_norm(x: Array, weight: Array, eps: float) -> Array:
    """x / sqrt(mean(x²) + eps) * weight, over the last axis."""
    scale = 1 / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + x.dtype.type(eps))
    return x * scale * weight.astype(x.dtype)


def rope(x: Array, positions: IntArray, base: float, *, neox: bool, factors: Array | None = None) -> Array:
    """Rotary position embedding of x [n_tokens, n_head, head_dim] at absolute positions.

    Pair i is rotated by position · base^(-2i/head_dim) / factors[i]. Pairs are (i, i + head_dim/2) with neox (Qwen3),
    else (2i, 2i + 1) (Llama as stored in GGUF).
    """
    n_pairs = x.shape[-1] // 2
    frequencies = base ** (-np.arange(n_pairs) / n_pairs)
    if factors is not None:
        frequencies = frequencies / factors
    angles = positions[:, None, None] * frequencies
    cos, sin = np.cos(angles).astype(x.dtype), np.sin(angles).astype(x.dtype)

    first, second = (slice(0, n_pairs), slice(n_pairs, None)) if neox else (slice(0, None, 2), slice(1, None, 2))
    rotated = np.empty_like(x)
    rotated[..., first] = x[..., first] * cos - x[..., second] * sin
    rotated[..., second] = x[..., first] * sin + x[..., second] * cos
    return rotated


def swiglu(x: Array, layer: Layer) -> Array:
    """down(silu(gate(x)) * up(x))."""
    gate = layer.ffn_gate(x)
    return layer.ffn_down(gate / (1 + np.exp(-gate)) * layer.ffn_up(x))


def forward(model: GGUFModel, tokens: IntArray, dtype: Any, attention: Attention) -> Array:
    """The last hidden states [n_tokens, n_embd]."""
    x = model.tok_embd.rows(tokens, dtype)
    for il in range(model.hparams.n_layer):
        if model.hparams.n_head_kv[il] == 0:
            x = layer_without_attention(model, il, x)
        else:
            x = after_attention(model, il, x, attention(il, x))
    return x


def query(model: GGUFModel, il: int, x: Array, positions: IntArray) -> Array:
    """Scaled queries [n_head, n_tokens, head_dim]: norm, projection, QK-norm, RoPE, 1/sqrt(head_dim)."""
    hp, layer = model.hparams, model.layers[il]
    assert layer.wq is not None
    q = layer.wq(rms_norm(x, layer.attn_norm, hp.rms_eps)).reshape(len(x), hp.n_head[il], hp.head_dim)
    return _normed_and_rotated(model, q, layer.q_norm, positions) * x.dtype.type(hp.head_dim**-0.5)


def key_value(model: GGUFModel, il: int, x: Array, positions: IntArray) -> tuple[Array, Array]:
    """Keys and values [n_head_kv, n_tokens, head_dim], not yet rounded to the cache type."""
    hp, layer = model.hparams, model.layers[il]
    assert layer.wk is not None
    assert layer.wv is not None
    normed = rms_norm(x, layer.attn_norm, hp.rms_eps)
    shape = (len(x), hp.n_head_kv[il], hp.head_dim)
    k = _normed_and_rotated(model, layer.wk(normed).reshape(shape), layer.k_norm, positions)
    return k, layer.wv(normed).reshape(shape).transpose(1, 0, 2)


def after_attention(model: GGUFModel, il: int, x: Array, attn: Array) -> Array:
    """The layer's output from its input x and the heads' outputs attn [n_head, n_tokens, head_dim]."""
    return _feed_forward(model.hparams, model.layers[il], x + model.layers[il].wo(merge_heads(attn)))


def layer_without_attention(model: GGUFModel, il: int, x: Array) -> Array:
    """A deci layer with heads but no KV heads: one matrix takes the place of attention."""
    hp, layer = model.hparams, model.layers[il]
    return _feed_forward(hp, layer, x + layer.wo(rms_norm(x, layer.attn_norm, hp.rms_eps)))


def output_logits(model: GGUFModel, x: Array) -> Array:
    return model.output(rms_norm(x, model.output_norm, model.hparams.rms_eps))


def merge_heads(attn: Array) -> Array:
    """[n_head, n_tokens, head_dim] -> [n_tokens, n_head * head_dim]."""
    n_head, n_tokens, head_dim = attn.shape
    return attn.transpose(1, 0, 2).reshape(n_tokens, n_head * head_dim)


def _feed_forward(hp: HParams, layer: Layer, x: Array) -> Array:
    return x + swiglu(rms_norm(x, layer.ffn_norm, hp.rms_eps), layer)


def _normed_and_rotated(model: GGUFModel, x: Array, norm: Array | None, positions: IntArray) -> Array:
    hp = model.hparams
    if norm is not None:
        x = rms_norm(x, norm, hp.rms_eps)
    x = rope(x, positions, hp.rope_base, neox=hp.rope_neox, factors=model.rope_factors)
    return x.transpose(1, 0, 2)
