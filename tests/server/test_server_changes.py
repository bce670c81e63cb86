"""`h2o-llama serve` with adapters and RoPE options: scales for all, refusals, lengths. Answers: test_scenarios.py."""

from pathlib import Path

import pytest

from adapters import random_adapter
from command_line import assert_one_line_error, h2o_set, invoke
from inputs import ModelByName, random_tokens
from servers import serving

pytestmark = pytest.mark.slow

OPTIONS = [*h2o_set(chunk_size=64), "--threads", "1", "--n-ctx", "512"]
DOCUMENT = random_tokens(300)


@pytest.fixture(scope="module")
def model(model_by_name: ModelByName) -> Path:
    """Random weights: other answers for other adapters."""
    return model_by_name("qwen3-gqa4-f32")


@pytest.fixture(scope="module")
def adapters(model: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("changes")
    return [random_adapter(model, seed=i, gain=3).write(folder / f"{i}.gguf") for i in range(2)]


def test_a_slot_knows_its_adapters(model: Path, adapters: list[Path], tmp_path: Path) -> None:
    """Their scales may change for all requests; a saved slot is refused where one of them is missing."""
    saved = ["--slot-save-path", tmp_path]
    with serving(tmp_path / "log", model, *OPTIONS, "--lora", f"{adapters[0]}:0.5", *saved) as server:
        found = []
        for scale in (0.5, 0, 0.5):
            server.post("/lora-adapters", [{"id": 0, "scale": scale}])
            answer = server.complete(DOCUMENT, return_tokens=True)
            found.append(answer["tokens"])
            assert answer["timings"]["cache_n"] < len(DOCUMENT) // 2 or found[:-1] == [found[-1], found[1]]
        assert found[0] != found[1]
        server.complete(DOCUMENT, 1, id_slot=0)
        server.post("/slots/0?action=save", {"filename": "of-one"})
    with serving(tmp_path / "log", model, *OPTIONS, "--lora", adapters[1], *saved) as server:
        status, answer = server.request("POST", "/slots/0?action=restore", {"filename": "of-one"})
        assert status == 400
        assert "LoRA adapter that this server does not have" in answer["error"]["message"]
        (tmp_path / "cut-off").write_bytes((tmp_path / "of-one").read_bytes()[:-4])  # what names the adapter
        assert server.request("POST", "/slots/0?action=restore", {"filename": "cut-off"})[0] == 400
        assert server.complete(DOCUMENT)["timings"]["cache_n"] == 0


def test_a_slot_can_hold_more_than_the_trained_length(model: Path, tmp_path: Path) -> None:
    linear = ["--rope-scaling", "linear", "--rope-scale", "2", *OPTIONS[:-1], "8500"]
    with serving(tmp_path / "log", model, *linear) as server:
        assert server.get("/slots")[0]["n_ctx"] > 8192


def test_a_name_that_llama_server_cannot_read_is_refused(model: Path, adapters: list[Path], tmp_path: Path) -> None:
    path = tmp_path / "a,b.gguf"
    path.write_bytes(adapters[0].read_bytes())
    assert_one_line_error(invoke("serve", model, "--lora", path), "colon, comma or quote")
