"""`Llama(matmul_kernels=)`: our kernels and upstream's, with H2O and without, against each other and the oracle."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGMLQuantizationType
from gguf.quants import quantize
from numpy.typing import NDArray

from cases import SMALL, Case
from compare import assert_logits_close
from h2o_llama import _core
from inputs import ModelByName, random_tokens
from llamas import eval_calls, open_llama
from oracle import dense, read_model

CONFIG = SMALL.but(chunk_size=64, local_window=8, heavy_budget=8, sink_tokens=0)
CALLS = [random_tokens(60), [1], [2]]  # in one chunk: sparse attention is dense attention

PRODUCTS = ("auto", "upstream", "own")


@pytest.fixture(scope="module")
def weights(model_by_name: ModelByName) -> Path:
    """A model with weights that there are kernels for, on this CPU."""
    rng = np.random.default_rng(0)
    floats, x = (rng.standard_normal((n, 256), dtype=np.float32) for n in (32, 60))
    products = [
        _core.ops_product(quantize(floats, GGMLQuantizationType.Q8_0), "q8_0", x, own, 1) for own in (True, False)
    ]
    if np.array_equal(*products):
        pytest.skip("H2O has no kernels for this CPU")
    return model_by_name("qwen3-gqa4-q8_0")


def logits(path: Path, config: Case | None, **options: Any) -> NDArray[np.float32]:
    with open_llama(path, config, **options) as llm:
        return np.concatenate(eval_calls(llm, CALLS))


def test_auto_is_own_with_h2o_and_upstreams_without(weights: Path) -> None:
    """Both are used, of the same weights; they differ, by as little as rounding."""
    model = read_model(weights)
    expected = dense(model, np.concatenate(CALLS)).logits
    for config, auto in ((None, "upstream"), (CONFIG, "own")):
        found = {products: logits(weights, config, matmul_kernels=products) for products in PRODUCTS}
        np.testing.assert_array_equal(found["auto"], found[auto])
        np.testing.assert_array_equal(found[auto], logits(weights, config))
        assert not np.array_equal(found["own"], found["upstream"])
        for values in found.values():
            assert_logits_close(values, expected, CONFIG.tolerance(model, CALLS).logits)
