"""`h2o-llama serve` with adapters and RoPE options: answers of the Python interface, and caches that know adapters."""

from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from adapters import random_adapter
from command_line import assert_one_line_error, h2o_set, invoke
from h2o_llama import H2OConfig, Llama
from inputs import ModelByName, random_tokens
from servers import Server, ServerOf, serving

pytestmark = pytest.mark.slow

S, N = 64, 16
SPECIAL = range(256, 260)  # would end an answer
DOCUMENT, OTHER = random_tokens(300), random_tokens(200, seed=1)
OPTIONS = [*h2o_set(chunk_size=S), "--threads", "1", "--n-ctx", "512"]


def answers(path: Path, h2o: bool = True, **options: Any) -> list[int]:
    """Tokens after DOCUMENT, the same without a server."""
    config = H2OConfig(chunk_size=S) if h2o else None
    with Llama(path, n_ctx=512, n_batch=S, n_threads=1, h2o=config, **options) as llm:
        return list(islice(llm.generate(DOCUMENT, temperature=0, logit_bias=dict.fromkeys(SPECIAL, -np.inf)), N))


def complete(server: Server, **options: Any) -> Any:
    """What the server says after DOCUMENT, with its tokens."""
    return server.complete(DOCUMENT, N, return_tokens=True, logit_bias=[[i, False] for i in SPECIAL], **options)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("changes")


@pytest.fixture(scope="module")
def model(model_by_name: ModelByName) -> Path:
    """Random weights: other answers for other adapters."""
    return model_by_name("qwen3-gqa4-f32")


@pytest.fixture(scope="module")
def adapters(model: Path, folder: Path) -> list[Path]:
    return [random_adapter(model, seed=i, gain=3).write(folder / f"{i}.gguf") for i in range(2)]


@pytest.fixture(scope="module", params=["on", "off"])
def served(
    request: pytest.FixtureRequest, server_of: ServerOf, folder: Path, model: Path, adapters: list[Path]
) -> tuple[Server, bool]:
    """A server of two slots with two adapters, the second with scale 0 at first; and whether H2O is on."""
    lora = ["--lora", adapters[0], "--lora", f"{adapters[1]}:0"]
    options = ["--h2o", "off", *OPTIONS[2:]] if request.param == "off" else OPTIONS
    saved = ["--parallel", "2", "--slot-save-path", folder]
    return server_of(model, *options, *lora, *saved), request.param == "on"


def set_scales(server: Server, *scales: float) -> None:
    server.post("/lora-adapters", [{"id": i, "scale": scale} for i, scale in enumerate(scales)])


def test_answers_are_those_of_the_adapters(served: tuple[Server, bool], model: Path, adapters: list[Path]) -> None:
    """Asked for by a request or for all of them. No row that other adapters have computed is used again."""
    server, h2o = served
    assert [adapter["scale"] for adapter in server.get("/lora-adapters")] == [1, 0]
    expected = {
        scales: answers(model, h2o, lora=list(zip(adapters, scales, strict=True)))
        for scales in ((1, 0), (0, 0), (0.5, 0.5), (0, 1))
    }
    assert len(set(map(tuple, expected.values()))) == 4
    for scales, answer in expected.items():
        set_scales(server, *scales)
        first, again = (complete(server, id_slot=0) for _ in range(2))
        assert first["tokens"] == again["tokens"] == answer
        assert first["timings"]["cache_n"] == 0
        assert again["timings"]["cache_n"] >= len(DOCUMENT) // S * S
    set_scales(server, 1, 0)
    for scales, answer in expected.items():
        lora = [{"id": i, "scale": scale} for i, scale in enumerate(scales)]
        assert complete(server, id_slot=1, lora=lora)["tokens"] == answer


def test_a_text_that_was_put_aside_or_saved_knows_its_adapters(
    served: tuple[Server, bool], model: Path, adapters: list[Path]
) -> None:
    """In memory, or in a file."""
    server, h2o = served
    set_scales(server, 0.5, 0.5)
    complete(server, id_slot=0)
    server.post("/slots/0?action=save", {"filename": "saved"})
    for scales in ((0.5, 0.5), (0, 1)):
        expected = answers(model, h2o, lora=list(zip(adapters, scales, strict=True)))
        for slot in range(2):
            server.complete(OTHER, N, id_slot=slot)
        set_scales(server, *scales)
        assert complete(server)["tokens"] == expected
        server.post("/slots/0?action=erase")
        server.post("/slots/0?action=restore", {"filename": "saved"})
        answer = complete(server, id_slot=0)
        assert answer["tokens"] == expected
        assert (answer["timings"]["cache_n"] > 0) == (scales == (0.5, 0.5))


def test_a_slot_of_an_adapter_that_is_not_there_is_refused(
    model: Path, adapters: list[Path], folder: Path, tmp_path: Path
) -> None:
    saved = ["--slot-save-path", folder]
    with serving(tmp_path / "log", model, *OPTIONS, "--lora", f"{adapters[0]}:0.5", *saved) as server:
        complete(server)
        server.post("/slots/0?action=save", {"filename": "of-one"})
    with serving(tmp_path / "log", model, *OPTIONS, "--lora", adapters[1], *saved) as server:
        status, answer = server.request("POST", "/slots/0?action=restore", {"filename": "of-one"})
        assert status == 400
        assert "LoRA adapter that this server does not have" in answer["error"]["message"]
        assert complete(server)["tokens"] == answers(model, lora=adapters[1])


def test_rope_options_of_a_server(model: Path, tmp_path: Path) -> None:
    """A slot can hold more than the trained length."""
    yarn = {"rope_scaling_type": "yarn", "rope_freq_scale": 0.25, "yarn_orig_ctx": 256, "yarn_beta_fast": 16}
    flags = ["--rope-scaling", "yarn", "--rope-scale", "4", "--yarn-orig-ctx", "256", "--yarn-beta-fast", "16"]
    with serving(tmp_path / "log", model, *OPTIONS, *flags) as server:
        assert complete(server)["tokens"] == answers(model, **yarn) != answers(model)
    linear = ["--rope-scaling", "linear", "--rope-scale", "2", *OPTIONS[:-1], "8500"]
    with serving(tmp_path / "log", model, *linear) as server:
        assert server.get("/slots")[0]["n_ctx"] > 8192
        expected = answers(model, rope_scaling_type="linear", rope_freq_scale=0.5)
        assert complete(server)["tokens"] == expected


def test_a_name_that_llama_server_cannot_read_is_refused(model: Path, adapters: list[Path], tmp_path: Path) -> None:
    path = tmp_path / "a,b.gguf"
    path.write_bytes(adapters[0].read_bytes())
    assert_one_line_error(invoke("serve", model, "--lora", path), "colon, comma or quote")
