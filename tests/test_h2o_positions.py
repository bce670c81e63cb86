"""positions="cache": no key counts as further away than what the model was trained for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import models
import test_h2o_evict as evict
from compare import assert_logits_close, relative_error
from h2o_llama import H2OConfig, Llama, Model, UnsupportedModelError
from inputs import ModelByName, random_tokens
from llamas import Config, eval_calls, open_llama
from oracle import layers, read_model
from oracle.rope import rotated
from tolerances import SELF_LOGITS_F32

S, TRAINED = 16, 50
REACH = TRAINED - S  # of a chunk: keys that are further away count as that far
CONFIG = replace(evict.CONFIG, positions="cache", n_ctx_train=TRAINED)
LONG = [37, *[1] * 20, 7, *[1] * 36, 5, 60]


def test_within_the_trained_length_nothing_changes(tiny_model: Path) -> None:
    """Bit for bit; the first chunk that ends beyond it is the first that differs."""
    with open_llama(tiny_model, CONFIG) as llm, open_llama(tiny_model, replace(CONFIG, positions="text")) as text:
        got, want = (eval_calls(x, [random_tokens(TRAINED)])[0] for x in (llm, text))
    n_same = TRAINED // S * S
    np.testing.assert_array_equal(got[:n_same], want[:n_same])
    assert relative_error(got[n_same:], want[n_same:]) > 1e-3


def test_is_dense_attention_to_what_is_kept(one_layer_model: Path) -> None:
    """As llama.cpp computes a text of the window and the chunk, and nothing else.

    Where K and V do not depend on what attention computes, so in a model of one layer.
    """
    config = replace(CONFIG, A=0, L=12, H=0)
    tokens = random_tokens(40 * S)
    with open_llama(one_layer_model, config, n_ctx=0, n_batch=256) as llm, open_llama(one_layer_model, None) as dense:
        (logits,) = eval_calls(llm, [tokens])
        for start in (4 * S, 39 * S):
            dense.reset()
            dense.eval(tokens[start - 12 : start + S], logits="all")
            assert_logits_close(logits[start : start + S], dense.logits[-S:], SELF_LOGITS_F32)


@pytest.mark.parametrize(("kv_type", "bound"), [("f16", 1.2e-3), ("q8_0", 1.2e-2)])
def test_errors_do_not_add_up(one_layer_model: Path, kv_type: str, bound: float) -> None:
    """Keys that have moved a hundred times are as exact as two roundings, when written and when moved, leave them."""
    model = read_model(one_layer_model)
    tokens = random_tokens(120 * S + 3)
    with open_llama(one_layer_model, replace(CONFIG, A=0, kv_type=kv_type), n_ctx=0, n_batch=256) as llm:
        llm.eval(tokens)
        memory, keys = llm.kv.memory_indices(0), llm.kv.keys(0)
    assert memory.min() < 20 * S
    x = model.tok_embd.rows(np.array(tokens), np.float64)
    unrotated, _ = layers.key_value(model, 0, x, np.zeros(len(tokens), np.int32))
    for head, positions in enumerate(memory):
        places = np.maximum(positions - (120 * S - REACH), 0).astype(np.int32)
        expected = rotated(
            unrotated[head, positions, None], places, model.hparams.rope[0], neox=model.hparams.rope_neox
        )
        assert relative_error(keys[head, positions], expected[:, 0]) < bound


@pytest.mark.parametrize(
    "scaling",
    [
        {"type": "linear", "factor": 4.0},
        {"type": "yarn", "factor": 4.0, "original_context_length": 16},
        {"type": "yarn", "factor": 4.0, "original_context_length": 16, "attn_factor": 1.3},  # multiplies keys, once
    ],
)
def test_with_scaled_positions(one_layer_model: Path, scaling: dict[str, Any]) -> None:
    """Keys that have moved are those of a text in which they are where they have moved to."""
    tokens = random_tokens(10 * S)
    overrides = {f"qwen3.rope.scaling.{name}": value for name, value in scaling.items()}
    options: dict[str, Any] = {"n_ctx": 256, "n_batch": 256, "n_threads": 1, "type_k": "f32"}
    with Model(one_layer_model, kv_overrides=overrides | {"qwen3.context_length": TRAINED}) as model:
        with Llama(model, h2o=CONFIG.h2o, **options) as llm:
            llm.eval(tokens)
            memory, keys = llm.kv.memory_indices(0), llm.kv.keys(0)
        with Llama(model, h2o=replace(CONFIG, evict=False, positions="text").h2o, **options) as alone:
            for head, position in ((head, int(p)) for head, kept in enumerate(memory) for p in kept):
                place = max(position - (9 * S - REACH), 0)
                alone.reset()
                alone.eval([tokens[position]] * (place + 1))
                assert relative_error(keys[head, position], alone.kv.keys(0)[head, place]) < SELF_LOGITS_F32


@pytest.mark.parametrize(
    "test",
    [
        evict.test_a_state_without_rows_takes_back_what_is_in_the_open_chunk,
        evict.test_rows_for_a_state_without_rows_are_taken_when_the_chunk_closes,
    ],
)
@pytest.mark.parametrize("config", [CONFIG, replace(CONFIG, dense_layers=(1,))], ids=str)
def test_partial_states(test: Callable[[Path, Config], None], config: Config, tiny_model: Path) -> None:
    """As with positions of the text."""
    test(tiny_model, config)


def test_models_that_cannot_have_it_are_refused(model_by_name: ModelByName) -> None:
    plain, latents = model_by_name("qwen3-gqa4-f32"), model_by_name("deepseek2-mla-f32")
    asked = H2OConfig(chunk_size=S, evict=True, research={"positions": "cache"})
    trained = asked.memory_size + S - 1
    options: dict[str, Any] = {"h2o": asked, "n_threads": 1, "n_batch": 64, "n_ctx": 64}
    with pytest.raises(
        UnsupportedModelError, match=r"in layer 0 of this model it rotates a part.* Use positions text"
    ) as caught:
        Llama(latents, **options)
    assert caught.value.option == "positions"
    with pytest.raises(UnsupportedModelError, match=f"at most the {trained} tokens which this model"):
        Llama(plain, kv_overrides={"qwen3.context_length": trained}, **options)


def test_it_is_the_default_where_it_can_be(model_by_name: ModelByName) -> None:
    options: dict[str, Any] = {"h2o": H2OConfig(chunk_size=S, evict=True), "n_threads": 1, "n_batch": 64, "n_ctx": 64}
    for model, want in (("qwen3-gqa4-f32", "cache"), ("deepseek2-mla-f32", "text")):
        with Llama(model_by_name(model), **options) as llm:
            assert llm.h2o is not None
            assert llm.h2o.positions == want


def test_a_text_never_ends(tiny_model: Path) -> None:
    """Prompts, generated tokens and drafts, far beyond the trained length: as long as asked for, without a warning."""
    with open_llama(tiny_model, CONFIG, n_ctx=0, n_batch=256) as llm:
        n_bytes = llm.kv.stats.kv_bytes
        llm.eval([token % 20 for token in random_tokens(20 * TRAINED)])
        plain = list(islice(llm.generate([], temperature=0, logit_bias={models.EOS: -100}), 5 * TRAINED))
        assert len(plain) == 5 * TRAINED
        assert llm.n_tokens == 25 * TRAINED
        assert llm.kv.stats.kv_bytes == n_bytes
        llm.reset()
        llm.eval([token % 20 for token in random_tokens(20 * TRAINED)])
        drafted = llm.generate([], temperature=0, logit_bias={models.EOS: -100}, draft=15)
        assert list(islice(drafted, 5 * TRAINED)) == plain
        assert llm.kv.stats.accepted_tokens > 0
