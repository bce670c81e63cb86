"""Attention within a chunk: causal, at absolute positions, and in `two_phase`'s first phase to nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from compare import assert_scores_close
from inputs import limited, random_tokens
from llamas import Config, eval_calls, open_llama
from oracle import GGUFModel
from pairwise import pairwise

S = 16


@pytest.fixture(scope="module")
def config(schedule: str) -> Config:
    return Config(S=S, L=4, H=4, schedule=schedule)


def cache_of(path: Path, calls: list[list[int]], config: Config) -> dict[int, tuple[Any, Any]]:
    """K and V of all layers after the calls."""
    with open_llama(path, config) as llm:
        eval_calls(llm, calls)
        return {il: (np.array(llm.kv.keys(il)), np.array(llm.kv.values(il))) for il in llm.kv.layers}


def assert_same_cache(a: dict[int, tuple[Any, Any]], b: dict[int, tuple[Any, Any]], positions: slice) -> None:
    for il in a:
        for x, y in zip(a[il], b[il], strict=True):
            np.testing.assert_array_equal(x[:, positions], y[:, positions])


@pytest.mark.parametrize("schedule", ["two_phase"])
def test_chunks_do_not_see_each_other_in_phase_1(model_path: Path, schedule: str) -> None:
    """K and V of every layer come from phase 1, so those of a chunk cannot depend on the other chunks' tokens."""
    config = Config(S=S, L=4, H=4, schedule=schedule)
    tokens = random_tokens(3 * S, seed=1)
    others = random_tokens(3 * S, seed=2)
    mixed = others[:S] + tokens[S : 2 * S] + others[2 * S :]
    a, b = cache_of(model_path, [tokens], config), cache_of(model_path, [mixed], config)
    assert_same_cache(a, b, slice(S, 2 * S))
    last = max(a)
    assert not np.array_equal(a[last][0][:, :S], b[last][0][:, :S])


def test_attention_is_causal_within_the_chunk(config: Config, model_path: Path) -> None:
    tokens = random_tokens(2 * S, seed=1)
    changed = [*tokens[:-5], *random_tokens(5, seed=2)]
    a, b = cache_of(model_path, [tokens], config), cache_of(model_path, [changed], config)
    assert_same_cache(a, b, slice(0, 2 * S - 5))


def test_every_earlier_token_of_the_chunk_is_seen(config: Config, tiny_model: Path) -> None:
    """Changing the chunk's first token changes the last layer's K of all the others."""
    tokens = random_tokens(2 * S, seed=1)
    changed = [*tokens[:S], (tokens[S] + 1) % 256, *tokens[S + 1 :]]
    a, b = cache_of(tiny_model, [tokens], config), cache_of(tiny_model, [changed], config)
    last = max(a)
    differs = np.any(a[last][0] != b[last][0], axis=(0, 2))
    assert not differs[:S].any()
    assert differs[S:].all()


def test_positions_are_absolute(config: Config, tiny_model: Path) -> None:
    """The same tokens in another chunk: same V in layer 0, but K rotated further."""
    tokens = random_tokens(S, seed=1)
    keys, values = cache_of(tiny_model, [tokens * 2], config)[0]
    np.testing.assert_allclose(values[:, :S], values[:, S:], rtol=1e-6, atol=1e-6)
    assert np.abs(keys[:, :S] - keys[:, S:]).max() > 0.1
    norms = np.linalg.norm(keys, axis=-1)
    np.testing.assert_allclose(norms[:, :S], norms[:, S:], rtol=1e-5)


@pairwise("schedule", "model_path")
def test_scores_of_one_chunk_are_the_intra_column_sums(
    schedule: str, model_path: Path, oracle_model: GGUFModel
) -> None:
    n = limited(100, model_path)
    config = Config(S=128, L=4, H=4, schedule=schedule)
    tokens = random_tokens(n, oracle_model.hparams.n_vocab, seed=4)
    oracle = config.oracle(oracle_model)
    oracle.eval(tokens)
    with open_llama(model_path, config) as llm:
        eval_calls(llm, [tokens])
        for il in llm.kv.layers:
            scores = llm.kv.scores(il)
            assert_scores_close(scores, oracle.scores(il), config.tolerance(oracle_model).scores)
            group = oracle_model.hparams.n_head[il] // oracle_model.hparams.n_head_kv[il]
            # Each softmax row sums to 1.
            np.testing.assert_allclose(scores.sum(axis=1), group * n, rtol=1e-4)
            # The first token is all that the first query sees, the last key is seen by one query per head.
            assert np.all(scores[:, 0] >= group * 0.999)
            assert np.all(scores[:, -1] <= group)


def test_rows_next_to_masked_keys_are_finite(schedule: str, flash_attn: str, tiny_model: Path) -> None:
    """Chunk sizes that are no multiple of any SIMD width, and a last chunk of one row."""
    for size in (3, 7, 17, 33):
        with open_llama(tiny_model, Config(S=size, L=1, H=1, flash_attn=flash_attn, schedule=schedule)) as llm:
            (logits,) = eval_calls(llm, [random_tokens(3 * size + 1)])
            assert np.all(np.isfinite(logits))
            for il in llm.kv.layers:
                assert np.all(np.isfinite(llm.kv.scores(il)))
                assert np.all(llm.kv.scores(il) >= 0)
