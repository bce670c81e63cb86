"""How a model's file is loaded: memory, threads, metadata in the place of the file's."""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from compare import assert_refused
from h2o_llama import Llama, Model

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


def test_shared_weights_are_loaded_already(tiny_model: Path) -> None:
    options: dict[str, Any] = {"use_mmap": False, "use_mlock": True, "kv_overrides": {}, "lora": "a.gguf"}
    options |= {"main_gpu": 0, "tensor_split": [1], "rpc_servers": "a:1"}
    with Model(tiny_model) as model:
        assert_refused(
            (
                (partial(Llama, model, n_ctx=64, **{name: value}), f"{name} must be left out with shared")
                for name, value in options.items()
            ),
            "Llama",
        )
