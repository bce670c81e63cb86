"""Fixtures: the table of models that the tests run on."""

from __future__ import annotations

import os
import signal
import sys
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

# Before NumPy loads: on matrices this small, BLAS threads cost ten times more than they save.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
# In a build with a GPU, layers that are not on it run on the CPU, and Vulkan and cuBLAS multiply in float32.
os.environ.setdefault("GGML_OP_OFFLOAD_MIN_BATCH", "1000000")
os.environ.setdefault("GGML_VK_DISABLE_F16", "1")
os.environ.setdefault("GGML_CUDA_CUBLAS_COMPUTE_TYPE", "f32")
os.environ.setdefault("NVIDIA_TF32_OVERRIDE", "0")

import numpy as np
import pytest

import models
from chats import write_chat_model
from cuda_in_software import IS_SOFTWARE
from h2o_llama import Library, Llama, demo_model_path
from inputs import EXTERNAL_MODEL, ModelByName, Opened
from kernels import ALL_ISAS, CUDA, on, using
from llamas import open_tiny
from oracle import SCHEDULES, GGUFModel, UnsupportedModel, read_model
from pairwise import ATTENTION, SHAPES, is_possible
from projectors import write_projector
from servers import Server, ServerOf, serving


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Fixtures that are combined may ask for a schedule that the model does not have."""
    possible, others = [], []
    for item in items:
        callspec = getattr(item, "callspec", None)
        (possible if callspec is None or is_possible(callspec.params.values()) else others).append(item)
    config.hook.pytest_deselected(items=others)
    items[:] = possible


@pytest.fixture(scope="module")
def opened() -> Iterator[Opened]:
    """A `Llama` of a module by its name, opened with open_(*arguments) when first asked for; its sequence is empty."""
    llms: dict[str, Llama] = {}
    with ExitStack() as stack:

        def get(name: str, open_: Callable[..., Llama], *arguments: Any) -> Llama:
            if name not in llms:
                llms[name] = stack.enter_context(open_(*arguments))
            llms[name].reset()
            return llms[name]

        yield get


@pytest.fixture
def llm(opened: Opened, tiny_model: Path) -> Llama:
    """One with H2O and an empty sequence."""
    return opened("tiny", open_tiny, tiny_model)


@pytest.fixture(scope="session")
def server_of(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerOf]:
    """The one server of a session with these arguments, started when first asked for; it is idle."""
    folder = tmp_path_factory.mktemp("servers")
    servers: dict[tuple[str | Path, ...], Server] = {}
    with ExitStack() as stack:

        def get(*arguments: str | Path) -> Server:
            if arguments not in servers:
                servers[arguments] = stack.enter_context(serving(folder / f"log-{len(servers)}", *arguments))
            servers[arguments].wait_until_idle()
            return servers[arguments]

        yield get


@pytest.fixture(params=ALL_ISAS)
def isa(request: pytest.FixtureRequest) -> Iterator[str]:
    """The name of the CPU's kernel that is used."""
    with using(request.param):
        yield request.param


@pytest.fixture(params=[*ALL_ISAS, pytest.param(CUDA, marks=pytest.mark.slow)])
def kernel(request: pytest.FixtureRequest) -> Iterator[str]:
    """The name of the kernel that is used, "cuda" besides the CPU's."""
    if request.param == CUDA and IS_SOFTWARE and sys.platform != "linux":
        pytest.skip("the emulator is for Linux")
    with on(request.param):
        yield request.param


@pytest.fixture(autouse=True)
def _own_library(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test reads or writes the user's library, or that of another test."""
    folder = tmp_path_factory.getbasetemp() / f"library-{uuid.uuid4().hex}"
    folder.mkdir()  # a command says where a new one is
    monkeypatch.setenv("H2O_LLAMA_LIBRARY", str(folder))


@pytest.fixture
def library(tmp_path: Path) -> Library:
    return Library(tmp_path / "library")


@pytest.fixture
def ctrl_c() -> Iterator[None]:
    """SIGINT as in a terminal, for this process and its children. Started in the background, tests would ignore it."""
    previous = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, previous)


@pytest.fixture(scope="session")
def model_by_name(tmp_path_factory: pytest.TempPathFactory) -> ModelByName:
    """Path of a model by its name in `models` or pairwise.py; made when first asked for."""
    folder = tmp_path_factory.mktemp("models")

    def path_of(name: str) -> Path:
        if name == "demo":
            return Path(demo_model_path())
        if name == "external":
            assert EXTERNAL_MODEL is not None
            return Path(EXTERNAL_MODEL)
        spec = models.FIXTURE_MODELS[name]
        path = folder / spec.file_name
        if not path.exists():
            models.write_model(spec, path)
        return path

    return path_of


@pytest.fixture(scope="session", params=SHAPES)
def model_path(request: pytest.FixtureRequest, model_by_name: ModelByName) -> Path:
    """Models of a few kinds, and LLAMACPP_TEST_MODELFILE when that is set. `pairwise("model_path")` has all."""
    return model_by_name(request.param)


@pytest.fixture(scope="session")
def tiny_model(model_by_name: ModelByName) -> Path:
    """One small model without rounding, for tests of what does not depend on the model."""
    return model_by_name("qwen3-gqa4-f32")


@pytest.fixture(scope="session")
def one_layer_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("one-layer") / models.ONE_LAYER.file_name
    models.write_model(models.ONE_LAYER, path)
    return path


@pytest.fixture(scope="session")
def chat_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_chat_model(tmp_path_factory.mktemp("chat") / "chat.gguf")


@pytest.fixture(scope="session")
def mmproj(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A projector for `chat_model`."""
    return write_projector(tmp_path_factory.mktemp("mmproj") / "mmproj.gguf", models.ONE_LAYER.n_embd)


@pytest.fixture(scope="session")
def generator() -> Path:
    """Upstream's test-llama-archs."""
    python = f"cp{sys.version_info.major}{sys.version_info.minor}"
    path = next(Path(__file__).parents[1].glob(f"build/{python}-*/bin/test-llama-archs"), None)
    if path is None:
        pytest.skip("upstream's generator of models is not built: H2O_LLAMA_BUILD_BACKEND_TESTS is off")
    return path


@pytest.fixture(scope="session")
def oracle_model(model_path: Path) -> GGUFModel:
    """The same model for the oracle. A user's model of another architecture has none."""
    try:
        return read_model(model_path)
    except UnsupportedModel as error:
        pytest.skip(f"the oracle cannot compute this model: {error}")


@pytest.fixture(scope="session", params=SCHEDULES)
def schedule(request: pytest.FixtureRequest) -> str:
    """Each schedule of H2O."""
    name: str = request.param
    return name


@pytest.fixture(params=ATTENTION)
def flash_attn(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """`flash_attn` for each way in which H2O's attention is computed, by contexts that are made from here on.

    By its own operator, or composed of ggml's operators.
    """
    monkeypatch.setenv("H2O_NO_FUSED_ATTENTION", "1" if request.param == "composed" else "0")
    return "on"


@pytest.fixture(scope="session", params=["sliding_window", "recurrent"])
def unsupported_memory_model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A complete model whose memory is not the plain KV cache."""
    path = tmp_path_factory.mktemp("unsupported") / f"{request.param}.gguf"
    {"sliding_window": models.write_sliding_window, "recurrent": models.write_recurrent}[request.param](path)
    return path


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(0)
