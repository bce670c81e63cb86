"""The cache that memory sets are gathered from: shapes, types, layouts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from compare import assert_all_equal, assert_logits_close, assert_scores_close, case
from inputs import ModelByName, random_tokens, split
from llamas import Config, eval_calls, open_llama
from oracle import GGUFModel, read_model
from oracle.kv_rounding import CacheRounding, round_to
from pairwise import SHAPES, pairwise
from standalone import M, S, add_chunk, first_layer, make_cache, n_head_kv, per_head
from tolerances import ACTIVATIONS

# --- the stand-alone cache


def test_shapes_follow_the_model(model_path: Path, oracle_model: GGUFModel) -> None:
    """Scores [n_head_kv, n_tokens], indices [n_head_kv, M], per layer."""
    cache = make_cache(model_path)
    hp = oracle_model.hparams
    assert list(cache.layers) == hp.attention_layers
    assert cache.memory_size == M
    assert cache.chunk_size == S
    for il in cache.layers:
        assert cache.memory_indices(il).shape == (hp.n_head_kv[il], M)
        assert cache.memory_indices(il).dtype == np.int32
        assert cache.scores(il).shape == (hp.n_head_kv[il], 0)
    cache.next_chunk(S)
    assert cache.scores(first_layer(cache)).shape == (n_head_kv(cache), S)
    assert cache.n_tokens == S
    assert cache.chunk_index == 1
    cache.build_memory_set(first_layer(cache), S)
    assert cache.memory_initialized
    cache.reset()
    assert cache.n_tokens == 0
    assert not cache.memory_initialized


def fill(cache: Any, oracle_model: GGUFModel, rng: np.random.Generator, type_k: str, type_v: str) -> list[Any]:
    """K and V in three chunks of the cache, whose memory sets keep other positions for every head.

    The values are such that the cache's types hold them exactly, so that no rounding can flip.
    """
    hp = oracle_model.hparams
    kv = [
        CacheRounding(type_name, size, keys=keys)(
            rng.standard_normal((n_head_kv(cache), 3 * S, size), dtype=np.float32)
        )
        for type_name, size, keys in ((type_k, hp.head_dim, True), (type_v, hp.value_dim, False))
    ]
    for c in range(3):
        cache.set_kv(first_layer(cache), c * S, *(x[:, c * S : (c + 1) * S] for x in kv))
        add_chunk(cache, rng.random((n_head_kv(cache), S), dtype=np.float32))
    memory = cache.memory_indices(first_layer(cache))
    assert len(memory) == 1 or np.any(memory[0] != memory[1])
    return kv


@pairwise(
    model_path=SHAPES,
    types=[("f32", "f32"), ("f16", "f16"), ("q8_0", "q8_0"), ("q8_0", "f16"), ("f16", "f32")],
)
def test_gather_takes_each_heads_own_rows(
    model_path: Path, oracle_model: GGUFModel, rng: np.random.Generator, types: tuple[str, str]
) -> None:
    """A Q8_0 cache is dequantised on gathering (and its rotation undone, for heads of 64, as the demo model's)."""
    type_k, type_v = types
    cache = make_cache(model_path, type_k=type_k, type_v=type_v)
    kv = fill(cache, oracle_model, rng, type_k, type_v)
    memory = cache.memory_indices(first_layer(cache))[..., None]
    for type_name, gathered, source in zip(
        (type_k, type_v),
        (cache.gather_k_memory(first_layer(cache)), cache.gather_v_memory(first_layer(cache))),
        kv,
        strict=True,
    ):
        assert gathered.dtype == np.float32
        rounding = 1e-5 if type_name == "q8_0" else 0
        np.testing.assert_allclose(gathered, np.take_along_axis(source, memory, axis=1), rtol=0, atol=rounding)


def test_gathered_padding_is_zero(tiny_model: Path, rng: np.random.Generator) -> None:
    cache = make_cache(tiny_model, chunk_size=8, local_window=4, heavy_budget=12)
    n_kv, head_dim = n_head_kv(cache), read_model(tiny_model).hparams.head_dim
    k, v = rng.standard_normal((2, n_kv, 8, head_dim), dtype=np.float32)
    cache.set_kv(first_layer(cache), 0, k, v)
    add_chunk(cache, per_head(cache, np.ones(8)))
    for gathered, source in (
        (cache.gather_k_memory(first_layer(cache)), k),
        (cache.gather_v_memory(first_layer(cache)), v),
    ):
        assert gathered.shape == (n_kv, 16, head_dim)
        np.testing.assert_array_equal(gathered[:, :8], round_to(source, "f16"))
        assert not gathered[:, 8:].any()


def test_every_f16_number_is_read_exactly(tiny_model: Path, isa: str) -> None:
    """By each of the kernels that make them float32; subnormal numbers too."""
    hp = read_model(tiny_model).hparams
    every = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    finite = every[np.isfinite(every)].astype(np.float32)
    row = hp.n_head_kv[0] * hp.head_dim
    n = -(-len(finite) // row)
    k = np.resize(finite, (n, hp.n_head_kv[0], hp.head_dim)).transpose(1, 0, 2)
    cache = make_cache(tiny_model, kv_size=n)
    cache.set_kv(first_layer(cache), 0, k, k)
    cache.next_chunk(n)
    np.testing.assert_array_equal(cache.keys(first_layer(cache)), k)
    np.testing.assert_array_equal(cache.values(first_layer(cache)), k)


def test_layers_have_their_own_cache_and_scores(tiny_model: Path, rng: np.random.Generator) -> None:
    cache = make_cache(tiny_model)
    hp = read_model(tiny_model).hparams
    values = rng.standard_normal((hp.n_layer, 2, hp.n_head_kv[0], S, hp.head_dim), dtype=np.float32)
    scores = rng.random((hp.n_layer, hp.n_head_kv[0], S), dtype=np.float32)
    for il in cache.layers:
        cache.set_kv(il, 0, *values[il])
        cache.init_chunk_scores(il, 0, scores[il])
        cache.build_memory_set(il, S)
    cache.next_chunk(S)
    for il in cache.layers:
        np.testing.assert_array_equal(cache.scores(il), scores[il])
        memory = cache.memory_indices(il)[..., None]
        expected = np.take_along_axis(round_to(values[il][0], "f16"), memory, axis=1)
        np.testing.assert_array_equal(cache.gather_k_memory(il), expected)


# --- a model's cache


def test_every_cache_type_is_read_alike(schedule: str, one_layer_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By H2O's own operator and by ggml's.

    One layer: what the cache rounds does not depend on attention, so that no rounding can flip.
    """
    for type_k, type_v in [
        *((t, t) for t in ("f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl")),
        ("f32", "q4_0"),
        ("q8_0", "f16"),
        ("f16", "bf16"),
        ("iq4_nl", "f32"),
    ]:
        with case(type_k=type_k, type_v=type_v):
            found = {}
            for way in ("fused", "composed"):
                monkeypatch.setenv("H2O_NO_FUSED_ATTENTION", "1" if way == "composed" else "0")
                config = Config(S=16, L=4, H=8, flash_attn="on", schedule=schedule)
                with open_llama(one_layer_model, config, type_k=type_k, type_v=type_v) as llm:
                    logits = np.concatenate(eval_calls(llm, split(random_tokens(100), [50, 10, 40])))
                    found[way] = (llm.kv.keys(0), llm.kv.values(0), llm.kv.memory_indices(0), logits, llm.kv.scores(0))
            for way in found:
                assert_all_equal(found[way][:3], found["fused"][:3])
                assert_logits_close(found[way][3], found["fused"][3], ACTIVATIONS["F32"].logits)
                assert_scores_close(found[way][4], found["fused"][4], ACTIVATIONS["F32"].scores)


def test_scores_and_indices_are_small_beside_the_cache(model_by_name: ModelByName) -> None:
    """Less than 5 % of the KV cache, even with heads of 64 in F16: 4 bytes per position beside 256."""
    config = Config(S=64, L=16, H=16, kv_type="f16", flash_attn="auto")
    with open_llama(model_by_name("qwen3-gqa8-f16"), config) as llm:
        eval_calls(llm, [random_tokens(200)])
        stats = llm.kv.stats
        assert stats.kv_bytes >= 2 * 2 * 64 * 2 * 1024
        assert 0 < stats.score_bytes + stats.memory_bytes < 0.05 * stats.kv_bytes
