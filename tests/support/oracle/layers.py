"""A token's way through the layers, on rows of tokens. x is [n_tokens, n_embd]."""

from collections.abc import Callable
from typing import Any

import numpy as np

from .attention import attend
from .model import GGUFModel
from .rounding import Array, round_to

# (layer, its input x) -> the heads' outputs [n_head, n_tokens, size of a value].
AttentionToText = Callable[[int, Array], Array]


def forward(model: GGUFModel, cache: Any, tokens: Array, dtype: Any, attention: AttentionToText) -> Array:
    """The last hidden states [n_tokens, n_embd] of tokens that follow those in the cache, an `OracleKVCache`.

    `attention` computes the layers that attend to the whole text. The others are computed here, which appends to what
    the cache has of them.
    """
    x = model.tok_embd.rows(tokens, dtype) * np.dtype(dtype).type(model.hparams.embedding_scale)
    for il in range(model.hparams.n_layer):
        x = x + _normed(model, "post_attention_norm", il, _mixed(model, cache, il, x, attention))
        out = feed_forward(model, il, _normed(model, "ffn_norm", il, x))
        x = x + _normed(model, "post_ffw_norm", il, out)
    return x


def output_logits(model: GGUFModel, x: Array) -> Array:
    logits: Array = model.output(rms_norm(x, model.output_norm, model.hparams.rms_eps))
    return logits


def rms_norm(x: Array, weight: Array, eps: float) -> Array:
    """x / sqrt(mean(x²) + eps) * weight, over the last axis."""
    scale = 1 / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + x.dtype.type(eps))
    return x * scale * weight.astype(x.dtype)


def _normed(model: GGUFModel, name: str, il: int, x: Array) -> Array:
    """x itself where the layer has no such norm."""
    weight = model.tensor(name, il)
    return x if weight is None else rms_norm(x, weight, model.hparams.rms_eps)


# --- the first half of a layer


def _mixed(model: GGUFModel, cache: Any, il: int, x: Array, attention: AttentionToText) -> Array:
    """What the layer adds of other tokens."""
    hp = model.hparams
    if model.tensor("shortconv.conv", il) is not None:
        out, cache.conv[il] = short_conv(model, il, _normed(model, "attn_norm", il, x), cache.conv.get(il))
        return out
    w_out = model.tensor("attn_output", il)
    if not hp.n_head_kv[il]:
        # deci: one matrix takes the place of attention.
        heads = _normed(model, "attn_norm", il, x)[None]
    elif hp.window[il]:
        positions = np.arange(cache.n_tokens, cache.n_tokens + len(x))
        cache.append(il, *key_value(model, il, x, positions))
        keys = np.arange(positions[-1] + 1)
        k, v = cache.read(il, slice(len(keys)))
        is_seen = (keys <= positions[:, None]) & (keys > positions[:, None] - hp.window[il])
        heads = attend(query(model, il, x, positions), k, v, is_seen)[0].o
    else:
        heads = attention(il, x)
        if hp.rank:  # of a weighted sum of latents, every head makes its weighted sum of values
            heads = model.tensor("attn_v_b", il)(heads)
    merged: Array = w_out(heads.transpose(1, 0, 2).reshape(len(x), -1))
    return merged


def query(model: GGUFModel, il: int, x: Array, positions: Array) -> Array:
    """Scaled queries [n_head, n_tokens, size of a key]: norm, projection, QK-norm, RoPE, scale."""
    hp = model.hparams
    x = _normed(model, "attn_norm", il, x)
    if hp.rank:
        x = model.tensor("attn_q_b", il)(_normed(model, "attn_q_a_norm", il, model.tensor("attn_q_a", il)(x)))
        q = x.reshape(len(x), hp.n_head[il], hp.n_nope + hp.n_rope)
        in_latent_space = model.tensor("attn_k_b", il)(q[..., : hp.n_nope].transpose(1, 0, 2))
        with_rope = hp.rope[il](q[..., hp.n_nope :], positions).transpose(1, 0, 2)
        q = np.concatenate([in_latent_space, with_rope], axis=-1)
    else:
        q = model.tensor("attn_q", il)(x).reshape(len(x), hp.n_head[il], hp.head_dim)
        q = hp.rope[il](_normed(model, "attn_q_norm", il, q), positions).transpose(1, 0, 2)
    return q * x.dtype.type(hp.attention_scale)


def key_value(model: GGUFModel, il: int, x: Array, positions: Array) -> tuple[Array, Array]:
    """Keys and values [n_head_kv, n_tokens, their size], not yet rounded to the cache type.

    Multi-head latent attention (DeepSeek-V2, arXiv:2405.04434) has one row for all heads: a latent c, and a key with
    RoPE. A head's key without RoPE is W_k c, so its product with a query is that of c with W_kᵀ q; and the values'
    weighted sum is W_v times the weighted sum of latents. So it is attention of many heads to one KV head, whose keys
    are [c, key with RoPE] and whose values are c.
    """
    hp = model.hparams
    x = _normed(model, "attn_norm", il, x)
    if hp.rank:
        row = model.tensor("attn_kv_a_mqa", il)(x)
        c = _normed(model, "attn_kv_a_norm", il, row[:, : hp.rank])
        with_rope = hp.rope[il](row[:, None, hp.rank :], positions)[:, 0]
        return np.concatenate([c, with_rope], axis=-1)[None], c[None]
    k = model.tensor("attn_k", il)(x).reshape(len(x), hp.n_head_kv[il], hp.head_dim)
    v = model.tensor("attn_v", il)(x).reshape(len(x), hp.n_head_kv[il], hp.value_dim)
    return hp.rope[il](_normed(model, "attn_k_norm", il, k), positions).transpose(1, 0, 2), v.transpose(1, 0, 2)


def short_conv(model: GGUFModel, il: int, x: Array, state: Array | None) -> tuple[Array, Array]:
    """LFM2's layers without attention: outputs of normalised hidden states x, and the state after them.

    The input is split into b, c and y; z = b * y; the output is w_out(c * conv(z)), where conv is causal and each
    channel has its own kernel. The state is the last width - 1 rows of z; it is None, zeros, before the first token.
    """
    b, c, y = np.split(model.tensor("shortconv.in_proj", il)(x), 3, axis=1)
    kernel = model.tensor("shortconv.conv", il).weight(x.dtype)
    width = kernel.shape[1]
    if state is None:
        state = np.zeros((width - 1, x.shape[1]), x.dtype)
    z = np.concatenate([state, b * y])
    conv = sum(kernel[:, i] * z[i : i + len(x)] for i in range(width))
    return model.tensor("shortconv.out_proj", il)(c * conv), z[len(x) :]


# --- the second half


def feed_forward(model: GGUFModel, il: int, x: Array) -> Array:
    """One gated network for all tokens, or a mixture of experts (arXiv:2401.06066)."""
    if model.tensor("ffn_gate_inp", il) is None:
        return gated(model, il, x, "")
    # Every expert computes every token: more than is needed, and simple.
    outputs = gated(model, il, x, "_exps")
    mixed: Array = (expert_weights(model, il, x).T[:, :, None] * outputs).sum(axis=0)
    return mixed + gated(model, il, x, "_shexp")


def gated(model: GGUFModel, il: int, x: Array, suffix: str) -> Array:
    """down(activation(gate(x)) * up(x))."""
    gate, up, down = (model.tensor(f"ffn_{name}{suffix}", il) for name in ("gate", "up", "down"))
    activation = gelu if model.hparams.arch == "gemma3" else silu
    out: Array = down(activation(gate(x)) * up(x))
    return out


def silu(x: Array) -> Array:
    return x / (1 + np.exp(-x))


def gelu(x: Array) -> Array:
    """By tanh, from and to F16 where it is neither 0 nor x: ggml looks it up."""
    rounded = round_to(np.clip(x, -10, 10), "F16")
    inner = np.sqrt(2 / np.pi) * rounded * (1 + 0.044715 * rounded * rounded)
    looked_up = round_to((0.5 * rounded * (1 + np.tanh(inner))).astype(x.dtype), "F16")
    return np.where(x <= -10, x.dtype.type(0), np.where(x >= 10, x, looked_up))


def expert_weights(model: GGUFModel, il: int, x: Array) -> Array:
    """How much of each expert's output a token takes, [n_tokens, n_expert]: 0 for those it does not use."""
    shares = 1 / (1 + np.exp(-model.tensor("ffn_gate_inp", il)(x)))
    # A bias adds to the ranks that experts are chosen by, not to their weights.
    ranks = shares + model.tensor("exp_probs_b", il).astype(x.dtype)
    used = np.argsort(-ranks, axis=1, kind="stable")[:, : model.hparams.n_used]
    weights = np.zeros_like(shares)
    np.put_along_axis(weights, used, np.take_along_axis(shares, used, axis=1), axis=1)
    weights = weights / np.maximum(weights.sum(axis=1, keepdims=True), x.dtype.type(2**-14))
    return weights * x.dtype.type(model.hparams.expert_scale)
