"""Whole models on a Vulkan device, which has none of H2O's operators but max_rows: attention is composed of ggml's.

Only in a build with Vulkan, where there is a device. `.ci/run` runs them on Mesa's lavapipe, a device in
software. Products are in float32, see conftest.py: rounded to float16, near ties would be chosen otherwise.
"""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from cases import SMALL, Case
from compare import assert_all_equal, assert_logits_close
from h2o_llama import H2OConfig, H2OError, H2OWarning, Llama, _core
from inputs import ModelByName, repetitive_tokens
from llamas import check_layers_that_choose_alike, open_llama

DEVICE = "Vulkan0"
S = 32

# Relative to the largest logit. On lavapipe: 2e-6 to 4e-4, and 1e-3 with windows, where dense attention has 5e-4.
BOUND = 1e-3


def has_device() -> bool:
    try:
        _core.ops_max_rows(np.zeros((1, 1), np.float32), "f32", DEVICE, 1)
    except ValueError:
        return False
    return True


pytestmark = pytest.mark.skipif(not has_device(), reason="this build has no Vulkan, or there is no device")

CONFIG = SMALL.but(chunk_size=S, heavy_budget=10, sink_tokens=2, scorer="distant")
EVICT = CONFIG.but(evict=True, decode="memory")
CONFIGS = {
    "memory": CONFIG,
    "two_phase": CONFIG.but(schedule="two_phase", scorer="sum"),
    "evict": EVICT,
    "evict, dense layer": EVICT.but(dense_layers=(1,)),
}


def test_max_rows(rng: np.random.Generator) -> None:
    for n in (1, 33, 1024, 4099):
        x = rng.standard_normal((2, 5, n)).astype(np.float32)
        x[0, 1, n // 2 :], x[1, 2] = -np.inf, -np.inf
        np.testing.assert_array_equal(_core.ops_max_rows(x, "f32", DEVICE, 1), x.max(axis=-1, keepdims=True))


def run(path: Path, config: Case, n_gpu_layers: int) -> tuple[NDArray[Any], list[NDArray[Any]]]:
    """Logits of a prompt with a dense tail and of generated tokens; the memory sets."""
    tokens = repetitive_tokens(5 * S + 9, seed=3)
    with open_llama(path, config, n_ctx=512, n_gpu_layers=n_gpu_layers) as llm:
        llm.eval(tokens[:-3], logits="all", dense_tail=7)
        logits = [llm.logits]
        for token in tokens[-3:]:
            llm.eval([token], decode=True)
            logits.append(llm.logits)
        return np.concatenate(logits), [llm.kv.memory_indices(layer) for layer in llm.kv.layers]


@pytest.mark.parametrize(
    ("model", "config", "kv_type"),
    [
        ("qwen3-gqa4-f32", "two_phase", "f32"),
        ("qwen3-gqa4-f32", "evict, dense layer", "f16"),
        ("gemma3-windows-f32", "memory", "f16"),
        ("lfm2-conv-f32", "evict", "f32"),
        ("deepseek2-mla-f32", "memory", "f32"),
        ("deepseek2-mla-f32", "evict", "f16"),
    ],
)
def test_logits_are_the_cpus(model_by_name: ModelByName, model: str, config: str, kv_type: str) -> None:
    path = model_by_name(model)
    (here, memory), (there, memory_there) = (run(path, CONFIGS[config].but(kv_type=kv_type), n) for n in (0, -1))
    assert_logits_close(there, here, BOUND)
    assert_all_equal(memory_there, memory)


def test_all_of_a_step_is_there(tiny_model: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """But for rows of the embedding, which llama.cpp reads on the CPU: the graph has a part there and one here."""
    for config in (CONFIG, EVICT):
        with open_llama(tiny_model, config, n_gpu_layers=-1, verbose=True):
            log = capfd.readouterr().err
        assert re.search(r"offloaded (\d+)/\1 layers", log), log
        assert re.search(rf"{DEVICE} KV buffer size", log), log
        assert re.findall(r"splits = (\d+) / (\d+)", log) == [("2", "2")], log


def test_what_needs_our_operators_is_refused(tiny_model: Path) -> None:
    """With the reason. Where an index of keys was not asked for, there is the memory set alone, and a warning."""
    said = "needs attention as one operator, which layer 0 does not have"
    for h2o in (H2OConfig(lookup_budget=8), H2OConfig(evict=True, cold_store="memory", lookup_budget=0)):
        with pytest.raises(H2OError, match=said):
            Llama(tiny_model, n_ctx=256, n_gpu_layers=-1, h2o=h2o)
    with pytest.warns(H2OWarning, match=said):
        llm = Llama(tiny_model, n_ctx=256, n_gpu_layers=-1, h2o="balanced")
    with llm:
        assert llm.h2o is not None
        assert llm.h2o.lookup_budget == 0


def test_layers_that_choose_alike(tiny_model: Path) -> None:
    check_layers_that_choose_alike(tiny_model, n_chunks=20, n_gpu_layers=-1)
