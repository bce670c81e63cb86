"""`Llama` and `KVCache` as a user meets them. What the numbers must be is for the test_h2o_* files."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import models
from compare import case
from h2o_llama import H2OConfig, H2OError, H2OWarning, Llama, Model, UnsupportedModelError
from llamas import open_tiny

# --- the package


def test_a_model_that_h2o_cannot_work_with_is_dense(unsupported_memory_model: Path) -> None:
    """With one warning, if nobody asked for H2O."""
    with pytest.warns(H2OWarning, match=r"(?s)H2O.*: attention is dense. Pass h2o=None") as warned:
        llm = Llama(unsupported_memory_model, n_ctx=64, n_threads=1)
    with llm:
        assert len(warned) == 1
        assert warned[0].filename == __file__
        assert llm.h2o is None
        assert llm.model._matmul_kernels == "upstream"  # also the layout of the weights
        llm.eval([1, 2, 3])
    with pytest.raises(UnsupportedModelError, match="H2O does not work with this model"):
        Llama(unsupported_memory_model, n_ctx=64, n_threads=1, h2o=H2OConfig(local_window=8, heavy_budget=8))


def test_what_a_path_says_is_no_reason(tiny_model: Path, tmp_path: Path) -> None:
    for name in ("out of memory", "failed to allocate", "[h2o] lookup by the index of keys needs"):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "model.gguf").symlink_to(tiny_model)
        message = f"does not read 'qwen3.wrong' from .*{re.escape(name)}"
        with case(name=name), pytest.raises(H2OError, match=message) as caught:
            Llama(folder / "model.gguf", n_ctx=64, n_threads=1, kv_overrides={"qwen3.wrong": 1})
        assert type(caught.value) is H2OError


# --- the model


def test_n_ctx_is_what_was_asked_for(tiny_model: Path) -> None:
    """llama.cpp rounds up to 256; the limit is the user's number, and a chunk may be larger. 0: as it was trained."""
    with open_tiny(tiny_model, n_ctx=0) as llm:
        assert llm.n_ctx == models.N_CTX_TRAIN
    with open_tiny(tiny_model, n_ctx=20, h2o=H2OConfig(local_window=64, heavy_budget=0, chunk_size=64)) as llm:
        llm.eval([1] * 20)
        assert llm.kv.chunk_size == 64
    with open_tiny(tiny_model, n_ctx=20) as llm:
        assert llm.n_ctx == 20
        llm.eval([1] * 20)
        with pytest.raises(ValueError, match="do not fit into n_ctx=20"):
            llm.eval([1])
        assert llm.n_tokens == 20


# --- a model


def test_metadata_is_replaced(tiny_model: Path) -> None:
    """One value of each kind: it is shown, and it counts."""
    overrides: dict[str, Any] = {
        "qwen3.context_length": 77,
        "general.name": "another",
        "tokenizer.ggml.add_bos_token": True,
    }
    overrides["qwen3.rope.freq_base"] = 500.0
    with Model(tiny_model) as model, Model(tiny_model, kv_overrides=overrides) as other:
        assert other.n_ctx_train == 77 != model.n_ctx_train
        assert other.metadata == model.metadata | dict(
            zip(overrides, ["77", "another", "true", "500.000000"], strict=True)
        )
        assert other.tokenize("a") == [other.token_bos, *model.tokenize("a", add_special=False)]
        logits = []
        for each in (model, other):
            with open_tiny(each, h2o=None) as llm:  # type: ignore[arg-type]
                llm.eval([1, 2, 3, 4, 5])
                logits.append(llm.logits)
        assert np.abs(logits[0] - logits[1]).max() > 1e-3


def test_shared_weights_are_loaded_already(tiny_model: Path) -> None:
    options: dict[str, Any] = {"use_mmap": False, "use_mlock": True, "kv_overrides": {}, "lora": "a.gguf"}
    options |= {"main_gpu": 0, "tensor_split": [1], "rpc_servers": "a:1"}
    with Model(tiny_model) as model:
        for name, value in options.items():
            with pytest.raises(ValueError, match=rf"^\[Llama\] {name} must be left out with shared"):
                Llama(model, n_ctx=64, **{name: value})


def test_a_model_and_what_shares_it_close_in_any_order(tiny_model: Path) -> None:
    with Model(tiny_model) as model:
        open_tiny(model).close()
        llm = open_tiny(model, h2o=None, chat_template="chatml")
        assert (llm.chat_template, model.chat_template) == ("chatml", None)
    with open_tiny(llm) as other, llm:
        assert len(list(llm.generate(llm.tokenize("abc"), temperature=0, top_k=1))) > 0
        llm.close()
        assert len(list(other.generate([97], temperature=0))) > 0
    with pytest.raises(ValueError, match=r"^\[Llama\] this model is closed$"):
        llm.model.tokenize("a")


# --- silence


def _run(code: str) -> tuple[str, str]:
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    return process.stdout, process.stderr


def test_verbose_is_the_only_noise(tiny_model: Path) -> None:
    """verbose=False prints nothing in a whole life, the end of the interpreter with an open model included."""
    code = f"""
import h2o_llama
h2o = h2o_llama.H2OConfig(local_window=4, heavy_budget=4, chunk_size=16)
llm = h2o_llama.Llama({str(tiny_model)!r}, n_ctx=64, h2o=h2o, verbose=VERBOSE)
llm.eval([1] * 40)
llm("a", max_tokens=3)
"""
    assert _run(code.replace("VERBOSE", "False")) == ("", "")
    stdout, stderr = _run(code.replace("VERBOSE", "True"))
    assert stdout == ""
    assert "llama_model_loader" in stderr
    assert "llama_context" in stderr


@pytest.mark.parametrize("why", ["flash_attn", "H2O_NO_FUSED_ATTENTION"])
def test_an_index_that_cannot_be(tiny_model: Path, monkeypatch: pytest.MonkeyPatch, why: str) -> None:
    """Where it was not asked for, there is a memory set alone, with its size and a warning."""
    if why != "flash_attn":
        monkeypatch.setenv(why, "1")
    said, options = "index of keys needs attention as one operator", {"n_ctx": 64, "n_threads": 1}
    options |= {"flash_attn": "off" if why == "flash_attn" else "auto"}
    with pytest.warns(H2OWarning, match=said):
        llm = Llama(tiny_model, **options, h2o=H2OConfig(local_window=9))
    with llm:
        assert llm.h2o == H2OConfig(local_window=9, lookup_budget=0)
        assert llm.h2o.heavy_budget == 448
    with pytest.raises(UnsupportedModelError, match=said):
        Llama(tiny_model, **options, h2o=H2OConfig(lookup_budget=9))
