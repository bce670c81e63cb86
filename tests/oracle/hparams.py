"""What a GGUF's keys say about a model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from gguf import GGUFReader

from .weights import Tensors, UnsupportedModel

# Each with whether RoPE's pairs are (i, i + n/2) instead of (2i, 2i + 1).
ARCHITECTURES = {
    "deci": False,
    "deepseek2": False,
    "gemma3": True,
    "lfm2": True,
    "llama": False,
    "qwen2": True,
    "qwen3": True,
}

GATINGS = {1: "softmax", 2: "sigmoid"}


@dataclass(frozen=True)
class LatentHParams:
    """Attention by latents (MLA): of a head's query, `n_rope` dimensions have RoPE, and `n_nope` before them have not.

    The cache has a latent of `rank` dimensions and a key of `n_rope` for all heads.
    """

    rank: int
    n_nope: int
    n_rope: int


@dataclass(frozen=True)
class ExpertsHParams:
    """Mixture of experts, in the layers from `first_layer` on."""

    first_layer: int
    n_used: int
    gating: str
    is_normalised: bool
    scale: float


@dataclass(frozen=True)
class Yarn:
    """YaRN (Peng et al., 2023, arXiv:2309.00071, section 3): high frequencies are unchanged."""

    n_trained: int  # tokens
    beta_fast: float = 32.0  # turns in n_trained tokens above which a frequency stays
    beta_slow: float = 1.0  # below which it is interpolated
    extrapolation: float = 1.0  # how far the high frequencies stay

    def kept(self, base: float, n_pairs: int) -> Any:
        """How much of each pair's own frequency is kept, from 0 to 1. With whole pairs as bounds, as in its code."""

        def pair_of(turns: float) -> float:
            return 2 * n_pairs * np.log(self.n_trained / (turns * 2 * np.pi)) / (2 * np.log(base))

        low = max(np.floor(pair_of(self.beta_fast)), 0)
        high = min(np.ceil(pair_of(self.beta_slow)), 2 * n_pairs - 1)
        ramp = (np.arange(n_pairs) - low) / max(high - low, 0.001)
        return self.extrapolation * (1 - np.clip(ramp, 0, 1))

    def size(self, scale: float) -> float:
        """What a query and a key are multiplied by."""
        return float(1 + 0.1 * np.log(1 / scale)) if self.extrapolation else 1.0


@dataclass(frozen=True)
class Rope:
    """The base of the frequencies, and what positions are multiplied by."""

    base: float
    scale: float
    yarn: Yarn | None = None


@dataclass(frozen=True)
class HParams:
    """Hyper-parameters. What may differ between layers is a tuple with one entry for each."""

    arch: str
    n_layer: int
    n_embd: int
    n_vocab: int
    n_ctx_train: int
    head_dim: int  # of a cached key
    value_dim: int  # of a cached value
    n_head: tuple[int, ...]
    n_head_kv: tuple[int, ...]
    window: tuple[int, ...]  # positions that a query sees, its own among them; 0: all
    rms_eps: float
    rope: tuple[Rope, ...]
    rope_neox: bool
    attention_scale: float
    embedding_scale: float
    softcap: float  # of the logits; 0: none
    has_gelu: bool
    latent: LatentHParams | None
    experts: ExpertsHParams | None

    @property
    def attention_layers(self) -> list[int]:
        """Layers in which a token attends to the whole text: H2O's layers."""
        return [il for il in range(self.n_layer) if self.n_head_kv[il] > 0 and not self.window[il]]

    @property
    def has_two_phases(self) -> bool:
        """Whether the layers may run twice: a window and a convolution have moved on after the first time."""
        return self.arch != "lfm2" and not any(self.window)


class Keys:
    """The keys of a GGUF; its architecture's keys by their second part."""

    def __init__(self, reader: GGUFReader) -> None:
        self._reader = reader
        self.arch = self._contents("general.architecture")

    def get(self, name: str, default: Any) -> Any:
        value = self._contents(f"{self.arch}.{name}")
        return default if value is None else value

    def need(self, name: str) -> Any:
        value = self.get(name, None)
        if value is None:
            raise UnsupportedModel(f"the GGUF has no key {self.arch}.{name}")
        return value

    def _contents(self, name: str) -> Any:
        field = self._reader.get_field(name)
        return None if field is None else field.contents()


def read_hparams(keys: Keys, tensors: Tensors) -> HParams:
    arch = keys.arch
    if arch not in ARCHITECTURES:
        raise UnsupportedModel(f"architecture {arch}")

    n_layer, n_embd = int(keys.need("block_count")), int(keys.need("embedding_length"))
    n_head = per_layer(keys.need("attention.head_count"), n_layer)
    n_head_kv = per_layer(keys.get("attention.head_count_kv", n_head), n_layer)
    head_dim = int(keys.get("attention.key_length", n_embd // max(n_head)))
    latent = read_latent(keys) if arch == "deepseek2" else None
    if latent is None and int(keys.get("rope.dimension_count", head_dim)) != head_dim:
        raise UnsupportedModel("partial RoPE")
    window = read_windows(keys, n_head_kv)
    is_gemma = arch == "gemma3"
    rope = Rope(float(keys.get("rope.freq_base", 10000.0)), read_rope_scale(keys))
    rope_of_windows = Rope(float(keys.get("rope.freq_base_swa", 10000.0)), 1.0) if is_gemma else rope
    return HParams(
        arch=arch,
        n_layer=n_layer,
        n_embd=n_embd,
        n_vocab=tensors.shape("token_embd.weight")[0],
        n_ctx_train=int(keys.need("context_length")),
        head_dim=head_dim,
        value_dim=int(keys.get("attention.value_length", head_dim)),
        n_head=n_head,
        n_head_kv=n_head_kv if latent is None else (1,) * n_layer,
        window=window,
        rms_eps=float(keys.need("attention.layer_norm_rms_epsilon")),
        rope=tuple(rope_of_windows if n else rope for n in window),
        rope_neox=ARCHITECTURES[arch],
        attention_scale=(head_dim if latent is None else latent.n_nope + latent.n_rope) ** -0.5,
        embedding_scale=n_embd**0.5 if is_gemma else 1.0,
        softcap=float(keys.get("final_logit_softcapping", 0.0)) if is_gemma else 0.0,
        has_gelu=is_gemma,
        latent=latent,
        experts=read_experts(keys),
    )


def read_rope_scale(keys: Keys) -> float:
    kind = keys.get("rope.scaling.type", "none")
    if kind not in ("none", "linear"):
        raise UnsupportedModel(f"RoPE scaling {kind}")
    factor = float(keys.get("rope.scaling.factor", 0.0)) if kind == "linear" else 0.0
    return 1 / factor if factor else 1.0


def read_windows(keys: Keys, n_head_kv: tuple[int, ...]) -> tuple[int, ...]:
    """Gemma 3: of every `pattern` layers, the last attends to everything. The pattern may have an entry per layer.

    LFM2: if there is a window, every layer with attention has it.
    """
    n_layer = len(n_head_kv)
    size = int(keys.get("attention.sliding_window", 0))
    if keys.arch == "lfm2":
        return tuple(size if n else 0 for n in n_head_kv)
    if keys.arch != "gemma3" or not size:
        return (0,) * n_layer
    if n_layer == 62:
        raise UnsupportedModel("the attention scale of Gemma 3 27B")
    pattern = keys.get("attention.sliding_window_pattern", 6)
    if isinstance(pattern, list):
        return tuple(size if is_window else 0 for is_window in pattern)
    return tuple(size if il % pattern < pattern - 1 else 0 for il in range(n_layer))


def read_latent(keys: Keys) -> LatentHParams:
    n_rope = int(keys.need("rope.dimension_count"))
    n_nope = int(keys.need("attention.key_length_mla")) - n_rope
    return LatentHParams(rank=int(keys.need("attention.kv_lora_rank")), n_nope=n_nope, n_rope=n_rope)


def read_experts(keys: Keys) -> ExpertsHParams | None:
    n_used, first_layer = int(keys.get("expert_used_count", 0)), int(keys.get("leading_dense_block_count", 0))
    if not n_used or first_layer >= int(keys.need("block_count")):
        return None
    if keys.arch != "deepseek2":
        raise UnsupportedModel("mixture of experts")
    if int(keys.get("expert_group_count", 0)) > 1:
        raise UnsupportedModel("groups of experts")
    return ExpertsHParams(
        first_layer=first_layer,
        n_used=n_used,
        gating=GATINGS[int(keys.get("expert_gating_func", 0)) or 1],
        is_normalised=bool(keys.get("expert_weights_norm", False)),
        scale=float(keys.get("expert_weights_scale", 1.0)) or 1.0,
    )


def per_layer(value: Any, n_layer: int) -> tuple[int, ...]:
    """A GGUF value which is one number for all layers or an array of one per layer."""
    return tuple(int(v) for v in np.broadcast_to(np.asarray(value), (n_layer,)))
