"""A GGUF: what its keys say about the model, and its weights, which round their input as ggml does."""

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGUFReader, ReaderTensor
from gguf.quants import dequantize

from .rounding import Array, round_to

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

# The type that ggml rounds the activations to before a dot product with weights of the given type, from fine to coarse.
# (Q8_1 is Q8_0 and the sum of each block.)
ACTIVATION_TYPE = {
    "F32": "F32",
    "F16": "F16",
    "BF16": "BF16",
    **dict.fromkeys(("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "IQ4_NL", "MXFP4"), "Q8_0"),
}
ACTIVATION_TYPES = list(dict.fromkeys(ACTIVATION_TYPE.values()))


class UnsupportedModel(ValueError):
    """The oracle does not know this model's architecture or one of its features."""


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
    """Rotary position embedding of one layer."""

    base: float  # of the frequencies
    is_neox: bool
    factors: Array | None  # Llama 3's divisors of frequencies
    scale: float = 1.0  # of positions
    yarn: Yarn | None = None

    def __call__(self, x: Array, positions: Array) -> Array:
        """x [n_tokens, n_head, head_dim] at absolute positions.

        Pair i is rotated by scale · position · base^(-2i/head_dim) / factors[i].
        """
        n_pairs = x.shape[-1] // 2
        frequencies = self.base ** (-np.arange(n_pairs) / n_pairs)
        if self.factors is not None:
            frequencies = frequencies / self.factors
        scaled = self.scale * frequencies
        if self.yarn is not None:
            kept = self.yarn.kept(self.base, n_pairs)
            scaled = scaled * (1 - kept) + frequencies * kept
        angles = positions[:, None, None] * scaled
        size = 1.0 if self.yarn is None else self.yarn.size(self.scale)
        cos, sin = (size * np.cos(angles)).astype(x.dtype), (size * np.sin(angles)).astype(x.dtype)

        pairs = np.arange(2 * n_pairs).reshape((2, n_pairs) if self.is_neox else (n_pairs, 2))
        first, second = pairs if self.is_neox else pairs.T
        y = np.empty_like(x)
        y[..., first] = x[..., first] * cos - x[..., second] * sin
        y[..., second] = x[..., first] * sin + x[..., second] * cos
        return y


@dataclass(frozen=True)
class HParams:
    """Hyper-parameters. What may differ between layers is a tuple with one entry for each."""

    arch: str
    n_layer: int
    n_vocab: int
    n_ctx_train: int
    head_dim: int  # of a cached key
    value_dim: int  # of a cached value
    n_head: tuple[int, ...]
    n_head_kv: tuple[int, ...]  # 0: a layer without attention
    window: tuple[int, ...]  # positions that a query sees, its own among them; 0: all
    rms_eps: float
    rope: tuple[Rope, ...]
    attention_scale: float
    embedding_scale: float
    # DeepSeek-V2's latents (MLA): of a head's query, `n_rope` dimensions have RoPE, and `n_nope` before them have not.
    # The cache has a latent of `rank` dimensions and a key of `n_rope` for all heads.
    rank: int
    n_nope: int
    n_rope: int
    # Its experts: how many a token uses, and what their sum is multiplied by.
    n_used: int
    expert_scale: float

    @property
    def attention_layers(self) -> list[int]:
        """Layers in which a token attends to the whole text: H2O's layers."""
        return [il for il in range(self.n_layer) if self.n_head_kv[il] > 0 and not self.window[il]]

    @property
    def has_two_phases(self) -> bool:
        """Whether the layers may run twice: a window and a convolution have moved on after the first time."""
        return self.arch != "lfm2" and not any(self.window)


class Linear:
    """y = x Wᵀ + b. A stack of matrices multiplies a stack of inputs, or the same input with each."""

    def __init__(self, tensor: ReaderTensor, bias: Array | None) -> None:
        self._tensor, self._bias = tensor, bias
        self._activation_type = ACTIVATION_TYPE[tensor.tensor_type.name]
        self._weight: Array | None = None

    def weight(self, dtype: Any) -> Array:
        """The dequantised matrix [n_out, n_in], or the stack of them [n, n_out, n_in]."""
        if self._weight is None or self._weight.dtype != dtype:
            self._weight = dequantize(self._tensor.data, self._tensor.tensor_type).astype(dtype)
        return self._weight

    def rows(self, ids: Array, dtype: Any) -> Array:
        """Rows of the matrix, for an embedding look-up: [len(ids), n_in]."""
        return dequantize(self._tensor.data[ids], self._tensor.tensor_type).astype(dtype)

    def __call__(self, x: Array) -> Array:
        y: Array = round_to(x, self._activation_type) @ self.weight(x.dtype).swapaxes(-1, -2)
        return y if self._bias is None else y + self._bias.astype(x.dtype)


class GGUFModel:
    """Weights and hyper-parameters of one GGUF file."""

    def __init__(self, path: str | Path) -> None:
        self._reader = GGUFReader(path)
        self._tensors = {tensor.name: tensor for tensor in self._reader.tensors}
        self._read: dict[str, Any] = {}
        matrices = {t.tensor_type.name for t in self._reader.tensors if len(t.shape) > 1}
        if unknown := sorted(matrices - set(ACTIVATION_TYPE)):
            raise UnsupportedModel(f"weight types {unknown}")
        if any(name.endswith(".scale") for name in self._tensors):
            raise UnsupportedModel("matrices with a scale")
        self.hparams = self._read_hparams()
        # ggml looks GELU up in a table of F16.
        types = {ACTIVATION_TYPE[name] for name in matrices} | ({"F16"} if self.hparams.arch == "gemma3" else set())
        self.activation_type = max(types, key=ACTIVATION_TYPES.index)  # the coarsest that activations are rounded to
        self.tok_embd = self.tensor("token_embd")
        self.output = self.tensor("output") or self.tok_embd
        # LFM2's last norm has the name that others give to one of the embedding.
        self.output_norm = self.tensor("token_embd_norm" if self.hparams.arch == "lfm2" else "output_norm")

    def tensor(self, name: str, il: int | None = None) -> Any:
        """A matrix as `Linear`, the values of a vector, or None where there is none; `name` is without ".weight"."""
        name = name if il is None else f"blk.{il}.{name}"
        if name not in self._read:
            tensor, bias = self._tensors.get(name + ".weight"), self._tensors.get(name + ".bias")
            values = None if bias is None else bias.data
            if tensor is None:
                self._read[name] = values
            else:
                self._read[name] = tensor.data if len(tensor.shape) == 1 else Linear(tensor, values)
        return self._read[name]

    def _key(self, name: str, default: Any = None) -> Any:
        field = self._reader.get_field(name)
        if field is None and default is None:
            raise UnsupportedModel(f"the GGUF has no key {name}")
        return default if field is None else field.contents()

    def _read_hparams(self) -> HParams:
        arch = self._key("general.architecture")
        if arch not in ARCHITECTURES:
            raise UnsupportedModel(f"architecture {arch}")

        def key(name: str, default: Any = None) -> Any:
            return self._key(f"{arch}.{name}", default)

        n_layer, n_embd = int(key("block_count")), int(key("embedding_length"))

        def per_layer(value: Any) -> tuple[int, ...]:
            return tuple(int(n) for n in np.broadcast_to(np.asarray(value), (n_layer,)))

        n_head = per_layer(key("attention.head_count"))
        n_head_kv = per_layer(key("attention.head_count_kv", n_head))
        head_dim = int(key("attention.key_length", n_embd // max(n_head)))
        n_rope, rank = int(key("rope.dimension_count", head_dim)), int(key("attention.kv_lora_rank", 0))
        n_used = int(key("expert_used_count", 0))
        size, pattern = int(key("attention.sliding_window", 0)), key("attention.sliding_window_pattern", 6)
        for feature, has in {
            "partial RoPE": not rank and n_rope != head_dim,
            "RoPE scaling": key("rope.scaling.type", "none") != "none",
            "experts of another kind": n_used
            and not (rank and key("expert_gating_func", 0) == 2 and key("expert_weights_norm", False)),
            "windows of another kind": size and (arch == "lfm2" or isinstance(pattern, list)),
        }.items():
            if has:
                raise UnsupportedModel(feature)
        # Gemma 3: of every `pattern` layers, the last attends to everything.
        window = tuple(size if arch == "gemma3" and il % pattern < pattern - 1 else 0 for il in range(n_layer))
        factors = self.tensor("rope_freqs")
        rope, rope_of_windows = (
            Rope(float(key(name, 10000.0)), ARCHITECTURES[arch], factors)
            for name in ("rope.freq_base", "rope.freq_base_swa")
        )
        n_nope = int(key("attention.key_length_mla")) - n_rope if rank else 0
        return HParams(
            arch=arch,
            n_layer=n_layer,
            n_vocab=int(self._tensors["token_embd.weight"].shape[1]),
            n_ctx_train=int(key("context_length")),
            head_dim=head_dim,
            value_dim=int(key("attention.value_length", head_dim)),
            n_head=n_head,
            n_head_kv=(1,) * n_layer if rank else n_head_kv,
            window=window,
            rms_eps=float(key("attention.layer_norm_rms_epsilon")),
            rope=tuple(rope_of_windows if n else rope for n in window),
            attention_scale=(n_nope + n_rope if rank else head_dim) ** -0.5,
            embedding_scale=n_embd**0.5 if arch == "gemma3" else 1.0,
            rank=rank,
            n_nope=n_nope,
            n_rope=n_rope,
            n_used=n_used,
            expert_scale=float(key("expert_weights_scale", 1.0)),
        )


@cache
def read_model(path: Path) -> GGUFModel:
    """The model of a file that does not change: read once, its weights widened once."""
    return GGUFModel(path)
