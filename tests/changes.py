"""What changes a model without another file of it, on one model of each kind: docs/compatibility.md has this table."""

from __future__ import annotations

from typing import Any

LORA = "LoRA adapters"
LINEAR = "RoPE scaled linearly"
YARN = "YaRN"

# Arguments of `Model`; an adapter is made of the model. The tests' texts are longer than yarn_orig_ctx.
CHANGES: dict[str, dict[str, Any]] = {
    LORA: {},
    LINEAR: {"rope_scaling_type": "linear", "rope_freq_scale": 0.25, "rope_freq_base": 5000.0},
    YARN: {"rope_scaling_type": "yarn", "rope_freq_scale": 0.25, "yarn_orig_ctx": 64, "yarn_beta_fast": 8.0},
}

KINDS = {
    "attention to the whole text": "qwen3-gqa4-f32",
    "and sliding windows": "gemma3-windows-f32",
    "and recurrent layers": "lfm2-conv-f32",
    "MLA, mixture of experts": "deepseek2-mla-f32",
}
