"""The second half of a layer: one gated network for all tokens, or a mixture of experts (arXiv:2401.06066)."""

from __future__ import annotations

import numpy as np

from .arrays import Array
from .gguf_model import Experts, FeedForward
from .hparams import ExpertsHParams, HParams
from .kv_rounding import round_to


def feed_forward(hp: HParams, ffn: FeedForward | Experts, x: Array) -> Array:
    if isinstance(ffn, FeedForward):
        return gated(ffn, x, has_gelu=hp.has_gelu)
    assert hp.experts is not None
    weights = expert_weights(hp.experts, ffn, x)
    # Every expert computes every token: more than is needed, and simple.
    outputs = gated(ffn.stacked, x, has_gelu=hp.has_gelu)
    mixed: Array = (weights.T[:, :, None] * outputs).sum(axis=0)
    return mixed + gated(ffn.shared, x, has_gelu=hp.has_gelu)


def gated(ffn: FeedForward, x: Array, *, has_gelu: bool) -> Array:
    """down(activation(gate(x)) * up(x))."""
    gate = ffn.gate(x)
    return ffn.down((gelu(gate) if has_gelu else silu(gate)) * ffn.up(x))


def silu(x: Array) -> Array:
    return x / (1 + np.exp(-x))


def gelu(x: Array) -> Array:
    """By tanh, from and to F16 where it is neither 0 nor x: ggml looks it up."""
    rounded = round_to(np.clip(x, -10, 10), "F16")
    inner = np.sqrt(2 / np.pi) * rounded * (1 + 0.044715 * rounded * rounded)
    looked_up = round_to((0.5 * rounded * (1 + np.tanh(inner))).astype(x.dtype), "F16")
    return np.where(x <= -10, x.dtype.type(0), np.where(x >= 10, x, looked_up))


def expert_weights(hp: ExpertsHParams, ffn: Experts, x: Array) -> Array:
    """How much of each expert's output a token takes, [n_tokens, n_expert]: 0 for those it does not use."""
    logits = ffn.router(x)
    if hp.gating == "sigmoid":
        shares = 1 / (1 + np.exp(-logits))
    else:
        exponentials = np.exp(logits - logits.max(axis=1, keepdims=True))
        shares = exponentials / exponentials.sum(axis=1, keepdims=True)
    ranks = shares if ffn.router_bias is None else shares + ffn.router_bias.astype(x.dtype)
    used = np.argsort(-ranks, axis=1, kind="stable")[:, : hp.n_used]
    weights = np.zeros_like(shares)
    np.put_along_axis(weights, used, np.take_along_axis(shares, used, axis=1), axis=1)
    if hp.is_normalised:
        weights = weights / np.maximum(weights.sum(axis=1, keepdims=True), x.dtype.type(2**-14))
    return weights * x.dtype.type(hp.scale)
