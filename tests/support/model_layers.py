"""The tensors of a fixture model's layers, one function for each kind of half layer."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from models import ModelSpec, Weights

# Standard deviation of the attention logits of one query: 1.6 squared, about 2.6.
QK_GAIN = 1.6

# Queries of a latent attention come through this many dimensions.
NARROW = 32

# Tokens that a short convolution sees.
CONV_WIDTH = 3

# Architectures that normalise Q and K: there, their spread comes from the norms' weights, elsewhere from the matrices.
WITH_QK_NORM = ("gemma3", "lfm2", "qwen3")


def add_attention(weights: Weights, spec: ModelSpec, prefix: str, n_head: int, n_head_kv: int) -> None:
    has_qk_norm = spec.arch in WITH_QK_NORM
    qk_gain = 1.0 if has_qk_norm else QK_GAIN
    for name, n, gain in (("attn_q", n_head, qk_gain), ("attn_k", n_head_kv, qk_gain), ("attn_v", n_head_kv, 1.0)):
        weights.add_projection(prefix + name, n * spec.head_dim, spec.n_embd, gain)
        if spec.arch == "qwen2":
            weights.add_bias(prefix + name, n * spec.head_dim)
    weights.add_projection(prefix + "attn_output", spec.n_embd, n_head * spec.head_dim, 1.5)
    if has_qk_norm:
        weights.add_norm(prefix + "attn_q_norm", spec.head_dim, QK_GAIN)
        weights.add_norm(prefix + "attn_k_norm", spec.head_dim, QK_GAIN)


def add_latent_attention(weights: Weights, spec: ModelSpec, prefix: str, n_head: int) -> None:
    """Queries come through a narrow matrix. K_b is stored transposed, as it multiplies a query."""
    assert spec.n_rot is not None
    n_nope = spec.head_dim
    weights.add_projection(prefix + "attn_q_a", NARROW, spec.n_embd, 1.0)
    weights.add_norm(prefix + "attn_q_a_norm", NARROW)
    weights.add_projection(prefix + "attn_q_b", n_head * (n_nope + spec.n_rot), NARROW, QK_GAIN)
    weights.add_projection(prefix + "attn_kv_a_mqa", spec.rank + spec.n_rot, spec.n_embd, QK_GAIN)
    weights.add_norm(prefix + "attn_kv_a_norm", spec.rank)
    per_latent = 1 / np.sqrt(spec.rank)
    weights.add_matrix(
        prefix + "attn_k_b", weights.normal(n_head, spec.rank, n_nope) * np.float32(QK_GAIN * per_latent)
    )
    weights.add_matrix(prefix + "attn_v_b", weights.normal(n_head, spec.head_dim, spec.rank) * np.float32(per_latent))
    weights.add_projection(prefix + "attn_output", spec.n_embd, n_head * spec.head_dim, 1.5)


def add_short_conv(weights: Weights, spec: ModelSpec, prefix: str) -> None:
    weights.add_projection(prefix + "shortconv.in_proj", 3 * spec.n_embd, spec.n_embd, 1.0)
    weights.add_projection(prefix + "shortconv.conv", spec.n_embd, CONV_WIDTH, 1.0)
    weights.add_projection(prefix + "shortconv.out_proj", spec.n_embd, spec.n_embd, 1.0)


def add_feed_forward(weights: Weights, spec: ModelSpec, prefix: str, suffix: str = "") -> None:
    weights.add_projection(f"{prefix}ffn_gate{suffix}", spec.n_ff, spec.n_embd, 1.2)
    weights.add_projection(f"{prefix}ffn_up{suffix}", spec.n_ff, spec.n_embd, 1.0)
    weights.add_projection(f"{prefix}ffn_down{suffix}", spec.n_embd, spec.n_ff, 1.0)


def add_experts(weights: Weights, spec: ModelSpec, prefix: str) -> None:
    n, n_embd, n_ff = spec.n_expert, spec.n_embd, spec.n_ff
    weights.add_projection(prefix + "ffn_gate_inp", n, n_embd, 1.0)
    # Shares are between 0 and 1, so the bias alone chooses: rounding must not, as one choice changes all of a token.
    weights.add_vector(prefix + "exp_probs_b", 2 * np.arange(n, dtype=np.float32))
    for name, shape in (("gate", (n, n_ff, n_embd)), ("up", (n, n_ff, n_embd)), ("down", (n, n_embd, n_ff))):
        weights.add_matrix(f"{prefix}ffn_{name}_exps", weights.normal(*shape) / np.sqrt(np.float32(shape[-1])))
    add_feed_forward(weights, spec, prefix, "_shexp")
