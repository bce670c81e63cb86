"""Somebody else's numbers: logits of Hugging Face's transformers, in float32, of the same weights.

They are of SmolLM2-135M: `h2o-llama pull smollm2-135m`, then `h2o-llama quantize` to F32. The tests run where
LLAMACPP_TEST_MODELFILE names that file. `python tests/core/test_hugging_face.py FILE` wrote the logits, with torch
2.13.0 and transformers 5.24.0; nothing of ours, nor of llama.cpp's, computes in it.
"""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from h2o_llama import H2OConfig, Llama
from inputs import EXTERNAL_MODEL

GOLDEN = Path(__file__).parent / "golden" / "smollm2-135m.npz"
N_TOP = 8
BOUND = 1e-3  # on AVX2 7e-5, where logits have a standard deviation of 7
TEXT = """The Treaty of Ghent ended a war that nobody had won. It was signed on 24 December 1814, and the news of it
took two months to cross the ocean. In the meantime a battle was fought that changed nothing, but made a president.

def factorial(n):
    return 1 if n < 2 else n * factorial(n - 1)

Water boils at 100 degrees at sea level, and at 71 on the highest mountain. Why? Because the air is thinner there.
The Treaty of Ghent was signed on"""

CONFIGS: dict[str, H2OConfig | None] = {
    "dense": None,
    "in one chunk": H2OConfig(chunk_size=256),
    "everything in memory": H2OConfig(chunk_size=64, heavy_budget=256, lookup_budget=0),
    "everything is looked up": H2OConfig(chunk_size=64, lookup_budget=256),
}


@pytest.mark.filterwarnings("ignore:.*costs more than it saves")
@pytest.mark.parametrize("name", CONFIGS)
def test_external_logits_are_hugging_faces(name: str) -> None:
    """Of every token: its likeliest next ones, and the sum over the vocabulary."""
    golden = np.load(GOLDEN)
    if EXTERNAL_MODEL is None:
        pytest.skip("LLAMACPP_TEST_MODELFILE is not set")
    # upstream's flash attention rounds to F16
    h2o, flash_attn = CONFIGS[name], "on" if CONFIGS[name] else "off"
    with Llama(EXTERNAL_MODEL, n_ctx=256, type_k="f32", type_v="f32", flash_attn=flash_attn, h2o=h2o) as llm:
        if not llm.metadata.get("general.name", "").startswith("Smollm2 135M"):
            pytest.skip("the logits are of SmolLM2-135M")
        llm.eval(golden["tokens"].tolist(), logits="all")
        logits = llm.logits.astype(np.float64)
    m = logits.max(axis=1, keepdims=True)
    sums = m[:, 0] + np.log(np.exp(logits - m).sum(axis=1))
    found = np.take_along_axis(logits, golden["ids"].astype(np.int64), axis=1)
    np.testing.assert_allclose(found, golden["logits"], atol=BOUND)
    np.testing.assert_allclose(sums, golden["sums"], atol=BOUND)


def write(model: str) -> None:
    """By transformers' own Llama, which is given the weights one by one."""
    import torch
    from gguf import GGUFReader
    from transformers import LlamaConfig, LlamaForCausalLM

    with Llama(model, h2o=None) as llm:
        tokens = llm.tokenize(TEXT)
    reader = GGUFReader(model)
    value: Any = lambda name: reader.fields[f"llama.{name}"].contents()  # noqa: E731
    n_head, n_head_kv = value("attention.head_count"), value("attention.head_count_kv")
    config = LlamaConfig(
        vocab_size=len(reader.fields["tokenizer.ggml.tokens"].data),
        hidden_size=value("embedding_length"),
        intermediate_size=value("feed_forward_length"),
        num_hidden_layers=value("block_count"),
        num_attention_heads=n_head,
        num_key_value_heads=n_head_kv,
        rms_norm_eps=value("attention.layer_norm_rms_epsilon"),
        rope_parameters={"rope_type": "default", "rope_theta": value("rope.freq_base")},
        tie_word_embeddings=True,
    )
    names = {"token_embd": "embed_tokens", "output_norm": "norm", "attn_norm": "input_layernorm"}
    names |= {"ffn_norm": "post_attention_layernorm", "attn_output": "self_attn.o_proj"}
    names |= {f"attn_{x}": f"self_attn.{x}_proj" for x in "qkv"}
    names |= {f"ffn_{x}": f"mlp.{x}_proj" for x in ("gate", "up", "down")}
    weights = {}
    for tensor in reader.tensors:
        assert tensor.tensor_type.name == "F32", tensor.name
        *layer, name, _ = tensor.name.split(".")
        x = tensor.data
        if name in ("attn_q", "attn_k"):  # GGUF has the pairs that are rotated next to each other
            n = n_head if name == "attn_q" else n_head_kv
            x = x.reshape(n, x.shape[0] // n // 2, 2, x.shape[1]).swapaxes(1, 2).reshape(x.shape)
        place = f"layers.{layer[1]}." if layer else ""
        weights[f"model.{place}{names[name]}.weight"] = torch.tensor(np.array(x))
    weights["lm_head.weight"] = weights["model.embed_tokens.weight"]
    llama = LlamaForCausalLM(config).eval()
    llama.load_state_dict(weights)
    with torch.no_grad():
        logits = llama.float()(torch.tensor([tokens])).logits[0].double()
    best = logits.topk(N_TOP)
    np.savez_compressed(
        GOLDEN,
        tokens=np.array(tokens, np.uint16),
        ids=best.indices.numpy().astype(np.uint16),
        logits=best.values.numpy().astype(np.float32),
        sums=logits.logsumexp(dim=1).numpy().astype(np.float32),
    )


if __name__ == "__main__":
    write(sys.argv[1])
