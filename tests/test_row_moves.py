"""With eviction, a device whose memory the host cannot read moves the rows itself. Here the CPU in its place."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import h2o_llama
from cases import SMALL, Case
from compare import assert_all_equal
from inputs import ModelByName, random_tokens, split
from llamas import eval_calls, open_llama, view
from pairwise import pairwise

S = 16
# Attention is composed of ggml's operators in both ways.
CONFIG = SMALL.but(
    heavy_budget=8, sink_tokens=4, decode="memory", evict=True, flash_attn="off", block_tokens=4, tile=16
)


@contextmanager
def both_ways(path: Path, config: Case, **kwargs: Any) -> Iterator[list[h2o_llama.Llama]]:
    """Rows are moved by the host, and by a device."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("H2O_NO_FUSED_ATTENTION", "0")
        by_host = open_llama(path, config, **kwargs)
        patch.setenv("H2O_NO_FUSED_ATTENTION", "1")
        by_device = open_llama(path, config, **kwargs)
    with by_host, by_device:
        yield [by_host, by_device]


@pairwise(
    # Heads of 32 and 64: in Q8_0 and Q4_0 a head of 32 is not a whole number of words.
    model=("qwen3-gqa4-f32", "qwen3-gqa8-f32", "llama-gqa2-q8_0", "deci-mixed-f32"),
    type_k=("f32", "f16", "bf16", "q8_0", "q4_0"),
    type_v=("f32", "f16", "bf16"),
    scorer=("distant", "sum", "block_ema"),
    dense_layers=((), (1,)),
)
def test_the_device_moves_rows_as_the_host_does(
    model_by_name: ModelByName, model: str, type_k: str, type_v: str, scorer: str, dense_layers: tuple[int, ...]
) -> None:
    """Bit for bit, in prompts and generated text. In any order of calls: test_h2o_past.py."""
    config = CONFIG.but(scorer=scorer, dense_layers=dense_layers)
    calls = split(random_tokens(8 * S), [S + 5, *[1] * S, 3 * S, 2 * S + 3, S - 8])
    found = []
    with both_ways(model_by_name(model), config, type_k=type_k, type_v=type_v) as llms:
        for llm in llms:
            found.append([x for call in calls for x in (*eval_calls(llm, [call]), *view(llm))])
    assert_all_equal(*found)


def check_layers_that_choose_alike(path: Path, n_chunks: int, **kwargs: Any) -> None:
    """K and V of the first layer do not depend on attention: they are the same without eviction."""
    config = CONFIG.but(
        chunk_size=8, local_window=1, heavy_budget=1, sink_tokens=0, shared_heads=True, scorer="distant"
    )
    tokens = random_tokens(n_chunks * config.h2o.chunk_size)
    with (
        open_llama(path, config, **kwargs) as llm,
        open_llama(path, config.but(evict=False), **kwargs) as whole,
    ):
        for sequence in (llm, whole):
            sequence.eval(tokens)
        il = llm.kv.layers[0]
        memory = llm.kv.memory_indices(il)[..., None]
        moved, expected = (
            [np.take_along_axis(x, memory, axis=1) for x in (sequence.kv.keys(il), sequence.kv.values(il))]
            for sequence in (llm, whole)
        )
        assert_all_equal(moved, expected)


def test_layers_that_choose_alike(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("H2O_NO_FUSED_ATTENTION", "1")
    check_layers_that_choose_alike(tiny_model, n_chunks=100)


@pytest.mark.parametrize("kv_type", ["f16", "bf16", "q8_0", "q5_1", "q4_0"])
def test_v_of_any_type(one_layer_model: Path, kv_type: str) -> None:
    """Its K and V do not depend on attention, which here may be H2O's operator or not."""
    config = CONFIG.but(flash_attn="on", kv_type=kv_type)
    with both_ways(one_layer_model, config) as llms:
        for llm in llms:
            llm.eval(random_tokens(5 * S + 3))
        kv_of = [[llm.kv.memory_indices(0), llm.kv.keys(0), llm.kv.values(0)] for llm in llms]
        assert_all_equal(*kv_of)
