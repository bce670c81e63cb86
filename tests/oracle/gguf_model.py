"""The weights of a GGUF, in the order in which a token passes them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

from gguf import GGUFReader

from .arrays import Array
from .hparams import HParams, Keys, read_hparams
from .weights import ACTIVATION_TYPES, Linear, Tensors


@dataclass(frozen=True)
class Attention:
    """Queries, keys and values; some models normalise the first two."""

    wq: Linear
    wk: Linear
    wv: Linear
    q_norm: Array | None
    k_norm: Array | None


@dataclass(frozen=True)
class LatentAttention:
    """Multi-head latent attention. Queries come through a narrow matrix of their own in some models."""

    wq_a: Linear | None
    q_a_norm: Array | None
    wq: Linear  # all heads of the query
    wkv_a: Linear  # the latent, not yet normalised, and the key with RoPE
    kv_a_norm: Array
    wk_b: Linear  # of each head [rank, n_nope]
    wv_b: Linear  # of each head [head size of the value, rank]


@dataclass(frozen=True)
class ShortConv:
    """LFM2's layers without attention."""

    w_in: Linear
    kernel: Array  # [n_embd, width]
    w_out: Linear


@dataclass(frozen=True)
class FeedForward:
    gate: Linear
    up: Linear
    down: Linear


@dataclass(frozen=True)
class Experts:
    """Experts: each token uses some of the stacked networks, and the shared network."""

    router: Linear
    router_bias: Array | None  # adds to what experts are chosen by, not to their weights
    stacked: FeedForward
    shared: FeedForward


@dataclass(frozen=True)
class Layer:
    """Weights of one layer; None where it has no such tensor. A layer without `mixer` has only `wo` in its place."""

    attn_norm: Array
    mixer: Attention | LatentAttention | ShortConv | None
    wo: Linear | None
    attn_post_norm: Array | None
    ffn_norm: Array
    ffn: FeedForward | Experts
    ffn_post_norm: Array | None


class GGUFModel:
    """Weights and hyper-parameters of one GGUF file."""

    def __init__(self, path: str | Path) -> None:
        reader = GGUFReader(path)
        self._tensors = Tensors(reader)
        self.hparams: HParams = read_hparams(Keys(reader), self._tensors)
        self.tok_embd = self._tensors.linear("token_embd")
        self.output = self._tensors.linear_or_none("output") or self.tok_embd
        # LFM2's last norm has the name that others give to one of the embedding.
        last_norm = "token_embd_norm" if self.hparams.arch == "lfm2" else "output_norm"
        self.output_norm = self._tensors.vector(last_norm + ".weight")
        # Llama 3's divisors of RoPE frequencies.
        self.rope_factors = self._tensors.vector_or_none("rope_freqs.weight")

    @cached_property
    def layers(self) -> list[Layer]:
        return [self._read_layer(il) for il in range(self.hparams.n_layer)]

    @property
    def activation_type(self) -> str:
        """The coarsest type that activations are rounded to, such as "F16"."""
        # ggml looks GELU up in a table of F16.
        types = self._tensors.activation_types | ({"F16"} if self.hparams.has_gelu else set())
        return max(types, key=ACTIVATION_TYPES.index)

    def _read_layer(self, il: int) -> Layer:
        prefix, tensors = f"blk.{il}.", self._tensors
        return Layer(
            attn_norm=tensors.vector(prefix + "attn_norm.weight"),
            mixer=self._read_mixer(prefix),
            wo=tensors.linear_or_none(prefix + "attn_output"),
            attn_post_norm=tensors.vector_or_none(prefix + "post_attention_norm.weight"),
            ffn_norm=tensors.vector(prefix + "ffn_norm.weight"),
            ffn=self._read_feed_forward(il, prefix),
            ffn_post_norm=tensors.vector_or_none(prefix + "post_ffw_norm.weight"),
        )

    def _read_mixer(self, prefix: str) -> Attention | LatentAttention | ShortConv | None:
        tensors = self._tensors
        if prefix + "shortconv.conv.weight" in tensors:
            return ShortConv(
                w_in=tensors.linear(prefix + "shortconv.in_proj"),
                kernel=tensors.vector(prefix + "shortconv.conv.weight"),
                w_out=tensors.linear(prefix + "shortconv.out_proj"),
            )
        if self.hparams.latent is not None:
            wq_a = tensors.linear_or_none(prefix + "attn_q_a")
            return LatentAttention(
                wq_a=wq_a,
                q_a_norm=tensors.vector_or_none(prefix + "attn_q_a_norm.weight"),
                wq=tensors.linear(prefix + ("attn_q" if wq_a is None else "attn_q_b")),
                wkv_a=tensors.linear(prefix + "attn_kv_a_mqa"),
                kv_a_norm=tensors.vector(prefix + "attn_kv_a_norm.weight"),
                wk_b=tensors.linear(prefix + "attn_k_b"),
                wv_b=tensors.linear(prefix + "attn_v_b"),
            )
        if prefix + "attn_k.weight" not in tensors:
            return None
        return Attention(
            wq=tensors.linear(prefix + "attn_q"),
            wk=tensors.linear(prefix + "attn_k"),
            wv=tensors.linear(prefix + "attn_v"),
            q_norm=tensors.vector_or_none(prefix + "attn_q_norm.weight"),
            k_norm=tensors.vector_or_none(prefix + "attn_k_norm.weight"),
        )

    def _read_feed_forward(self, il: int, prefix: str) -> FeedForward | Experts:
        experts = self.hparams.experts
        if experts is None or il < experts.first_layer:
            return self._read_matrices(prefix, "")
        return Experts(
            router=self._tensors.linear(prefix + "ffn_gate_inp"),
            router_bias=self._tensors.vector_or_none(prefix + "exp_probs_b.bias"),
            stacked=self._read_matrices(prefix, "_exps"),
            shared=self._read_matrices(prefix, "_shexp"),
        )

    def _read_matrices(self, prefix: str, suffix: str) -> FeedForward:
        tensors = self._tensors
        down = tensors.linear(f"{prefix}ffn_down{suffix}")
        both = f"{prefix}ffn_gate_up{suffix}"
        if both + ".weight" in tensors:
            half = tensors.shape(both + ".weight")[-2] // 2
            return FeedForward(tensors.linear(both, slice(half)), tensors.linear(both, slice(half, None)), down)
        return FeedForward(tensors.linear(f"{prefix}ffn_gate{suffix}"), tensors.linear(f"{prefix}ffn_up{suffix}"), down)


@cache
def read_model(path: Path) -> GGUFModel:
    """The model of a file that does not change: read once, its weights widened once."""
    return GGUFModel(path)
