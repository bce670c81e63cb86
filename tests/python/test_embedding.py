"""`embed` and `create_embedding`: the hidden states before the logits, pooled as NumPy does it."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from check_architecture import generate
from compare import relative_error
from h2o_llama import Llama, Model
from h2o_llama.embedding import _hidden_states
from inputs import ModelByName, random_tokens
from oracle import read_model
from tolerances import SELF_LOGITS_F32

TEXTS = ["How a text is read.", "Another one", "x" * 700]
"""The last one is longer than one computation."""


@pytest.fixture
def model(tiny_model: Path) -> Iterator[Model]:
    with Model(tiny_model) as model:
        yield model


@pytest.mark.parametrize("name", ["qwen3-gqa4-f32", "gemma3-windows-f32", "lfm2-conv-f32"])
def test_they_are_what_logits_are_made_of(model_by_name: ModelByName, name: str) -> None:
    """And the sequence of the `Llama` does not change."""
    output = read_model(model_by_name(name)).output
    with Llama(model_by_name(name), n_ctx=1024, n_threads=1, h2o=None) as llm:
        llm.eval([1, 2, 3])
        before = llm.logits.copy()
        found = llm.embed(TEXTS, pooling_type="none")
        np.testing.assert_array_equal(llm.logits, before)
        np.testing.assert_array_equal(asyncio.run(llm.aembed(TEXTS[0], pooling_type="none")), found[0])
        for text, rows in zip(TEXTS, found, strict=True):
            llm.reset()
            llm.eval(llm.tokenize(text), logits="all")
            assert relative_error(output(rows), llm.logits) <= SELF_LOGITS_F32


def test_pooling(model: Model) -> None:
    rows = model.embed(TEXTS)  # the file says nothing: one for each token
    assert [len(found) for found in rows] == [len(text) for text in TEXTS]
    pools: dict[str, Any] = {"mean": lambda x: x.mean(axis=0), "cls": lambda x: x[0], "last": lambda x: x[-1]}
    for pooling_type, pool in pools.items():
        found = model.embed(TEXTS, pooling_type=pooling_type)  # type: ignore[arg-type]
        np.testing.assert_allclose(found, [pool(x) for x in rows], rtol=1e-5, atol=1e-6)
        assert (found.dtype, found.shape) == (np.float32, (len(TEXTS), model.n_embd))
        unit = model.embed(TEXTS[0], pooling_type=pooling_type, normalize=True)  # type: ignore[arg-type]
        np.testing.assert_allclose(unit, found[0] / np.linalg.norm(found[0]), rtol=1e-5)
    assert len(model.embed([])) == 0


def test_openai_shapes(model: Model) -> None:
    answer = model.create_embedding(TEXTS[:2], pooling_type="last")
    n_tokens = sum(map(len, TEXTS[:2]))
    assert answer["usage"] == {"prompt_tokens": n_tokens, "total_tokens": n_tokens}
    assert [item["index"] for item in answer["data"]] == [0, 1]
    assert model.embed(TEXTS[:2], pooling_type="last").tolist() == [item["embedding"] for item in answer["data"]]
    (one,) = model.create_embedding(TEXTS[1], pooling_type="last")["data"]
    assert one["embedding"] == answer["data"][1]["embedding"]


def test_longer_than_the_model_was_trained_for(tiny_model: Path) -> None:
    with Model(tiny_model, kv_overrides={"qwen3.context_length": 8}) as model:
        np.testing.assert_array_equal(model.embed(TEXTS[0]), model.embed(TEXTS[0][:8]))
        assert model.create_embedding(TEXTS[0])["usage"]["total_tokens"] == 8
        with pytest.raises(ValueError, match="a text has 19 tokens, but the model was trained for 8"):
            model.embed(TEXTS[0], truncate=False)
        with pytest.raises(ValueError, match=r"\[Model.embed\] a text has no tokens"):
            model.embed(["a", ""])


def test_models_that_read_a_text_as_a_whole(generator: Path, tmp_path: Path) -> None:
    """Without a memory of past tokens: of any length at once. One that Llama refuses."""
    (path,) = [path for path in generate(generator, tmp_path, "-a", "dream") if "moe" not in path.name][:1]
    with Model(path) as model:
        ids = random_tokens(600, min(model.n_vocab, 100))
        parts, whole = (
            _hidden_states(model._handle, [ids, ids[:9]], is_whole, n_threads=1, rope={}, h2o={})
            for is_whole in (False, True)
        )
        assert [x.shape[0] for x in parts] == [600, 9]
        assert np.isfinite(parts[0]).all()
        for x, y in zip(parts, whole, strict=True):
            np.testing.assert_array_equal(x, y)
