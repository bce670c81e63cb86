"""Read a GGUF of architecture qwen3, llama or deci into numpy, by the `gguf` package."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType, GGUFReader, ReaderTensor
from gguf.quants import dequantize

from .arrays import Array, IntArray
from .kv_rounding import round_to

# Dequantised weights are kept only for small models; a big one is dequantised tensor by tensor as it is used.
KEEP_DEQUANTISED_BYTES = 256 << 20

# The type that ggml rounds the activations to before a dot product with weights of the given type.
ACTIVATION_TYPE = {"F32": "F32", "F16": "F16", "BF16": "BF16", "Q8_0": "Q8_0"}


class UnsupportedModel(ValueError):
    """The oracle does not know this model's architecture or one of its features."""


@dataclass(frozen=True)
class HParams:
    """Hyper-parameters. `n_head` and `n_head_kv` have one entry per layer."""

    arch: str
    n_layer: int
    n_embd: int
    n_vocab: int
    n_ctx_train: int
    head_dim: int
    n_head: tuple[int, ...]
    n_head_kv: tuple[int, ...]
    rms_eps: float
    rope_base: float
    rope_neox: bool

    @property
    def attention_layers(self) -> list[int]:
        """Layers that have keys and values (deci has layers without)."""
        return [il for il in range(self.n_layer) if self.n_head_kv[il] > 0]


class Linear:
    """y = x Wᵀ, the activations rounded as ggml rounds them for this weight type."""

    def __init__(self, tensor: ReaderTensor, keep: bool) -> None:
        self._tensor = tensor
        self._keep = keep
        self._weight: Array | None = None
        self.type_name: str = tensor.tensor_type.name

    def weight(self, dtype: Any) -> Array:
        """The dequantised matrix [n_out, n_in]."""
        if self._weight is not None and self._weight.dtype == dtype:
            return self._weight
        weight = to_float32(self._tensor).astype(dtype, copy=False)
        if self._keep:
            self._weight = weight
        return weight

    def rows(self, ids: IntArray, dtype: Any) -> Array:
        """Rows of the matrix, for an embedding look-up: [len(ids), n_in]."""
        return dequantised(self._tensor.data[ids], self._tensor.tensor_type).astype(dtype)

    def __call__(self, x: Array) -> Array:
        activation_type = ACTIVATION_TYPE.get(self.type_name)
        if activation_type is not None:
            x = round_to(x, activation_type)
        product: Array = x @ self.weight(x.dtype).T
        return product


@dataclass(frozen=True)
class Layer:
    """Weights of one layer; None where the layer has no such tensor."""

    attn_norm: Array
    wq: Linear | None
    wk: Linear | None
    wv: Linear | None
    wo: Linear
    q_norm: Array | None
    k_norm: Array | None
    ffn_norm: Array
    ffn_gate: Linear
    ffn_up: Linear
    ffn_down: Linear


class GGUFModel:
    """Weights and hyper-parameters of one GGUF file."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._reader = GGUFReader(self.path)
        self._tensors = {t.name: t for t in self._reader.tensors}
        self._keep = self.path.stat().st_size < KEEP_DEQUANTISED_BYTES
        self.hparams = self._read_hparams()
        self.tok_embd = self._linear("token_embd.weight")
        self.output = self._linear("output.weight" if "output.weight" in self._tensors else "token_embd.weight")
        self.output_norm = self._vector("output_norm.weight")
        # Llama 3 divides the RoPE frequencies by these.
        self.rope_factors = self._vector_or_none("rope_freqs.weight")

    @cached_property
    def layers(self) -> list[Layer]:
        return [self._read_layer(f"blk.{il}.") for il in range(self.hparams.n_layer)]

    @property
    def weight_type(self) -> str:
        """Type of the matrices, such as "F16"; the widest rounding when they differ."""
        names = {t.tensor_type.name for t in self._reader.tensors if len(t.shape) > 1}
        for name in ("Q8_0", "BF16", "F16", "F32"):
            if name in names and names <= set(ACTIVATION_TYPE):
                return name
        raise UnsupportedModel(f"weight types {sorted(names)}")

    def _field(self, key: str, default: Any = None) -> Any:
        field = self._reader.get_field(key)
        if field is not None:
            return field.contents()
        if default is None:
            raise UnsupportedModel(f"the GGUF has no key {key}")
        return default

    def _read_hparams(self) -> HParams:
        arch = self._field("general.architecture")
        if arch not in ("qwen3", "llama", "deci"):
            raise UnsupportedModel(f"architecture {arch}")
        if self._field(f"{arch}.rope.scaling.type", "none") != "none":
            raise UnsupportedModel("RoPE scaling")
        if self._field(f"{arch}.expert_count", 0):
            raise UnsupportedModel("mixture of experts")

        n_layer = int(self._field(f"{arch}.block_count"))
        n_embd = int(self._field(f"{arch}.embedding_length"))
        n_head = per_layer(self._field(f"{arch}.attention.head_count"), n_layer)
        n_head_kv = per_layer(self._field(f"{arch}.attention.head_count_kv", n_head), n_layer)
        head_dim = int(self._field(f"{arch}.attention.key_length", n_embd // max(n_head)))
        if int(self._field(f"{arch}.rope.dimension_count", head_dim)) != head_dim:
            raise UnsupportedModel("partial RoPE")
        return HParams(
            arch=arch,
            n_layer=n_layer,
            n_embd=n_embd,
            n_vocab=int(self._tensors["token_embd.weight"].shape[1]),
            n_ctx_train=int(self._field(f"{arch}.context_length")),
            head_dim=head_dim,
            n_head=n_head,
            n_head_kv=n_head_kv,
            rms_eps=float(self._field(f"{arch}.attention.layer_norm_rms_epsilon")),
            rope_base=float(self._field(f"{arch}.rope.freq_base", 10000.0)),
            rope_neox=arch == "qwen3",
        )

    def _read_layer(self, prefix: str) -> Layer:
        return Layer(
            attn_norm=self._vector(prefix + "attn_norm.weight"),
            wq=self._linear_or_none(prefix + "attn_q.weight"),
            wk=self._linear_or_none(prefix + "attn_k.weight"),
            wv=self._linear_or_none(prefix + "attn_v.weight"),
            wo=self._linear(prefix + "attn_output.weight"),
            q_norm=self._vector_or_none(prefix + "attn_q_norm.weight"),
            k_norm=self._vector_or_none(prefix + "attn_k_norm.weight"),
            ffn_norm=self._vector(prefix + "ffn_norm.weight"),
            ffn_gate=self._linear(prefix + "ffn_gate.weight"),
            ffn_up=self._linear(prefix + "ffn_up.weight"),
            ffn_down=self._linear(prefix + "ffn_down.weight"),
        )

    def _linear(self, name: str) -> Linear:
        if name not in self._tensors:
            raise UnsupportedModel(f"the GGUF has no tensor {name}")
        return Linear(self._tensors[name], self._keep)

    def _linear_or_none(self, name: str) -> Linear | None:
        return self._linear(name) if name in self._tensors else None

    def _vector(self, name: str) -> Array:
        return to_float32(self._tensors[name])

    def _vector_or_none(self, name: str) -> Array | None:
        return self._vector(name) if name in self._tensors else None


@cache
def read_model(path: Path) -> GGUFModel:
    """The model of a file that stays as it is: read once, its weights widened once."""
    return GGUFModel(path)


def per_layer(value: Any, n_layer: int) -> tuple[int, ...]:
    """A GGUF value which is one number for all layers or an array of one per layer."""
    return tuple(int(v) for v in np.broadcast_to(np.asarray(value), (n_layer,)))


def dequantised(data: Any, tensor_type: GGMLQuantizationType) -> Array:
    values: Array = dequantize(data, tensor_type)
    return values


def to_float32(tensor: ReaderTensor) -> Array:
    """The tensor's values, shape [ne1, ne0] for a matrix; those of the file itself if they have this type."""
    return np.asarray(dequantised(tensor.data, tensor.tensor_type), dtype=np.float32)
