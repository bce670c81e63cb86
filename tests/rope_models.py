"""Tiny models whose graphs bring K to the cache in different ways: RoPE last, no RoPE, or RoPE and then something else.

Head sizes are 64, so that a Q8_0 cache rotates K once more.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from gguf import GGUFWriter

from models import N_CTX_TRAIN, N_VOCAB, ModelSpec, Weights, finish, open_writer, write_model

# What becomes of a layer's RoPE under scorer "key_diff".
TAKEN_BACK, ABSENT, HIDDEN = "taken back", "absent", "hidden"

_LATENT = 32


@dataclass(frozen=True)
class RopeModel:
    """`rope` has one entry per layer; `neox` says how pairs are formed where it is taken back."""

    spec: ModelSpec
    rope: tuple[str, ...]
    write: Callable[[ModelSpec, Path], None]
    neox: bool = False
    n_still: int = 0  # last pairs, in a fourth section, whose position is 0 in text

    @property
    def n_rot(self) -> int:
        return self.spec.head_dim if self.spec.n_rot is None else self.spec.n_rot


def _spec(arch: str, n_layer: int = 2, n_head_kv: int = 1, n_rot: int | None = None) -> ModelSpec:
    return ModelSpec(arch, arch, 128, 64, (2,) * n_layer, (n_head_kv,) * n_layer, n_rot=n_rot, tied=True)


# --- attention


def _add_separate(weights: Weights, prefix: str, spec: ModelSpec, n_head_kv: int) -> None:
    weights.add_projection(prefix + "attn_q", 2 * spec.head_dim, spec.n_embd, 1.6)
    weights.add_projection(prefix + "attn_k", n_head_kv * spec.head_dim, spec.n_embd, 1.6)
    weights.add_projection(prefix + "attn_v", n_head_kv * spec.head_dim, spec.n_embd, 1.0)


def _add_fused(weights: Weights, prefix: str, spec: ModelSpec, n_head_kv: int) -> None:
    """Q, K and V are views of one product, to which a bias is added."""
    n_out = (2 + 2 * n_head_kv) * spec.head_dim
    weights.add_projection(prefix + "attn_qkv", n_out, spec.n_embd, 1.6)
    weights.add_bias(prefix + "attn_qkv", n_out)


def _add_latent(weights: Weights, prefix: str, spec: ModelSpec, n_head_kv: int) -> None:
    """K is made of two parts, one compressed and without RoPE, one with RoPE and the same in all heads."""
    n_rot = spec.n_rot or 0
    n_nope = spec.head_dim - n_rot
    weights.add_projection(prefix + "attn_q_a", _LATENT, spec.n_embd, 1.0)
    weights.add_norm(prefix + "attn_q_a_norm", _LATENT)
    weights.add_projection(prefix + "attn_q_b", 2 * spec.head_dim, _LATENT, 1.6)
    weights.add_projection(prefix + "attn_kv_a_mqa", _LATENT + n_rot, spec.n_embd, 1.6)
    weights.add_norm(prefix + "attn_kv_a_norm", _LATENT)
    weights.add_projection(prefix + "attn_kv_b", n_head_kv * (n_nope + spec.head_dim), _LATENT, 1.6)


# --- whole models


@dataclass(frozen=True)
class _Writer:
    """Writes one architecture: what it has besides, or instead of, what Llama has."""

    hparams: Callable[[GGUFWriter], None] = lambda writer: None
    attention: Callable[[Weights, str, ModelSpec, int], None] = _add_separate
    qk_norm: bool = False
    layer_norm: bool = False  # norms have biases
    has_gate: bool = True
    ffn_up: int = 1  # times n_ff
    ffn_bias: bool = False
    pos_embd: bool = False
    tied: bool = True

    def __call__(self, spec: ModelSpec, path: Path) -> None:
        writer = open_writer(spec, path)
        self.hparams(writer)
        weights = Weights(spec, writer)
        # The shared direction makes heavy hitters.
        embedding = weights.normal(N_VOCAB, spec.n_embd) + weights.normal(1, spec.n_embd)
        weights.add_matrix("token_embd", embedding)
        if self.pos_embd:
            weights.add_matrix("position_embd", weights.normal(N_CTX_TRAIN, spec.n_embd) * np.float32(0.3))
        if not self.tied:
            weights.add_projection("output", N_VOCAB, spec.n_embd, 3.0)
        self._add_norm(weights, "output_norm", spec)
        for il, n_head_kv in enumerate(spec.n_head_kv):
            prefix = f"blk.{il}."
            self._add_norm(weights, prefix + "attn_norm", spec)
            self.attention(weights, prefix, spec, n_head_kv)
            if self.qk_norm:
                weights.add_norm(prefix + "attn_q_norm", spec.head_dim, 1.6)
                weights.add_norm(prefix + "attn_k_norm", spec.head_dim, 1.6)
            self._add_matrix(weights, prefix + "attn_output", spec.n_embd, spec.n_embd)
            self._add_norm(weights, prefix + "ffn_norm", spec)
            if self.has_gate:
                weights.add_projection(prefix + "ffn_gate", spec.n_ff, spec.n_embd, 1.2)
            self._add_matrix(weights, prefix + "ffn_up", self.ffn_up * spec.n_ff, spec.n_embd)
            self._add_matrix(weights, prefix + "ffn_down", spec.n_embd, spec.n_ff)
        finish(writer)

    def _add_norm(self, weights: Weights, name: str, spec: ModelSpec) -> None:
        weights.add_norm(name, spec.n_embd)
        if self.layer_norm:
            weights.add_bias(name, spec.n_embd)

    def _add_matrix(self, weights: Weights, name: str, n_out: int, n_in: int) -> None:
        weights.add_projection(name, n_out, n_in, 1.0)
        if self.ffn_bias:
            weights.add_bias(name, n_out)


def _layer_norm_eps(writer: GGUFWriter) -> None:
    writer.add_layer_norm_eps(1e-5)


def _minicpm3_hparams(writer: GGUFWriter) -> None:
    writer.add_q_lora_rank(_LATENT)
    writer.add_kv_lora_rank(_LATENT)


def _write_talkie(spec: ModelSpec, path: Path) -> None:
    """Its norms have no weights but for one number for each head of Q."""
    writer = open_writer(spec, path)
    writer.add_logit_scale(1.0)
    weights = Weights(spec, writer)
    weights.add_matrix("token_embd", weights.normal(N_VOCAB, spec.n_embd) + weights.normal(1, spec.n_embd))
    weights.add_projection("output", N_VOCAB, spec.n_embd, 3.0)
    for il, n_head_kv in enumerate(spec.n_head_kv):
        prefix = f"blk.{il}."
        _add_separate(weights, prefix, spec, n_head_kv)
        writer.add_tensor(prefix + "attn_q_norm.weight", np.full((2, 1), 2.5, np.float32))
        writer.add_tensor(prefix + "layer_output_scale.weight", np.array([0.5], np.float32))
        weights.add_projection(prefix + "attn_output", spec.n_embd, spec.n_embd, 1.5)
        weights.add_projection(prefix + "ffn_gate", spec.n_ff, spec.n_embd, 1.2)
        weights.add_projection(prefix + "ffn_up", spec.n_ff, spec.n_embd, 1.0)
        weights.add_projection(prefix + "ffn_down", spec.n_embd, spec.n_ff, 1.0)
    finish(writer)


def _add_sections(*sections: int) -> Callable[[GGUFWriter], None]:
    return lambda writer: writer.add_rope_dimension_sections(sections)


_GPT2 = _Writer(_layer_norm_eps, _add_fused, layer_norm=True, has_gate=False, ffn_bias=True, pos_embd=True)

ROPE_MODELS = {
    model.spec.name: model
    for model in (
        # RoPE comes last: of pairs (2j, 2j + 1), of pairs (j, j + n_rot/2) after a norm,
        RopeModel(_spec("llama"), (TAKEN_BACK,) * 2, write_model),
        RopeModel(_spec("qwen3"), (TAKEN_BACK,) * 2, write_model, neox=True),
        # of 12 pairs in either way, no whole number of vectors, K being a view of the fused QKV in the first,
        RopeModel(
            _spec("chatglm", n_rot=24), (TAKEN_BACK,) * 2, _Writer(attention=_add_fused, has_gate=False, ffn_up=2)
        ),
        RopeModel(
            _spec("stablelm", n_rot=24),
            (TAKEN_BACK,) * 2,
            _Writer(_layer_norm_eps, layer_norm=True, tied=False),
            neox=True,
        ),
        # and in sections, one after the other or interleaved, of which the first three have the same positions in text.
        RopeModel(_spec("qwen2vl"), (TAKEN_BACK,) * 2, _Writer(_add_sections(8, 8, 8, 8)), neox=True, n_still=8),
        RopeModel(_spec("qwen3vl"), (TAKEN_BACK,) * 2, _Writer(_add_sections(11, 11, 10, 0), qk_norm=True), neox=True),
        # Every fourth layer has no RoPE; none has.
        RopeModel(_spec("smollm3", n_layer=4), (*(TAKEN_BACK,) * 3, ABSENT), _Writer()),
        RopeModel(_spec("gpt2"), (ABSENT,) * 2, _GPT2),
        # A norm comes after RoPE, with weights and without.
        RopeModel(_spec("maincoder"), (HIDDEN,) * 2, _Writer(qk_norm=True)),
        RopeModel(_spec("talkie"), (HIDDEN,) * 2, _write_talkie),
        # A part without RoPE and a part with RoPE are put together.
        RopeModel(_spec("minicpm3", n_head_kv=2, n_rot=32), (HIDDEN,) * 2, _Writer(_minicpm3_hparams, _add_latent)),
    )
}
