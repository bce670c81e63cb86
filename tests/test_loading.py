"""How a model's file is loaded: memory, threads, metadata in the place of the file's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from command_line import invoke, succeeded
from h2o_llama import Llama, Model
from h2o_llama._cli import prompt, run
from spies import record_calls

BASE = "qwen3.rope.freq_base"
LENGTH = "qwen3.context_length"
NAME = "general.name"
BOS = "tokenizer.ggml.add_bos_token"


def logits(model: Model | Path, **options: Any) -> Any:
    with Llama(model, n_ctx=64, n_threads=1, h2o=None, **options) as llm:
        llm.eval([1, 2, 3, 4, 5])
        return llm.logits.copy()


def test_metadata_is_replaced(tiny_model: Path) -> None:
    """One value of each kind: it is shown, and it counts."""
    overrides = {LENGTH: 77, NAME: "another", BOS: True, BASE: 500.0}
    with Model(tiny_model) as model, Model(tiny_model, kv_overrides=overrides) as other:
        assert other.n_ctx_train == 77 != model.n_ctx_train
        assert [other.metadata[key] for key in overrides] == ["77", "another", "true", "500.000000"]
        assert {k: v for k, v in other.metadata.items() if k not in overrides} == {
            k: v for k, v in model.metadata.items() if k not in overrides
        }
        assert other.tokenize("a") == [other.token_bos, *model.tokenize("a", add_special=False)]
        assert np.abs(logits(other) - logits(model)).max() > 1e-3
        np.testing.assert_array_equal(logits(other), logits(tiny_model, kv_overrides={BASE: 500.0}))


@pytest.mark.parametrize(("n_threads_batch", "expected"), [(None, (3, 3)), (2, (3, 2))])
def test_threads_of_prompts(tiny_model: Path, n_threads_batch: int | None, expected: tuple[int, int]) -> None:
    with Llama(tiny_model, n_ctx=64, n_threads=3, n_threads_batch=n_threads_batch) as llm:
        assert llm._state.context.n_threads == expected


@pytest.mark.parametrize(
    ("options", "mode"),
    [
        ({}, "mmap"),
        ({"use_mmap": False}, "none"),
        ({"use_mlock": True}, "mmap+mlock"),
        ({"use_mmap": False, "use_mlock": True}, "mlock"),
    ],
)
def test_how_the_file_is_read(
    tiny_model: Path, capfd: pytest.CaptureFixture[str], options: dict[str, bool], mode: str
) -> None:
    with Model(tiny_model, verbose=True, **options) as model:
        assert f"(load_mode = {mode})" in capfd.readouterr().err
        np.testing.assert_array_equal(logits(model), logits(tiny_model))


@pytest.mark.parametrize(
    "options", [{"use_mmap": False}, {"use_mlock": True}, {"kv_overrides": {}}, {"main_gpu": 0}, {"tensor_split": [1]}]
)
def test_shared_weights_are_loaded_already(tiny_model: Path, options: dict[str, Any]) -> None:
    name = next(iter(options))
    with Model(tiny_model) as model, pytest.raises(ValueError, match=rf"\[Llama\] {name} must be left out with shared"):
        Llama(model, n_ctx=64, **options)


def test_the_command_line_passes_it_on(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    models, llamas = record_calls(monkeypatch, prompt, "Model"), record_calls(monkeypatch, run, "Llama")
    options = ["-p", "a", "-n", "1", "-t", "1", "--threads-batch", "2", "--mlock", "--no-mmap"]
    succeeded(invoke("run", tiny_model, *options))
    assert [(call["use_mmap"], call["use_mlock"]) for call in models] == [(False, True)]
    assert [(call["n_threads"], call["n_threads_batch"]) for call in llamas] == [(1, 2)]
