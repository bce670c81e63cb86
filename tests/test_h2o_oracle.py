"""Property P5: the library agrees with the oracle of the whole model, in both schedules.

Logits of every call, memory sets but for near ties, scores, lookups, and K and V. Against a user's model
(LLAMACPP_TEST_MODELFILE) the oracle compares 64 tokens at most. The index of keys: test_h2o_key_index.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import models
from cases import CACHE_POSITIONS, EVICTING, KEPT, LOOKUP, POSITION_SCORERS, SMALL, UNSCORED, Case, S, configurations
from compare import assert_same_memory, case
from h2o_llama import H2OConfig
from inputs import ModelByName, is_external, random_tokens, repetitive_tokens, small, split
from llamas import assert_agrees_with_oracle, eval_calls, open_llama
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
    oracle = assert_agrees_with_oracle(model_path, oracle_model, config, split(tokens, sizes))
    assert is_external(model_path) or not config.h2o.lookup_budget or len(oracle.log) > 10


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
        {"lookup_budget": 6},
        {"lookup_budget": 6, "decode": "memory"},
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


@small(60)
@given(
    config=configurations(),
    sizes=st.lists(st.one_of(st.integers(2, 30), st.just(1)), min_size=2, max_size=8),
    tail=st.integers(0, 40),
    is_repetitive=st.booleans(),
    seed=st.integers(0, 10_000),
)
def test_any_configuration_and_calls_agree_with_the_oracle(
    flash_attn: str,
    model_by_name: ModelByName,
    config: Case,
    sizes: list[int],
    tail: int,
    is_repetitive: bool,
    seed: int,
) -> None:
    path = model_by_name("qwen3-gqa4-f32")
    tokens = (repetitive_tokens if is_repetitive else random_tokens)(sum(sizes), seed=seed)
    tail = 0 if config.h2o.evict else tail  # which attends to what is kept
    assert_agrees_with_oracle(path, read_model(path), config.but(flash_attn=flash_attn), split(tokens, sizes), tail)


@pytest.mark.parametrize(
    ("schedule", "flash_attn", "config"),
    [
        ("single_pass", "fused", Case(H2OConfig(retrieval="ngrams"), kv_type="f16")),
        ("two_phase", "fused", SMALL.but(chunk_size=1024, local_window=256, heavy_budget=256, kv_type="f16")),
        (
            "single_pass",
            "composed",
            LOOKUP.but(chunk_size=512, local_window=128, heavy_budget=64, lookup_budget=128, tile=64, kv_type="f16"),
        ),
    ],
    indirect=["schedule", "flash_attn"],
    ids=["defaults", "two_phase", "composed"],
)
def test_large_chunks_agree_with_the_oracle(
    schedule: str, flash_attn: str, model_by_name: ModelByName, config: Case
) -> None:
    """The sizes of real use."""
    path = model_by_name("llama-gqa2-f32")
    config = config.but(flash_attn=flash_attn, schedule=schedule)
    tokens = repetitive_tokens(2500, seed=6)
    oracle = assert_agrees_with_oracle(path, read_model(path), config, [tokens[:1100], tokens[1100:]], n_ctx=4096)
    assert len(oracle.log) > 1000 or not config.h2o.lookup_budget


# --- at the edges


@pytest.mark.parametrize(
    "sizes",
    [
        # chunk, local window, heavy hitters, sinks: M from 1 to more than the whole prompt
        *[(S, 1, 0, 0), (S, 0, 1, 0), (S, 0, 0, 1), (S, S, S, 0), (S, S, 0, S), (S, 0, 0, 40), (S, 3, 1000, 0)],
        *[(1, 1, 0, 0), (1, 0, 3, 1), (2, 1, 1, 0), (2, 2, 3, 1), (5, 0, 9, 0)],
    ],
    ids=str,
)
def test_extreme_sizes_agree_with_the_oracle(schedule: str, tiny_model: Path, sizes: tuple[int, ...]) -> None:
    names = ("chunk_size", "local_window", "heavy_budget", "sink_tokens")
    config = SMALL.but(schedule=schedule, **dict(zip(names, sizes, strict=True)))
    calls = split(random_tokens(100, seed=6), [60, 1, 1, 38])
    assert_agrees_with_oracle(tiny_model, read_model(tiny_model), config, calls)


@pytest.mark.parametrize(
    "config",
    [
        SMALL.but(tile=1, lookup_budget=9),
        SMALL.but(tile=S, lookup_budget=1),
        SMALL.but(tile=7, lookup_budget=16, scorer="distant"),
        SMALL.but(lookup_budget=10_000),
        SMALL.but(lookup_budget=6, local_window=S, heavy_budget=0, sink_tokens=0),
        SMALL.but(lookup_budget=6, local_window=0, heavy_budget=1, sink_tokens=40),
        SMALL.but(lookup_budget=6, kv_type="f16", flash_attn="off"),  # upstream's cache has V the other way round
    ],
    ids=str,
)
def test_extreme_lookups_agree_with_the_oracle(tiny_model: Path, config: Case) -> None:
    """A tile of one query or of a whole chunk, one that is cut where a chunk ends, all there are, ..."""
    calls = split(repetitive_tokens(120, seed=5), [37, 1, 60, 22])
    oracle = assert_agrees_with_oracle(tiny_model, read_model(tiny_model), config, calls)
    assert len(oracle.log) > 5


def test_every_length_agrees_with_the_oracle(schedule: str, tiny_model: Path) -> None:
    """N = 1 is a decode step on an empty cache; N ≤ S has no memory set. Contexts are full to the last cell."""
    config = SMALL.but(schedule=schedule)
    lengths = [*range(1, 2 * S + 3, 3), S - 1, S, S + 1, 2 * S, 2 * S + 1, 10 * S]
    for n, n_ctx in [*((n, 1024) for n in lengths), *((n, n) for n in (16, 17, 33, 100, 257))]:
        with case(n=n, n_ctx=n_ctx):
            calls = [random_tokens(n, seed=n)]
            assert_agrees_with_oracle(tiny_model, read_model(tiny_model), config, calls, n_ctx=n_ctx)


@pairwise(
    "schedule",
    "flash_attn",
    heads=[(16, 4, 4), (40, 6, 2), (66, 3, 3), (80, 5, 1), (128, 4, 2), (256, 3, 1), (32, 16, 1)],
)
def test_heads_of_any_size_agree_with_the_oracle(
    schedule: str, flash_attn: str, tmp_path: Path, heads: tuple[int, int, int]
) -> None:
    """Sizes that are no multiple of a SIMD register or tile, and groups that are none either."""
    head_dim, n_head, n_head_kv = heads
    spec = models.ModelSpec("heads", "llama", 64, head_dim, (n_head,) * 2, (n_head_kv,) * 2)
    path = tmp_path / spec.file_name
    models.write_model(spec, path)
    config = SMALL.but(schedule=schedule, flash_attn=flash_attn)
    assert_agrees_with_oracle(path, read_model(path), config, split(random_tokens(90, seed=11), [50, 7, 33]))


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


def test_library_and_oracle_choose_the_same_memory_without_rounding(
    schedule: str, flash_attn: str, tiny_model: Path
) -> None:
    """`assert_agrees_with_oracle` forgives near ties; with nothing rounded there should be none here."""
    config = SMALL.but(chunk_size=32, heavy_budget=12, sink_tokens=0, flash_attn=flash_attn, schedule=schedule)
    tokens = random_tokens(200, seed=9)
    oracle = config.oracle(read_model(tiny_model), dtype=np.float64)
    oracle.eval(tokens)
    with open_llama(tiny_model, config) as llm:
        eval_calls(llm, [tokens])
        for got, want in zip(llm.kv.history, oracle.history, strict=True):
            for il in llm.kv.layers:
                assert_same_memory(np.asarray(got[il]), want[il], oracle.scores(il), margin=0.0)
