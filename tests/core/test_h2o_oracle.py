"""Property P5: the library agrees with the oracle of the whole model, in both schedules.

Logits of every call, memory sets but for near ties, scores, extra keys, and K and V. Against a user's model
(LLAMACPP_TEST_MODELFILE) the oracle compares 64 tokens at most.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import models
from cases import (
    BLOCKS,
    CACHE_POSITIONS,
    EVICTING,
    INDEX,
    KEPT,
    POSITION_SCORERS,
    SMALL,
    UNSCORED,
    Case,
    S,
    configurations,
)
from compare import assert_all_equal, assert_logits_close, case
from h2o_llama import H2OConfig, H2OError
from inputs import ModelByName, is_external, random_tokens, repetitive_tokens, small, split
from llamas import assert_agrees_with_oracle, eval_calls, open_llama, oracle_calls
from oracle import GGUFModel, read_model
from pairwise import in_turn, pairwise

CASES = KEPT | EVICTING | {name: case for name, case in UNSCORED.items() if "index" not in name}


@pytest.fixture
def config(request: pytest.FixtureRequest) -> Case:
    return CASES[request.param]


@in_turn(CASES)
def test_cases_agree_with_the_oracle(model_path: Path, oracle_model: GGUFModel, config: Case) -> None:
    """Prompts, and tokens generated over the ends of chunks, then a prompt again."""
    sizes = [37, *[1] * 6, 7, 1] if is_external(model_path) else [37, *[1] * 14, 7, *[1] * 10, 22]
    tokens = repetitive_tokens(sum(sizes), oracle_model.hparams.n_vocab, seed=1)
    assert_agrees_with_oracle(model_path, oracle_model, config, split(tokens, sizes))


@pairwise(
    "schedule",
    "flash_attn",
    "model_path",
    scorer=POSITION_SCORERS,
    kv_type=["f32", "f16", "bf16", "q8_0"],
    sizes=[
        {"heavy_budget": 4, "sink_tokens": 0},
        {"local_window": 0, "heavy_budget": 8, "sink_tokens": 2},
        {"local_window": 16, "heavy_budget": 0, "sink_tokens": 0},
        {"heavy_budget": 60},
        {"decode": "memory"},
    ],
    tail=[0, 5, S, 40],
    n_dense=[0, 1],
)
def test_models_agree_with_the_oracle(
    schedule: str,
    flash_attn: str,
    model_path: Path,
    oracle_model: GGUFModel,
    scorer: str,
    kv_type: str,
    sizes: dict[str, Any],
    tail: int,
    n_dense: int,
) -> None:
    """Calls that end anywhere, decode steps, tails inside a chunk and over several. The first layers are dense."""
    layers = oracle_model.hparams.attention_layers
    dense = tuple(layers[:n_dense]) if schedule == "single_pass" and len(layers) > n_dense else ()
    config = SMALL.but(schedule=schedule, scorer=scorer, kv_type=kv_type, flash_attn=flash_attn, dense_layers=dense)
    lengths = [7, 20, 1, 14, 22] if is_external(model_path) else [7, 20, 2, 33, 1, 1, 13, 48, 1]
    tokens = repetitive_tokens(sum(lengths), oracle_model.hparams.n_vocab, seed=3)
    assert_agrees_with_oracle(model_path, oracle_model, config.but(**sizes), split(tokens, lengths), tail)


@small(40)
@given(
    config=configurations(),
    sizes=st.lists(st.one_of(st.integers(2, 30), st.just(1)), min_size=1, max_size=8),
    tail=st.integers(0, 40),
    is_repetitive=st.booleans(),
    is_full=st.booleans(),
    n_batch=st.sampled_from([7, 13, 20, 1024]),
    n_ubatch=st.integers(1, 40),
    n_threads=st.integers(1, 3),
    seed=st.integers(0, 10_000),
)
def test_any_configuration_and_calls_agree_with_the_oracle(
    flash_attn: str,
    model_by_name: ModelByName,
    config: Case,
    sizes: list[int],
    tail: int,
    is_repetitive: bool,
    is_full: bool,
    n_batch: int,
    n_ubatch: int,
    n_threads: int,
    seed: int,
) -> None:
    """Property P3 with P5: in any split, however many tokens are computed at once, by however many threads.

    A call longer than n_batch takes several. A text may fill the context to the last cell.
    """
    path = model_by_name("qwen3-gqa4-f32")
    tokens = (repetitive_tokens if is_repetitive else random_tokens)(sum(sizes), seed=seed)
    tail = 0 if config.h2o.evict else tail  # which attends to the kept tokens
    calls, config = split(tokens, sizes), config.but(flash_attn=flash_attn)
    options = {"n_ctx": len(tokens) if is_full else 1024, "n_batch": n_batch, "n_ubatch": min(n_ubatch, n_batch)}
    assert_agrees_with_oracle(path, read_model(path), config, calls, tail, **options, n_threads=n_threads)


def test_large_chunks_agree_with_the_oracle(flash_attn: str, model_by_name: ModelByName) -> None:
    """The sizes of real use."""
    path = model_by_name("llama-gqa2-f32")
    config = Case(H2OConfig(lookup_budget=0, decode="memory"), kv_type="f16", flash_attn=flash_attn)
    tokens = repetitive_tokens(1600, seed=6)
    assert_agrees_with_oracle(path, read_model(path), config, [tokens[:1100], tokens[1100:]], n_ctx=2048)


LONG = [37, *[1] * 20, 7, *[1] * 36, 5, 60]
MOVED: dict[str, tuple[str, Case]] = {
    "grouped heads": ("qwen3-gqa4-f32", CACHE_POSITIONS),
    "a set that grows": (
        "qwen3-mha-f16",
        CACHE_POSITIONS.but(heavy_budget=25, scorer="distant", keep_ratio=0.3),
    ),
    "rotated K in 8 bits": ("qwen3-gqa8-f32", CACHE_POSITIONS.but(kv_type="q8_0", scorer="distant")),
    "K in 16 bits": ("qwen2-gqa2-f32", CACHE_POSITIONS.but(kv_type="f16")),
    "pairs side by side, factors": ("llama3-gqa2-f32", CACHE_POSITIONS),
    "head counts by layer": ("deci-mixed-f32", CACHE_POSITIONS.but(scorer="distant")),
    "windows": ("gemma3-windows-f32", CACHE_POSITIONS),
    "recurrent layers": ("lfm2-conv-f32", CACHE_POSITIONS),
    "a dense layer": ("qwen3-gqa4-f32", CACHE_POSITIONS.but(dense_layers=(1,))),
    "composed": ("qwen3-gqa4-f32", CACHE_POSITIONS.but(flash_attn="off", scorer="distant")),
}


@pytest.mark.parametrize("name", MOVED)
def test_positions_of_the_cache_agree_with_the_oracle(name: str, model_by_name: ModelByName) -> None:
    """Over the ends of several chunks past the trained length, in prompts and in generated text."""
    model, config = MOVED[name]
    oracle_model = read_model(model_by_name(model))
    tokens = random_tokens(sum(LONG), oracle_model.hparams.n_vocab, seed=1)
    assert_agrees_with_oracle(model_by_name(model), oracle_model, config, split(tokens, LONG))


# --- lookups by the index of keys: near ties
#
# The oracle and the library may choose differently where two scores are nearly equal: a difference of 1e-7 can be a
# step of a rounded query or key. With one layer that changes the logits of one tile. With more layers it changes all
# that follows: these tests have texts on which nothing was found to differ, or a budget that takes everything.


INDEXED: dict[str, tuple[Case, int]] = {  # and how many tokens at the end of each call are dense
    "decode full": (INDEX.but(decode="full"), 0),
    "generated": (INDEX, 5),
    "two_phase": (INDEX.but(schedule="two_phase"), 5),
    "f16 cache": (INDEX.but(scorer="distant", kv_type="f16"), 0),
    "rotated cache": (INDEX.but(kv_type="q8_0", decode="full"), 5),
    "queries alone": (INDEX.but(lookup_budget=1, tile=1, decode="full"), 0),
    "whole chunks": (INDEX.but(tile=S), 0),
    "more than a chunk": (INDEX.but(tile=S + 1), 0),
    # The first chunks have fewer positions than that, the later ones more.
    "large budget": (INDEX.but(lookup_budget=60, decode="full"), 5),
    "large memory": (INDEX.but(heavy_budget=40, lookup_budget=4), 0),
    "cold store": (INDEX.but(evict=True, cold_store="memory"), 5),
    "only a window": (INDEX.but(local_window=S, heavy_budget=0, sink_tokens=0, decode="full"), 5),
}


@pytest.mark.parametrize("name", INDEXED)
def test_one_layer_with_an_index_agrees_with_the_oracle(one_layer_model: Path, name: str) -> None:
    check_one_layer(one_layer_model, *INDEXED[name])


@pytest.mark.parametrize("head_dim", [32, 96])
def test_quantized_keys_that_the_cache_does_not_rotate_agree_with_the_oracle(head_dim: int, tmp_path: Path) -> None:
    """llama.cpp rotates heads of multiples of 64 only. The index rotates the others itself."""
    path = tmp_path / "model.gguf"
    models.write_model(replace(models.ONE_LAYER, head_dim=head_dim), path)
    check_one_layer(path, *INDEXED["rotated cache"])


@pytest.mark.parametrize(
    "sizes", [[22, 6, 2, 19, 48, 3, 40], [3] * 46 + [2], [*[4] * 34, 2, 2], [20, 4, 8, 16, 52, 40]]
)
def test_an_index_agrees_with_the_oracle_in_any_split(one_layer_model: Path, schedule: str, sizes: list[int]) -> None:
    """Tiles that a call ends within, and calls on the grid of tiles that are longer than n_batch."""
    options = {} if any(size % 2 for size in sizes) else {"n_batch": S + 6, "n_ubatch": 7}
    check_one_layer(one_layer_model, INDEX.but(schedule=schedule), 0, sizes, **options)


def check_one_layer(
    path: Path,
    config: Case,
    dense_tail: int,
    sizes: Sequence[int] = (42, 1, 27, 1, 1, 4, 3, 21, *[1] * 40),
    **options: Any,
) -> None:
    """Logits, but for a tile's rows in 100, and what every tile reads, but for one in 100."""
    model = read_model(path)
    calls = split(random_tokens(140, seed=2), sizes)
    with open_llama(path, config, **options) as llm:
        actual = np.concatenate(eval_calls(llm, calls, dense_tail))
        oracle = config.oracle(model, choose_memory=lambda chunk, il, *_: llm.kv.history[chunk][il])
        expected = np.concatenate(oracle_calls(oracle, calls, dense_tail))
        errors = np.abs(actual - expected).max(axis=1) / np.abs(expected).max()
        bound, n_allowed = config.tolerance(model, calls).logits, config.h2o.tile * len(errors) // 100
        assert np.isfinite(actual).all()
        assert np.sum(errors > bound) <= n_allowed, f"rows {np.flatnonzero(errors > bound)} differ"
        keys = [(layer, tile, head) for (layer, tile), heads in oracle.chosen.items() for head in range(len(heads))]
        n_other = sum(
            llm.kv.extra_keys(layer, head, tile).tolist() != oracle.chosen[layer, tile][head].tolist()
            for layer, tile, head in keys
        )
        assert n_other <= len(keys) // 100


EVERY_LAYER = {
    "qwen3-gqa4-f32": INDEX,
    "llama-gqa2-f32": INDEX.but(schedule="two_phase"),
    "deci-mixed-f32": INDEX,
    "qwen2-gqa2-f32": INDEX.but(dense_layers=(0,)),  # which keeps no index
}


@pytest.mark.parametrize("model", EVERY_LAYER)
def test_layers_with_an_index_agree_with_the_oracle(model_by_name: ModelByName, model: str) -> None:
    path = model_by_name(model)
    calls = split(random_tokens(90, seed=3), [42, 1, 27, 1, 1, 4, 14])
    assert_agrees_with_oracle(path, read_model(path), EVERY_LAYER[model], calls)


@pytest.mark.parametrize(("window", "B"), [(0, 8), (models.GEMMA3.window, 300)])
def test_windows_beside_an_index_agree_with_the_oracle(window: int, B: int, tmp_path: Path) -> None:
    """Windows round to F16, 3e-4 of the logits, which decides between keys in 4 bits: without them nothing differs."""
    spec = replace(models.GEMMA3, n_head=(4, 4), n_head_kv=(1, 1), window=window)
    models.write_model(spec, path := tmp_path / "model.gguf")
    calls = split(random_tokens(150), [70, 75, *[1] * 5])
    assert_agrees_with_oracle(path, read_model(path), INDEX.but(lookup_budget=B, decode="full"), calls, dense_tail=9)


# --- memory sets of the user's own choice


def random_memory(rng: np.random.Generator, n_head_kv: int, M: int, end: int) -> Any:
    rows = [np.sort(rng.choice(end, min(M, end), replace=False)) for _ in range(n_head_kv)]
    return np.pad(np.array(rows, np.int32), ((0, 0), (0, M - min(M, end))), constant_values=-1)


@pairwise("schedule", "flash_attn", "model_path", H=[6, 27])  # M 11 and 32: with padding after chunk 0
def test_memory_sets_of_ones_own_agree_with_the_oracle(
    schedule: str, flash_attn: str, model_path: Path, oracle_model: GGUFModel, H: int
) -> None:
    """Against the oracle with the same random sets, but for the last layer; the history records them."""
    config = SMALL.but(heavy_budget=H, flash_attn=flash_attn, schedule=schedule)
    model = oracle_model
    rng = np.random.default_rng(0)
    tokens = random_tokens(4 * S, model.hparams.n_vocab)
    chosen = [
        {
            il: random_memory(rng, model.hparams.n_head_kv[il], config.h2o.memory_size, (c + 1) * S)
            for il in model.hparams.attention_layers[:-1]
        }
        for c in range(3)
    ]
    logits = []
    with open_llama(model_path, config) as llm:
        for c in range(4):
            logits += eval_calls(llm, [tokens[c * S : (c + 1) * S]])
            for il in chosen[c] if c < 3 else ():
                llm.kv.set_memory_indices(il, chosen[c][il])
                np.testing.assert_array_equal(llm.kv.memory_indices(il), chosen[c][il])
        history = [{**llm.kv.history[c], **sets} for c, sets in enumerate(chosen)]
        for got, want in zip(llm.kv.history, history, strict=True):
            assert_all_equal(got.values(), want.values())
    oracle = config.oracle(model, choose_memory=lambda chunk, il, *_: history[chunk][il])
    oracle.eval(tokens)
    assert_logits_close(np.concatenate(logits), oracle.logits, config.tolerance(model).logits)


def test_sinks_that_a_set_lacks_keep_their_scores(tiny_model: Path) -> None:
    tokens = random_tokens(3 * S)
    with open_llama(tiny_model, SMALL.but(sink_tokens=2)) as llm:
        llm.eval(tokens[:S])
        before = llm.kv.scores(0)[:, :2]
        n = len(llm.kv.memory_indices(0)[0])
        llm.kv.set_memory_indices(0, np.tile(np.arange(S - n, S), (len(before), 1)))
        llm.eval(tokens[S:])
        assert (llm.kv.scores(0)[:, :2] >= before).all()
    with open_llama(tiny_model, BLOCKS.but(heavy_budget=4)) as llm:  # but for the part that each chunk takes of all
        llm.eval(tokens[:S])
        llm.kv.set_memory_indices(0, np.tile(np.arange(4, S), (len(before), 1)))
        before = llm.kv.scores(0)[:, :4]
        llm.eval(tokens[S : 2 * S])
        llm.eval([1], decode=True)
        np.testing.assert_allclose(llm.kv.scores(0)[:, :4], before * np.float32(0.7), rtol=1e-6)


def test_memory_sets_that_cannot_be_change_nothing(tiny_model: Path) -> None:
    ascending, shape, n = (
        "strictly ascending positions from 0 to 15",
        "an integer array of shape",
        SMALL.h2o.memory_size,
    )
    good = np.tile(np.arange(n), (2, 1))

    def with_(column: int, value: int) -> Any:
        return np.where(np.arange(2 * n).reshape(2, n) == n + column, value, good)

    cases: list[tuple[Case, Any, str]] = [
        *((SMALL, with_(3, value), ascending) for value in (-1, 2, -(2**31), 2**40)),
        (SMALL, with_(n - 1, 16), ascending),  # from the future
        *((SMALL, bad, shape) for bad in (good[:, :-1], good[0], good.astype(np.float32), None, [[0, 1], [2]])),
        (SMALL, good.astype(np.uint64) + 2**63, ascending),
        (SMALL.but(heavy_budget=27), np.tile(np.arange(32), (2, 1)), "then only -1"),  # more than there are positions
        (
            BLOCKS.but(heavy_budget=4, shared_heads=True),
            np.array([[*range(12)], [*range(11), 12]]),
            "all rows of indices must be equal",
        ),
        (SMALL.but(evict=True), good, "evict=True"),
    ]
    for config, memory, message in cases:
        with case(config=config, memory=memory), open_llama(tiny_model, config) as llm:
            llm.eval(random_tokens(S))
            before = llm.kv.memory_indices(0)
            with pytest.raises(ValueError, match=message):
                llm.kv.set_memory_indices(0, memory)
            np.testing.assert_array_equal(llm.kv.memory_indices(0), before)
    for n_tokens in (0, 1, S - 1, S + 1):
        with case(n_tokens=n_tokens), open_llama(tiny_model, SMALL) as llm:
            if n_tokens:
                llm.eval(random_tokens(n_tokens))
            with pytest.raises(H2OError, match="eval up to the chunk's end first"):
                llm.kv.set_memory_indices(0, llm.kv.memory_indices(0))
