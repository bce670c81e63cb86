"""The benchmark model: layers of Qwen3-0.6B's shape with random Q8_0 weights, and next to no vocabulary.

A model with few tokens has a cheap output layer, so that a few layers tell what a token costs per layer.
It has no tokenizer: benchmarks evaluate token ids.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter, LlamaFileType
from gguf.quants import quantize

CACHE = Path(__file__).parent / ".cache"
WEIGHT_TYPE = GGMLQuantizationType.Q8_0


@dataclass(frozen=True)
class ModelSpec:
    """Shape of the model. The defaults are Qwen3-0.6B's but for `n_layer` and `n_vocab`."""

    n_layer: int = 4
    n_embd: int = 1024
    n_ff: int = 3072
    n_head: int = 16
    n_head_kv: int = 8
    head_size: int = 128
    rope_base: float = 1e6
    n_vocab: int = 256
    n_ctx_train: int = 131072

    @property
    def name(self) -> str:
        """A file name with the model's sizes."""
        return f"qwen3-{self.n_layer}x{self.n_embd}-{self.n_head}-{self.n_head_kv}-q8_0.gguf"


def model_file(spec: ModelSpec) -> Path:
    """Path of the model's GGUF, which is made on first use (about 70 MB)."""
    path = CACHE / spec.name
    if not path.exists():
        CACHE.mkdir(exist_ok=True)
        temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
        _write(spec, temporary)
        temporary.replace(path)
    return path


def _write(spec: ModelSpec, path: Path) -> None:
    writer = GGUFWriter(path, "qwen3")
    writer.add_name("h2o-llama benchmark")
    writer.add_file_type(LlamaFileType.MOSTLY_Q8_0)
    writer.add_context_length(spec.n_ctx_train)
    writer.add_embedding_length(spec.n_embd)
    writer.add_block_count(spec.n_layer)
    writer.add_feed_forward_length(spec.n_ff)
    writer.add_head_count(spec.n_head)
    writer.add_head_count_kv(spec.n_head_kv)
    writer.add_key_length(spec.head_size)
    writer.add_value_length(spec.head_size)
    writer.add_rope_freq_base(spec.rope_base)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_vocab_size(spec.n_vocab)
    writer.add_tokenizer_model("no_vocab")

    rng = np.random.default_rng(0)

    def add_matrix(name: str, n_out: int, n_in: int) -> None:
        values = rng.standard_normal((n_out, n_in), dtype=np.float32) / np.float32(np.sqrt(n_in))
        writer.add_tensor(f"{name}.weight", quantize(values, WEIGHT_TYPE), raw_dtype=WEIGHT_TYPE)

    def add_norm(name: str, n: int) -> None:
        writer.add_tensor(f"{name}.weight", np.ones(n, dtype=np.float32))

    add_matrix("token_embd", spec.n_vocab, spec.n_embd)  # also the output layer: embeddings are tied
    add_norm("output_norm", spec.n_embd)
    for il in range(spec.n_layer):
        prefix = f"blk.{il}."
        add_norm(prefix + "attn_norm", spec.n_embd)
        add_matrix(prefix + "attn_q", spec.n_head * spec.head_size, spec.n_embd)
        add_matrix(prefix + "attn_k", spec.n_head_kv * spec.head_size, spec.n_embd)
        add_matrix(prefix + "attn_v", spec.n_head_kv * spec.head_size, spec.n_embd)
        add_matrix(prefix + "attn_output", spec.n_embd, spec.n_head * spec.head_size)
        add_norm(prefix + "attn_q_norm", spec.head_size)
        add_norm(prefix + "attn_k_norm", spec.head_size)
        add_norm(prefix + "ffn_norm", spec.n_embd)
        add_matrix(prefix + "ffn_gate", spec.n_ff, spec.n_embd)
        add_matrix(prefix + "ffn_up", spec.n_ff, spec.n_embd)
        add_matrix(prefix + "ffn_down", spec.n_embd, spec.n_ff)

    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
