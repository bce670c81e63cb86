"""Dense attention's mass, chunk by chunk: against the oracle, and what must hold for any model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import h2o_llama
from compare import assert_scores_close
from h2o_llama.inspect.attention_mass import chunk_masses
from inputs import random_tokens
from oracle import GGUFModel, layers, read_model
from oracle.attention import attend
from oracle.kv_cache import OracleKVCache
from tolerances import tolerance

S = 32


def open_model(path: Path) -> h2o_llama.Llama:
    return h2o_llama.Llama(path, n_ctx=128, n_ubatch=64, n_threads=1, h2o=None)


def oracle_masses(model: GGUFModel, tokens: Any) -> list[dict[int, Any]]:
    """The same of the oracle: the column sums of every chunk's rows of dense attention."""
    n = len(tokens)
    positions = np.arange(n, dtype=np.int32)
    cache = OracleKVCache(model.hparams, "f16")
    masses: list[dict[int, Any]] = [{} for _ in range(0, n, S)]

    def attention(il: int, x: Any) -> Any:
        cache.append(il, *layers.key_value(model, il, x, positions))
        q, outputs = layers.query(model, il, x, positions), []
        for chunk, start in enumerate(range(0, n, S)):
            rows, seen = positions[start : start + S], positions[: start + S]
            k, v = cache.read(il, slice(0, len(seen)))
            state, masses[chunk][il] = attend(q[:, rows], k, v, seen <= rows[:, None])
            outputs.append(state.o)
        return np.concatenate(outputs, axis=1)

    layers.forward(model, cache, tokens, np.float32, attention)
    return masses


@pytest.mark.parametrize("name", ["qwen3-gqa4-f32", "llama-gqa2-f32", "deci-mixed-f32", "deci-linear-f32"])
def test_masses_agree_with_the_oracle(name: str, model_by_name: Any) -> None:
    path = model_by_name(name)
    tokens = random_tokens(3 * S + 9)
    with open_model(path) as llm:
        actual = list(chunk_masses(llm, tokens, chunk_size=S, n_threads=1))
    expected = oracle_masses(read_model(path), np.array(tokens, dtype=np.int32))
    assert len(actual) == len(expected) == 4
    for got, want in zip(actual, expected, strict=True):
        assert got.keys() == want.keys()
        for il in want:
            assert_scores_close(got[il], want[il], tolerance("F32", "f16").scores)


def test_a_chunk_hands_out_one_mass_per_query_and_head_of_the_group(tiny_model: Path) -> None:
    for n_last in (7, 1):
        with open_model(tiny_model) as llm:
            masses = list(chunk_masses(llm, random_tokens(2 * S + n_last), chunk_size=S, n_threads=1))
        for n_queries, end, mass in zip((S, S, n_last), (S, 2 * S, 2 * S + n_last), masses, strict=True):
            for array in mass.values():
                assert array.shape == (2, end)
                assert array.dtype == np.float32
                np.testing.assert_allclose(array.sum(axis=1), n_queries * 4, rtol=1e-4)


def test_the_models_own_sequence_is_left_alone(tiny_model: Path) -> None:
    with open_model(tiny_model) as llm:
        llm.eval([1, 2, 3])
        logits = llm.logits
        next(chunk_masses(llm, random_tokens(2 * S), chunk_size=S, n_threads=1))
        assert llm.n_tokens == 3
        np.testing.assert_array_equal(llm.logits, logits)


def test_bad_arguments_are_named_before_anything_is_read(tiny_model: Path) -> None:
    with open_model(tiny_model) as llm:
        for tokens, chunk_size, match in (
            ([], S, "must not be empty"),
            ([1, 100_000], S, r"tokens\[1\]"),
            ([1, 2, 3], 0, "chunk_size"),
        ):
            with pytest.raises(ValueError, match=match):
                chunk_masses(llm, tokens, chunk_size=chunk_size)
