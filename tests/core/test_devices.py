"""Whole models elsewhere than on this CPU: every scenario gives what it gives here.

With CUDA's kernels in software or on a GPU; on a Vulkan device, in a build with Vulkan; over llama.cpp's RPC servers,
in a build with RPC.
"""

import sys
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any, NamedTuple

import pytest

from cases import SMALL
from cuda_in_software import IS_SOFTWARE, registered
from devices import has_rpc, has_vulkan, serving_rpc
from inputs import ModelByName, repetitive_tokens
from llamas import open_llama
from scenarios import N_SEQUENCES, assert_plays_alike

S = 32


class Device(NamedTuple):
    options: dict[str, Any]
    bound: float  # relative to the largest logit
    shared: float = 1.0  # of the memory sets
    has_operators: bool = True  # H2O's: else attention is composed of ggml's


@pytest.fixture(scope="module", params=[pytest.param("cuda", marks=pytest.mark.slow), "vulkan", "rpc"])
def device(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Device]:
    with ExitStack() as stack:
        if request.param == "cuda":
            if IS_SOFTWARE and sys.platform != "linux":
                pytest.skip("the emulator is for Linux")
            stack.enter_context(registered())
            # products in F16 and TF32 decide near ties otherwise
            yield Device({"n_gpu_layers": 99}, 5e-3, 0.95)
        elif request.param == "vulkan":
            if not has_vulkan():
                pytest.skip("this build has no Vulkan, or there is no device")
            # on lavapipe: 2e-6 to 4e-4, and 1.0e-3 with windows, where dense attention has 5e-4
            yield Device({"n_gpu_layers": -1}, 2e-3, has_operators=False)
        else:
            if not has_rpc():
                pytest.skip("this build has no RPC: pip install . -C cmake.define.GGML_RPC=ON")
            folder = tmp_path_factory.mktemp("rpc")  # of two servers, which hold half of the layers each
            servers = [stack.enter_context(serving_rpc(folder / name))[0] for name in ("first", "second")]
            yield Device({"rpc_servers": servers, "n_gpu_layers": None}, 1e-5)


CONFIG = SMALL.but(chunk_size=S, heavy_budget=10, sink_tokens=2, scorer="distant")
EVICT = CONFIG.but(evict=True, decode="memory")
CASES = {
    "memory": CONFIG,
    "two_phase": CONFIG.but(schedule="two_phase", scorer="sum"),
    "evict": EVICT,
    "evict, dense layer": EVICT.but(dense_layers=(1,)),
    "index": CONFIG.but(lookup_budget=16, heavy_budget=0, decode="full"),
    "cold store": EVICT.but(cold_store="memory", lookup_budget=16),
}


@pytest.mark.parametrize(
    ("model", "name", "kv_type"),
    [
        ("qwen3-gqa4-f32", "two_phase", "f32"),
        ("qwen3-gqa4-f32", "evict, dense layer", "f16"),
        ("qwen3-gqa4-f32", "index", "f16"),
        ("qwen3-gqa4-f32", "cold store", "f16"),
        ("gemma3-windows-f32", "memory", "f16"),
        ("lfm2-conv-f32", "evict", "f32"),
        ("deepseek2-mla-f32", "memory", "f32"),
        ("deepseek2-mla-f32", "evict", "f16"),
    ],
)
def test_all_scenarios_are_the_cpus(
    device: Device, model_by_name: ModelByName, model: str, name: str, kv_type: str
) -> None:
    path, case = model_by_name(model), CASES[name].but(kv_type=kv_type)
    if case.h2o.lookup_budget and not device.has_operators:
        pytest.skip("needs attention as one operator")
    sizes: dict[str, Any] = {"n_ctx": 512, "n_seq_max": N_SEQUENCES}
    with open_llama(path, case, **sizes) as here, open_llama(path, case, **sizes | device.options) as there:
        assert_plays_alike(there, here, repetitive_tokens(5 * S + 9, seed=3), device.bound, device.shared)
