"""What H2O does with every architecture of which upstream's generator makes a tiny model, by the names in GGUF files.

docs/compatibility.md says it too: after a change here, `python tools/compatibility.py`.
"""

from __future__ import annotations

from typing import NamedTuple


class Refusal(NamedTuple):
    """Architectures that have `why`. What is raised says `message`."""

    why: str
    message: str
    architectures: str


ACCEPTED = """
    arcee arctic baichuan bailingmoe bailingmoe2 chatglm codeshell cogvlm command-r dbrx deci deepseek dots1
    ernie4_5 ernie4_5-moe exaone exaone4 falcon gemma glm4 glm4moe gpt2 gptneox granite granitemoe grovemoe
    hrm_text hunyuan-dense hunyuan-moe hunyuan_vl hy_v3 internlm2 jais2 llama maincoder minicpm minicpm3
    minimax-m2 mistral3 nanbeige nemotron olmo olmoe openelm orion paddleocr pangu-embedded phi2 phi3 phimoe
    plamo pockettts qwen qwen2 qwen2moe qwen2vl qwen3 qwen3moe qwen3tts qwen3vl qwen3vlmoe seed_oss smollm3
    stablelm starcoder starcoder2 talkie xverse
"""

REFUSED = [
    Refusal(
        "recurrent layers beside attention",
        "another kind of memory",
        """
            bailingmoe3 falcon-h1 granitehybrid jamba kimi-k3 kimi-linear lfm2 lfm2moe minimax-01
            nemotron_h nemotron_h_moe plamo2 qwen35 qwen35moe qwen3next
        """,
    ),
    Refusal(
        "a sliding window in some layers",
        "another kind of memory",
        """
            afmoe cohere2 cohere2moe exaone-moe gemma2 gemma3 gpt-oss granite_swa laguna llama4 maple
            mellum mimo2 muse-glimmer olmo2 plamo3 smallthinker spark2_5
        """,
    ),
    Refusal(
        "latent attention (MLA)",
        "uses multi-head latent attention (MLA)",
        "deepseek2 mistral4",
    ),
    Refusal(
        "attention logits that are capped",
        "scales its attention logits in its own way",
        "grok",
    ),
    Refusal(
        "attention that was trained to be sparse, with a selection of its own",
        "another kind of memory",
        "deepseek32 deepseek4 dots3note glm-dsa glm5-next hy_v4 minimax-m3 qwen4exp",
    ),
    Refusal(
        "no attention, only recurrent layers",
        "another kind of memory",
        "mamba mamba2",
    ),
    Refusal(
        "position biases (ALiBi)",
        "uses ALiBi position biases",
        "bloom jais mpt refact",
    ),
    Refusal(
        "no memory of past tokens (diffusion); refused without H2O too",
        "another kind of memory",
        "dream llada llada-moe rnd1",
    ),
]

REFUSAL_OF = {name: refusal for refusal in REFUSED for name in refusal.architectures.split()}
