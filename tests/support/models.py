"""Small random-weight GGUFs, made by the tests themselves.

The weights are scaled so that attention is far from uniform (attention logits spread by several units, and all hidden
states share a direction, so that some keys attract every query: heavy hitters exist and differ between heads) and so
that output logits are of order 1 to 10. Everything is deterministic in the spec.
"""

import zlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from gguf import ExpertGatingFuncType, GGMLQuantizationType, GGUFWriter, LlamaFileType, TokenType
from gguf.quants import quantize

from model_layers import (
    CONV_WIDTH,
    NARROW,
    add_attention,
    add_experts,
    add_feed_forward,
    add_latent_attention,
    add_short_conv,
)

Array = npt.NDArray[np.float32]

N_CTX_TRAIN = 8192
N_BYTES = 256
# Ids above the bytes. No merge can ever produce one, so text tokenises to its bytes.
EXTRA_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|pad|>")
N_VOCAB = N_BYTES + len(EXTRA_TOKENS)
EOS = N_BYTES

WEIGHT_TYPES = {
    "f32": (GGMLQuantizationType.F32, LlamaFileType.ALL_F32),
    "f16": (GGMLQuantizationType.F16, LlamaFileType.MOSTLY_F16),
    "q8_0": (GGMLQuantizationType.Q8_0, LlamaFileType.MOSTLY_Q8_0),
}

LOGIT_GAIN = 3.0


@dataclass(frozen=True)
class ModelSpec:
    """Shape of a fixture model. Every matrix row is a multiple of 32 long, as Q8_0 needs."""

    name: str
    arch: str
    n_embd: int
    head_dim: int
    n_head: tuple[int, ...]
    n_head_kv: tuple[int, ...]
    n_ff: int = 128
    rope_base: float = 10000.0
    rope_factors: tuple[float, ...] = ()  # one for each pair of dimensions, as Llama 3 has them
    n_rot: int | None = None  # dimensions of a head with RoPE; by default all
    window: int = 0  # Gemma 3: positions that every second layer sees
    rank: int = 0  # DeepSeek-V2: the size of a latent; a head has n_rot dimensions with RoPE and head_dim without
    n_expert: int = 0  # in all layers but the first
    tied: bool = False
    weight_type: str = "f32"
    bias: float = 0.1  # standard deviation of Qwen 2's

    @property
    def full_name(self) -> str:
        return f"{self.name}-{self.weight_type}"

    @property
    def file_name(self) -> str:
        return self.full_name + ".gguf"

    @property
    def has_side_layers(self) -> bool:
        """Whether some layers have a sliding window or a recurrent state."""
        return self.arch in ("gemma3", "lfm2")

    @property
    def n_layer(self) -> int:
        return len(self.n_head)


QWEN3_GQA4 = ModelSpec("qwen3-gqa4", "qwen3", 64, 32, (8, 8, 8), (2, 2, 2), rope_base=1e6)
QWEN3_MHA = ModelSpec("qwen3-mha", "qwen3", 96, 32, (4, 4), (4, 4), rope_base=1e6, tied=True)
# Head size 64: llama.cpp rotates K and V in a Q8_0 cache.
QWEN3_GQA8 = ModelSpec("qwen3-gqa8", "qwen3", 64, 64, (8, 8), (1, 1), rope_base=1e6)
LLAMA_GQA = ModelSpec("llama-gqa2", "llama", 128, 64, (4, 4), (2, 2))
LLAMA3_GQA = replace(LLAMA_GQA, name="llama3-gqa2", rope_factors=tuple(np.linspace(1, 8, 32)))
# deci is llama with head counts per layer. The second layer of DECI_LINEAR has no KV heads: it has no attention.
DECI_MIXED = ModelSpec("deci-mixed", "deci", 64, 32, (4, 4, 8), (1, 4, 2))
DECI_LINEAR = ModelSpec("deci-linear", "deci", 64, 32, (4, 4, 4), (2, 0, 2))
QWEN2_GQA = ModelSpec("qwen2-gqa2", "qwen2", 128, 32, (4, 4), (2, 2), rope_base=1e6)
GEMMA3 = ModelSpec("gemma3-windows", "gemma3", 64, 32, (4,) * 4, (1,) * 4, rope_base=1e6, window=24, tied=True)
# The first layer and the third have a short convolution in place of attention.
LFM2 = ModelSpec("lfm2-conv", "lfm2", 128, 32, (4,) * 4, (0, 2, 0, 2), rope_base=1e6)
DEEPSEEK2 = ModelSpec("deepseek2-mla", "deepseek2", 64, 32, (4,) * 3, (1,) * 3, n_rot=64, rank=128, n_expert=4)
# Its K and V do not depend on what attention computes.
ONE_LAYER = ModelSpec("one-layer", "qwen3", 64, 64, (8,), (2,))

ARCHITECTURES = (QWEN3_GQA4, QWEN3_MHA, QWEN3_GQA8, LLAMA_GQA)
# By name, such as "qwen3-gqa4-f16".
FIXTURE_MODELS = {
    spec.full_name: spec
    for spec in (
        *(replace(spec, weight_type=weight_type) for spec in ARCHITECTURES for weight_type in WEIGHT_TYPES),
        LLAMA3_GQA,
        DECI_MIXED,
        DECI_LINEAR,
        QWEN2_GQA,
        GEMMA3,
        LFM2,
        DEEPSEEK2,
    )
}


def write_model(spec: ModelSpec, path: Path) -> None:
    """Write the GGUF of a fixture model that the oracle can read."""
    writer = open_writer(spec, path)
    add_weights(spec, writer)
    finish(writer)


def add_weights(spec: ModelSpec, writer: GGUFWriter) -> None:
    """The tensors of a fixture model."""
    weights = Weights(spec, writer)
    n_embd = spec.n_embd

    embedding = weights.normal(N_VOCAB, n_embd)
    # The shared direction that makes heavy hitters.
    embedding += weights.normal(1, n_embd)
    # Gemma multiplies the embedding by `scale`: attention would hardly count.
    scale = np.sqrt(np.float32(n_embd)) if spec.arch == "gemma3" else np.float32(1)
    embedding /= scale
    weights.add_matrix("token_embd", embedding)
    if not spec.tied:
        weights.add_matrix("output", weights.normal(N_VOCAB, n_embd) * LOGIT_GAIN / np.sqrt(n_embd))
    if spec.rope_factors:
        writer.add_tensor("rope_freqs.weight", np.array(spec.rope_factors, np.float32))
    output_norm = "token_embd_norm" if spec.arch == "lfm2" else "output_norm"
    weights.add_norm(output_norm, n_embd, float(scale * LOGIT_GAIN / np.sqrt(2 * n_embd)) if spec.tied else 1.0)

    for il, (n_head, n_head_kv) in enumerate(zip(spec.n_head, spec.n_head_kv, strict=True)):
        prefix = f"blk.{il}."
        weights.add_norm(prefix + "attn_norm", n_embd)
        if spec.rank:
            add_latent_attention(weights, spec, prefix, n_head)
        elif n_head_kv:
            add_attention(weights, spec, prefix, n_head, n_head_kv)
        elif spec.arch == "lfm2":
            add_short_conv(weights, spec, prefix)
        else:
            weights.add_projection(prefix + "attn_output", n_embd, n_embd, 1.0)
        weights.add_norm(prefix + "ffn_norm", n_embd)
        if spec.n_expert and il > 0:
            add_experts(weights, spec, prefix)
        else:
            add_feed_forward(weights, spec, prefix)
        if spec.arch == "gemma3":
            weights.add_norm(prefix + "post_attention_norm", n_embd)
            weights.add_norm(prefix + "post_ffw_norm", n_embd)


def write_vocab_only(path: Path) -> None:
    """Hyper-parameters and tokenizer of QWEN3_GQA4, but no tensors."""
    finish(open_writer(QWEN3_GQA4, path))


def write_sliding_window(path: Path) -> None:
    """A gemma3 model: complete, but its memory is the sliding-window cache, not the plain one."""
    spec = ModelSpec("gemma3", "gemma3", 64, 32, (2, 2), (1, 1), tied=True)
    writer = open_writer(spec, path)
    writer.add_sliding_window(64)  # in all layers, without a pattern
    add_weights(spec, writer)
    finish(writer)


def write_recurrent(path: Path) -> None:
    """A mamba model: complete, but it has a recurrent state and no KV cache."""
    n_embd, d_conv, d_inner, d_state, dt_rank = 64, 4, 128, 16, 4
    spec = ModelSpec("mamba", "mamba", n_embd, 0, (0, 0), (0, 0), n_ff=0, tied=True)
    writer = open_writer(spec, path)
    writer.add_ssm_conv_kernel(d_conv)
    writer.add_ssm_inner_size(d_inner)
    writer.add_ssm_state_size(d_state)
    writer.add_ssm_time_step_rank(dt_rank)
    weights = Weights(spec, writer)
    weights.add_matrix("token_embd", weights.normal(N_VOCAB, n_embd))
    weights.add_norm("output_norm", n_embd)
    for il in range(spec.n_layer):
        prefix = f"blk.{il}."
        weights.add_norm(prefix + "attn_norm", n_embd)
        weights.add_projection(prefix + "ssm_in", 2 * d_inner, n_embd, 1.0)
        weights.add_projection(prefix + "ssm_conv1d", d_inner, d_conv, 1.0)
        writer.add_tensor(prefix + "ssm_conv1d.bias", weights.normal(d_inner))
        weights.add_projection(prefix + "ssm_x", dt_rank + 2 * d_state, d_inner, 1.0)
        weights.add_projection(prefix + "ssm_dt", d_inner, dt_rank, 1.0)
        writer.add_tensor(prefix + "ssm_dt.bias", weights.normal(d_inner))
        writer.add_tensor(prefix + "ssm_a", -np.exp(weights.normal(d_inner, d_state)))
        writer.add_tensor(prefix + "ssm_d", weights.normal(d_inner))
        weights.add_projection(prefix + "ssm_out", n_embd, d_inner, 1.0)
    finish(writer)


class Weights:
    """Draws and writes tensors. The generator is seeded by the name, so weight types share their values."""

    def __init__(self, spec: ModelSpec, writer: GGUFWriter) -> None:
        self._rng = np.random.default_rng(zlib.crc32(spec.name.encode()))
        self._writer = writer
        self._type, self._bias = WEIGHT_TYPES[spec.weight_type][0], spec.bias

    def normal(self, *shape: int) -> Array:
        return self._rng.standard_normal(shape, dtype=np.float32)

    def add_norm(self, name: str, n: int, gain: float = 1.0) -> None:
        weight = self._rng.uniform(0.7, 1.3, n).astype(np.float32) * np.float32(gain)
        self._writer.add_tensor(name + ".weight", weight)

    def add_bias(self, name: str, n: int) -> None:
        self.add_vector(name, self.normal(n) * np.float32(self._bias))

    def add_vector(self, name: str, values: Array) -> None:
        self._writer.add_tensor(name + ".bias", values)

    def add_projection(self, name: str, n_out: int, n_in: int, gain: float) -> None:
        self.add_matrix(name, self.normal(n_out, n_in) * np.float32(gain / np.sqrt(n_in)))

    def add_matrix(self, name: str, values: Array) -> None:
        data: Any = quantize(values.astype(np.float32), self._type)
        self._writer.add_tensor(name + ".weight", data, raw_dtype=self._type)


def open_writer(spec: ModelSpec, path: Path) -> GGUFWriter:
    writer = GGUFWriter(path, spec.arch)
    writer.add_name(spec.name)
    writer.add_file_type(WEIGHT_TYPES[spec.weight_type][1])
    writer.add_context_length(N_CTX_TRAIN)
    writer.add_embedding_length(spec.n_embd)
    writer.add_block_count(spec.n_layer)
    writer.add_feed_forward_length(spec.n_ff)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_vocab_size(N_VOCAB)
    if spec.head_dim:
        uniform = len(set(zip(spec.n_head, spec.n_head_kv, strict=True))) == 1
        writer.add_head_count(spec.n_head[0] if uniform else list(spec.n_head))
        writer.add_head_count_kv(spec.n_head_kv[0] if uniform else list(spec.n_head_kv))
        if spec.rank:
            _add_latents(spec, writer)
        else:
            writer.add_key_length(spec.head_dim)
            writer.add_value_length(spec.head_dim)
        writer.add_rope_dimension_count(spec.head_dim if spec.n_rot is None else spec.n_rot)
        writer.add_rope_freq_base(spec.rope_base)
    if spec.window:
        writer.add_sliding_window(spec.window)
        writer.add_sliding_window_pattern(2)
    if spec.arch == "lfm2":
        writer.add_shortconv_l_cache(CONV_WIDTH)
    if spec.n_expert:
        _add_experts(spec, writer)
    _add_byte_tokenizer(writer)
    return writer


def _add_latents(spec: ModelSpec, writer: GGUFWriter) -> None:
    """Sizes of the cached latents, and of a head without them."""
    assert spec.n_rot is not None
    writer.add_key_length(spec.rank + spec.n_rot)
    writer.add_value_length(spec.rank)
    writer.add_key_length_mla(spec.head_dim + spec.n_rot)
    writer.add_value_length_mla(spec.head_dim)
    writer.add_kv_lora_rank(spec.rank)
    writer.add_q_lora_rank(NARROW)


def _add_experts(spec: ModelSpec, writer: GGUFWriter) -> None:
    writer.add_leading_dense_block_count(1)
    writer.add_expert_count(spec.n_expert)
    writer.add_expert_used_count(2)
    writer.add_expert_shared_count(1)
    writer.add_expert_feed_forward_length(spec.n_ff)
    writer.add_expert_gating_func(ExpertGatingFuncType.SIGMOID)
    writer.add_expert_weights_norm(True)
    writer.add_expert_weights_scale(1.5)


def _add_byte_tokenizer(writer: GGUFWriter) -> None:
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list([*byte_characters(), *EXTRA_TOKENS])
    writer.add_token_types([TokenType.NORMAL] * N_BYTES + [TokenType.CONTROL] * len(EXTRA_TOKENS))
    # llama.cpp insists on a list of merges; this one never applies, as its parts are longer than a character.
    writer.add_token_merges(["aa bb"])
    writer.add_bos_token_id(EOS)
    writer.add_eos_token_id(EOS)
    writer.add_add_bos_token(False)


def byte_characters() -> list[str]:
    """GPT-2's printable character for each byte value: itself where printable, else one from U+0100 upwards."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [b for b in range(N_BYTES) if b not in printable]
    return [chr(b) if b in printable else chr(N_BYTES + others.index(b)) for b in range(N_BYTES)]


def finish(writer: GGUFWriter) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
