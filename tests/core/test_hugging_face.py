"""Somebody else's numbers: logits of Hugging Face's transformers, in float32, of the same weights.

They are of SmolLM2-135M: `h2o-llama pull smollm2-135m`, then `h2o-llama quantize` to F32. The tests run where
LLAMACPP_TEST_MODELFILE names that file. The logits of 128 tokens were made once, by LlamaForCausalLM of transformers
5.24.0 with torch 2.13.0. It was given the file's weights, with the rows of q and k in its own order: it rotates halves,
GGUF's Llama neighbours. Nothing of ours, nor of llama.cpp's, computes in it.
"""

from pathlib import Path

import numpy as np
import pytest

from h2o_llama import H2OConfig, Llama
from inputs import EXTERNAL_MODEL

GOLDEN = Path(__file__).parent / "golden" / "smollm2-135m.npz"
BOUND = 1e-3  # on AVX2 7e-5, where logits have a standard deviation of 7

CONFIGS: dict[str, H2OConfig | None] = {
    "dense": None,
    "in one chunk": H2OConfig(chunk_size=256),
    "everything in memory": H2OConfig(chunk_size=64, heavy_budget=256, lookup_budget=0),
    "everything is looked up": H2OConfig(chunk_size=64, lookup_budget=512),
}


@pytest.mark.filterwarnings("ignore:.*costs more than it saves")
@pytest.mark.parametrize("name", CONFIGS)
def test_external_logits_are_hugging_faces(name: str) -> None:
    """Of every token: its likeliest next ones, and the sum over the vocabulary."""
    with np.load(GOLDEN) as file:
        golden = dict(file)
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
