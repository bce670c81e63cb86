"""The stand-alone `KVCache`, with scores set by hand: their bookkeeping, the choice of memory sets, gathering."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import h2o_llama
from cases import CACHE_POSITIONS, SMALL
from compare import assert_all_equal, assert_logits_close, assert_scores_close, case
from inputs import ModelByName, random_tokens, split
from llamas import eval_calls, open_llama
from models import ModelSpec, write_model
from oracle import GGUFModel, read_model
from oracle.rounding import CacheRounding
from oracle.selection import candidate_ranks, select_memory
from pairwise import SHAPES, pairwise
from tolerances import ACTIVATIONS

S, L, H = 64, 16, 16
M = L + H


def make_cache(path: Path, **kwargs: Any) -> h2o_llama.KVCache:
    arguments = {"kv_size": 8 * S, "chunk_size": S, "local_window": L, "heavy_budget": H}
    return h2o_llama.KVCache(str(path), **(arguments | kwargs))


def first_layer(cache: h2o_llama.KVCache) -> int:
    """The one that is looked at."""
    return int(cache.layers[0])


def n_head_kv(cache: h2o_llama.KVCache) -> int:
    return int(cache.memory_indices(first_layer(cache)).shape[0])


def add_chunk(cache: h2o_llama.KVCache, colsum: Any) -> None:
    """Score the next chunk, build its memory set, advance. colsum [n_head_kv or n_head, len]."""
    layer, start = first_layer(cache), cache.n_tokens
    n = colsum.shape[1]
    cache.init_chunk_scores(layer, start, colsum)
    cache.build_memory_set(layer, start + n)
    cache.next_chunk(n)


# --- memory sets

# Sizes, the lengths of chunks, and scores [head, position]; None: random ones with ties, negative and huge.
METRICS: dict[str, tuple[dict[str, int], list[int], Any]] = {
    "local window": ({}, [S] * 4, None),
    "heavy hitters": ({}, [S], lambda head, p: p % 10 * 0.1),  # with ties at the threshold
    "all ties, a partial chunk": ({}, [S, S - 1], lambda head, p: 0.5),
    "shorter than the window": ({}, [L // 2], None),
    "sinks": ({"local_window": 0, "heavy_budget": 5, "sink_tokens": 3}, [S] * 5, None),
    "sinks and window": ({"local_window": 64, "heavy_budget": 0, "sink_tokens": 1}, [S] * 5, None),
    "more than there is": ({"local_window": 1, "heavy_budget": 200, "sink_tokens": 70}, [S] * 5, None),
}


@pytest.mark.parametrize("metric", METRICS)
def test_memory_sets_are_those_of_the_oracle(metric: str, model_path: Path, rng: np.random.Generator) -> None:
    sizes, lengths, score = METRICS[metric]
    cache = make_cache(model_path, **sizes)
    n_kv = n_head_kv(cache)
    names = ("local_window", "heavy_budget", "sink_tokens")
    n_local, n_heavy, n_sinks = (({"local_window": L, "heavy_budget": H} | sizes).get(name, 0) for name in names)
    expected = np.full((n_kv, cache.memory_size), -1, dtype=np.int32)
    for n in lengths:
        start, end = cache.n_tokens, cache.n_tokens + n
        if score is None:  # ties, negative and huge ones
            colsum = rng.choice([-1.0, 0.0, 0.5, 0.5, 1.0, 1e30, 1e-30], (n_kv, n))
        else:
            colsum = np.array([[score(head, p) for p in range(start, end)] for head in range(n_kv)])
        add_chunk(cache, colsum.astype(np.float32))
        scores = cache.scores(first_layer(cache))
        for head, row in enumerate(scores):
            ranks = candidate_ranks(row, expected[head], start, end, L=n_local, A=n_sinks)
            expected[head] = select_memory(ranks, expected[head], start, end, L=n_local, H=n_heavy, A=n_sinks)
        np.testing.assert_array_equal(cache.memory_indices(first_layer(cache)), expected)
        for head, row in enumerate(expected):
            window = row[row >= max(end - n_local, 0)]
            np.testing.assert_array_equal(cache.local_window_of(first_layer(cache), head), window)
            others = row[(row >= n_sinks) & (row < end - n_local)]
            np.testing.assert_array_equal(cache.heavy_hitters(first_layer(cache), head), others)


# --- scores


@pytest.mark.parametrize("name", ["qwen3-mha-f32", "qwen3-gqa4-f32", "qwen3-gqa8-f32", "deci-mixed-f32"])
def test_scores_add_up(name: str, model_by_name: ModelByName, rng: np.random.Generator) -> None:
    """Of the query heads of a KV head, of calls that lie in one chunk, and of a memory set's positions."""
    path = model_by_name(name)
    cache, hp = make_cache(path), read_model(path).hparams
    layer, n_head, n_kv = first_layer(cache), hp.n_head[0], n_head_kv(cache)

    def reduced(colsum: Any) -> Any:
        return colsum.reshape(n_kv, -1, colsum.shape[1]).sum(axis=1)

    first, second = rng.random((n_head, 20), dtype=np.float32), rng.random((n_head, S), dtype=np.float32)
    cache.init_chunk_scores(layer, 0, first)
    cache.next_chunk(20)
    cache.init_chunk_scores(layer, 0, second)  # of the keys of both calls
    cache.build_memory_set(layer, S)
    cache.next_chunk(S - 20)
    expected = reduced(second)
    expected[:, :20] += reduced(first)
    np.testing.assert_allclose(cache.scores(layer), expected, rtol=1e-6)
    inter = rng.random((n_head, M), dtype=np.float32)
    cache.accumulate_memory_scores(layer, inter)
    memory = cache.memory_indices(layer)
    np.put_along_axis(expected, memory, np.take_along_axis(expected, memory, axis=1) + reduced(inter), axis=1)
    np.testing.assert_allclose(cache.scores(layer), expected, rtol=1e-6)


# --- K and V


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
    assert len(memory) == 1 or cache.memory_size > 3 * S or np.any(memory[0] != memory[1])
    return kv


@pairwise(
    model_path=SHAPES,
    types=[("f32", "f32"), ("f16", "f16"), ("q8_0", "q8_0"), ("q8_0", "f16"), ("f16", "f32")],
    heavy_budget=[H, 4 * S],
)
def test_gather_takes_each_heads_own_rows(
    model_path: Path, oracle_model: GGUFModel, rng: np.random.Generator, types: tuple[str, str], heavy_budget: int
) -> None:
    """Padding is 0. Q8_0 is dequantised on gathering, and its rotation undone, for heads of 64 as the demo model's."""
    cache = make_cache(model_path, type_k=types[0], type_v=types[1], heavy_budget=heavy_budget)
    kv = fill(cache, oracle_model, rng, *types)
    memory = cache.memory_indices(first_layer(cache))[..., None]
    assert (memory == -1).any() == (heavy_budget > H)
    gathered = cache.gather_k_memory(first_layer(cache)), cache.gather_v_memory(first_layer(cache))
    for type_name, rows, source in zip(types, gathered, kv, strict=True):
        assert rows.dtype == np.float32
        expected = np.where(memory >= 0, np.take_along_axis(source, np.maximum(memory, 0), axis=1), 0)
        np.testing.assert_allclose(rows, expected, rtol=0, atol=1e-5 if type_name == "q8_0" else 0)


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


# --- a model's cache


@pytest.mark.parametrize(("schedule", "evict"), [("single_pass", False), ("single_pass", True), ("two_phase", False)])
def test_every_cache_type_is_read_alike(
    schedule: str, evict: bool, one_layer_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By H2O's own operator and by ggml's. Evicted rows are moved by the host, and then as a device does it.

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
            found = []
            for is_composed in "01":
                monkeypatch.setenv("H2O_NO_FUSED_ATTENTION", is_composed)
                config = SMALL.but(heavy_budget=8, schedule=schedule, sink_tokens=0, evict=evict)
                with open_llama(one_layer_model, config, type_k=type_k, type_v=type_v) as llm:
                    logits = np.concatenate(eval_calls(llm, split(random_tokens(100), [50, 10, 40])))
                    found.append((llm.kv.keys(0), llm.kv.values(0), llm.kv.memory_indices(0), logits, llm.kv.scores(0)))
            got, want = found
            assert_all_equal(got[:3], want[:3])
            assert_logits_close(got[3], want[3], ACTIVATIONS["F32"].logits)
            assert_scores_close(got[4], want[4], ACTIVATIONS["F32"].scores)


def test_bias_does_not_take_the_precision_of_8_bits(tmp_path: Path) -> None:
    """Keys are stored less what their bias is on average. So they are where they move, and in a state.

    One layer, whose bias RoPE hardly turns: without that, errors are 0.11 to 0.13.
    """
    spec = ModelSpec("biased", "qwen2", 256, 64, (4,), (2,), rope_base=1e36, bias=20)
    write_model(spec, tmp_path / "biased.gguf")
    text = random_tokens(100)
    edited = [*text[:20], *text[50:]]
    for config in (SMALL.but(heavy_budget=0, lookup_budget=8), CACHE_POSITIONS):
        found = []
        for type in ("f32", "q8_0"):
            with open_llama(tmp_path / "biased.gguf", config.but(kv_type=type), keep_history=False) as llm:
                llm.eval(text)
                keys, logits = [llm.kv.keys(0)], llm.logits
                llm.restore(llm.snapshot())
                keys.append(llm.kv.keys(0))
                if not config.h2o.evict:
                    with llm._state.changed() as context:
                        context.arrange(20, [(50, 40, 20)], np.array(edited, np.int32))
                    llm.eval(edited[60:])
                    keys.append(llm.kv.keys(0))
                found.append((*keys, logits))
        errors = [float(np.sqrt(np.nanmean((got - want) ** 2))) for got, want in zip(*found, strict=True)]
        assert max(errors[:-1]) < 0.06, config
        assert errors[-1] < 0.3, config
