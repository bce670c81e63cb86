"""A Vulkan device, which has none of H2O's operators but max_rows: attention is composed of ggml's. Whole models:
test_devices.py.

Only in a build with Vulkan, where there is a device. `.ci/run` runs them on Mesa's lavapipe, a device in
software. Products are in float32, see conftest.py: rounded to float16, near ties would be chosen otherwise.
"""

import re
from pathlib import Path

import numpy as np
import pytest

from cases import SMALL
from devices import VULKAN, has_vulkan
from h2o_llama import H2OConfig, H2OError, H2OWarning, Llama, _core
from llamas import open_llama

S = 32

pytestmark = pytest.mark.skipif(not has_vulkan(), reason="this build has no Vulkan, or there is no device")

CONFIG = SMALL.but(chunk_size=S, heavy_budget=10, sink_tokens=2, scorer="distant")
EVICT = CONFIG.but(evict=True, decode="memory")


def test_max_rows(rng: np.random.Generator) -> None:
    for n in (1, 33, 1024, 4099):
        x = rng.standard_normal((2, 5, n)).astype(np.float32)
        x[0, 1, n // 2 :], x[1, 2] = -np.inf, -np.inf
        np.testing.assert_array_equal(_core.ops_max_rows(x, "f32", VULKAN, 1), x.max(axis=-1, keepdims=True))


def test_all_of_a_step_is_there(tiny_model: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """But for rows of the embedding, which llama.cpp reads on the CPU: the graph has a part there and one here."""
    for config in (CONFIG, EVICT):
        with open_llama(tiny_model, config, n_gpu_layers=-1, verbose=True):
            log = capfd.readouterr().err
        assert re.search(r"offloaded (\d+)/\1 layers", log), log
        assert re.search(rf"{VULKAN} KV buffer size", log), log
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
