"""The demo model as a GGUF file for llama.cpp: F16 matrices, F32 norms, and a tokenizer of one token per byte."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import gguf
import numpy as np
import torch

from demo_data import BOS, EOS, PAD, SPECIAL_TOKENS, UNK
from demo_model import DemoModel, ModelConfig

CONTEXT_LENGTH = 8192
TRAINED_TO_GGUF = {
    "embed": "token_embd",
    "norm": "output_norm",
    "output": "output",
    "attn_norm": "attn_norm",
    "attn.q": "attn_q",
    "attn.k": "attn_k",
    "attn.v": "attn_v",
    "attn.o": "attn_output",
    "attn.q_norm": "attn_q_norm",
    "attn.k_norm": "attn_k_norm",
    "ffn_norm": "ffn_norm",
    "ffn.gate": "ffn_gate",
    "ffn.up": "ffn_up",
    "ffn.down": "ffn_down",
}


def gguf_name(name: str) -> str:
    """`layers.2.attn.q.weight` to `blk.2.attn_q.weight`."""
    parts = name.removesuffix(".weight").split(".")
    if parts[0] == "layers":
        return f"blk.{parts[1]}.{TRAINED_TO_GGUF['.'.join(parts[2:])]}.weight"
    return f"{TRAINED_TO_GGUF['.'.join(parts)]}.weight"


def byte_texts() -> list[str]:
    """GPT-2's printable character for every byte, in byte order."""
    printable = {*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)}
    substitutes: Iterator[int] = iter(range(256, 512))
    return [chr(b if b in printable else next(substitutes)) for b in range(256)]


def _add_tokenizer(writer: gguf.GGUFWriter) -> None:
    """Token id = byte value. llama.cpp requires merges; the only one joins two control tokens and never applies."""
    types = [gguf.TokenType.NORMAL] * 256 + [gguf.TokenType.CONTROL] * len(SPECIAL_TOKENS)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(byte_texts() + [SPECIAL_TOKENS[i] for i in sorted(SPECIAL_TOKENS)])
    writer.add_token_types(types)
    writer.add_token_merges([f"{SPECIAL_TOKENS[PAD]} {SPECIAL_TOKENS[UNK]}"])
    writer.add_bos_token_id(BOS)
    writer.add_eos_token_id(EOS)
    writer.add_pad_token_id(PAD)
    writer.add_unk_token_id(UNK)
    writer.add_add_bos_token(False)
    writer.add_add_eos_token(False)


def _add_hyperparameters(writer: gguf.GGUFWriter, c: ModelConfig) -> None:
    """What Qwen3's loader reads."""
    writer.add_name("h2o-llama demo (Qwen3, 2M)")
    writer.add_license("MIT")
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_F16)
    writer.add_context_length(CONTEXT_LENGTH)
    writer.add_embedding_length(c.n_embd)
    writer.add_block_count(c.n_layer)
    writer.add_feed_forward_length(c.n_ff)
    writer.add_head_count(c.n_head)
    writer.add_head_count_kv(c.n_head_kv)
    writer.add_key_length(c.head_dim)
    writer.add_value_length(c.head_dim)
    writer.add_rope_freq_base(c.rope_base)
    writer.add_layer_norm_rms_eps(c.norm_eps)
    writer.add_vocab_size(c.n_vocab)


def write_gguf(model: DemoModel, path: Path) -> None:
    """Write beside the target, then rename."""
    temporary = path.with_name(path.name + ".tmp")
    writer = gguf.GGUFWriter(temporary, "qwen3")
    _add_hyperparameters(writer, model.config)
    _add_tokenizer(writer)
    for name, value in model.state_dict().items():
        array = value.detach().float().numpy()
        writer.add_tensor(gguf_name(name), array.astype(np.float16) if array.ndim == 2 else array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    os.replace(temporary, path)


def read_gguf(path: Path) -> DemoModel:
    """The model with the file's (F16-rounded) weights, in float32."""
    tensors = {t.name: torch.from_numpy(t.data.astype(np.float32)) for t in gguf.GGUFReader(path).tensors}
    model = DemoModel()
    model.load_state_dict({name: tensors[gguf_name(name)] for name in model.state_dict()})
    return model.eval()
