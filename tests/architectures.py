"""How H2O works with every architecture of upstream's generator of tiny models, by the names in GGUF files; and changed
models, without another file of them.

docs/compatibility.md says it too: after a change here, `python tools/compatibility.py`.
"""

from __future__ import annotations

from typing import Any, NamedTuple


class Refusal(NamedTuple):
    """Architectures that have `why`. The error's text is `message`."""

    why: str
    message: str
    architectures: str


ACCEPTED = """
    afmoe arcee arctic baichuan bailingmoe bailingmoe2 bailingmoe3 chatglm codeshell cogvlm cohere2 cohere2moe
    command-r dbrx deci deepseek deepseek2 dots1 ernie4_5 ernie4_5-moe exaone exaone-moe exaone4 falcon falcon-h1
    gemma gemma2 gemma3 glm4 glm4moe gpt-oss gpt2 gptneox granite granite_swa granitehybrid granitemoe grok
    grovemoe hrm_text hunyuan-dense hunyuan-moe hunyuan_vl hy_v3 internlm2 jais2 jamba kimi-k3 kimi-linear laguna
    lfm2moe llama llama4 maincoder maple mellum mimo2 minicpm minicpm3 minimax-01 minimax-m2 mistral3 mistral4
    muse-glimmer nanbeige nemotron nemotron_h nemotron_h_moe olmo olmo2 olmoe openelm orion paddleocr
    pangu-embedded phi2 phi3 phimoe plamo plamo2 plamo3 pockettts qwen qwen2 qwen2moe qwen2vl qwen3 qwen35
    qwen35moe qwen3moe qwen3next qwen3tts qwen3vl qwen3vlmoe seed_oss smallthinker smollm3 spark2_5 stablelm
    starcoder starcoder2 talkie xverse
"""

REFUSED = [
    Refusal(
        "attention that was trained to be sparse, with a selection of its own",
        "has a sparse attention of its own",
        "deepseek32 deepseek4 dots3note glm-dsa glm5-next hy_v4 minimax-m3 qwen4exp",
    ),
    Refusal(
        "recurrent layers only",
        "is recurrent in every layer",
        "mamba mamba2",
    ),
    Refusal(
        "recurrent and windowed layers only, in the test's model (LFM2 as published has others)",
        "attends to the whole text",
        "lfm2",
    ),
    Refusal(
        "position biases (ALiBi)",
        "uses ALiBi position biases",
        "bloom jais mpt refact",
    ),
    Refusal(
        "no memory of past tokens (diffusion); refused without H2O too",
        "keeps no K and V",
        "dream llada llada-moe rnd1",
    ),
]

REFUSAL_OF = {name: refusal for refusal in REFUSED for name in refusal.architectures.split()}

# --- changed models

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
