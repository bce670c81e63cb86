"""The oracle's architectures and types of weights, compared with the library's dense attention and with themselves."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import models
from compare import assert_logits_close, case, relative_error
from h2o_llama.models.quantize import quantize_model
from inputs import ModelByName, random_tokens, split
from llamas import eval_calls, open_llama
from oracle import DenseOracle, OracleSinglePass, OracleTwoPhase, UnsupportedModel, read_model
from oracle.gguf_model import GGUFModel
from tolerances import tolerance

F64 = np.float64

ARCHITECTURES = ("qwen2-gqa2-f32", "gemma3-windows-f32", "lfm2-conv-f32", "deepseek2-mla-f32")


@pytest.mark.parametrize("kv_type", ["f32", "f16"])
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_dense_attention_is_the_librarys(model_by_name: ModelByName, name: str, kv_type: str) -> None:
    """A prompt in pieces, and generated tokens; several times the length of a window."""
    path = model_by_name(name)
    model = read_model(path)
    tokens = random_tokens(150, models.N_VOCAB, seed=1)
    expected = DenseOracle(model, kv_type).logits(np.array(tokens))
    bound = tolerance(model.activation_type, kv_type, n_layer=model.hparams.n_layer).logits
    with open_llama(path, None, type_k=kv_type, type_v=kv_type) as llm:
        logits = eval_calls(llm, split(tokens, [70, 1, 1, 30, 1, 47]))
    assert_logits_close(np.concatenate(logits), expected, bound)


def test_products_with_every_type_of_weights_are_the_librarys(model_by_name: ModelByName, tmp_path: Path) -> None:
    tokens = random_tokens(40, models.N_VOCAB)
    for name in ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q3_K_M", "Q4_K_M", "Q5_K_M", "Q6_K"):
        with case(name=name):
            path = tmp_path / f"{name}.gguf"
            quantize_model(model_by_name("wide-f32"), path, name, n_threads=1)
            model = GGUFModel(path)
            expected = DenseOracle(model, "f32").logits(np.array(tokens))
            with open_llama(path, None) as llm:
                (logits,) = eval_calls(llm, [tokens])
            assert_logits_close(logits, expected, tolerance(model.activation_type, "f32").logits)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_memory_changes_the_logits(model_by_name: ModelByName, name: str) -> None:
    """Otherwise a comparison with the library under H2O would prove nothing. Windows and convolutions do not change."""
    model = read_model(model_by_name(name))
    tokens = random_tokens(64, models.N_VOCAB)
    oracle = OracleSinglePass(model, S=16, L=1, H=2, kv_type="f32", dtype=F64)
    oracle.eval(tokens)
    dense = DenseOracle(model, "f32", F64).logits(np.array(tokens))
    assert relative_error(oracle.logits[:16], dense[:16]) < 1e-10
    assert relative_error(oracle.logits[16:], dense[16:]) > 0.05
    assert oracle.history[0].keys() == set(model.hparams.attention_layers)


def test_two_phases_are_refused_where_layers_cannot_run_twice(model_by_name: ModelByName) -> None:
    for name in ("gemma3-windows-f32", "lfm2-conv-f32"):
        with pytest.raises(UnsupportedModel, match="two phases"):
            OracleTwoPhase(read_model(model_by_name(name)), 16, 4, 4)
