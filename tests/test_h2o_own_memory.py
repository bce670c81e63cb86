"""`kv.set_memory_indices`: memory sets of the user's own choice."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from compare import assert_logits_close, case
from h2o_llama import H2OError
from inputs import random_tokens
from llamas import Config, eval_calls, open_llama
from oracle import GGUFModel
from pairwise import pairwise

S = 16
CONFIG = Config(S=S, L=4, H=6, A=1)


def random_memory(rng: np.random.Generator, n_head_kv: int, M: int, end: int) -> Any:
    rows = [np.sort(rng.choice(end, min(M, end), replace=False)) for _ in range(n_head_kv)]
    return np.pad(np.array(rows, np.int32), ((0, 0), (0, M - min(M, end))), constant_values=-1)


@pairwise("schedule", "flash_attn", "model_path", H=[6, 27])  # M 11 and 32: with padding after chunk 0
def test_the_next_chunk_attends_to_them(
    schedule: str, flash_attn: str, model_path: Path, oracle_model: GGUFModel, H: int
) -> None:
    """Against the oracle with the same random sets, chunk by chunk; the history records them."""
    config = Config(S=S, L=4, H=H, A=1, flash_attn=flash_attn, schedule=schedule)
    model = oracle_model
    rng = np.random.default_rng(0)
    tokens = random_tokens(4 * S, model.hparams.n_vocab)
    chosen = [
        {
            il: random_memory(rng, model.hparams.n_head_kv[il], config.M, (c + 1) * S)
            for il in model.hparams.attention_layers
        }
        for c in range(3)
    ]
    oracle = config.oracle(model, choose_memory=lambda chunk, il, proposed, ranks: chosen[chunk][il])
    oracle.eval(tokens)
    logits = []
    with open_llama(model_path, config) as llm:
        for c in range(4):
            logits += eval_calls(llm, [tokens[c * S : (c + 1) * S]])
            for il in llm.kv.layers if c < 3 else ():
                llm.kv.set_memory_indices(il, chosen[c][il])
                np.testing.assert_array_equal(llm.kv.memory_indices(il), chosen[c][il])
        for c, sets in enumerate(chosen):
            for il, memory in sets.items():
                np.testing.assert_array_equal(llm.kv.history[c][il], memory)
    assert_logits_close(np.concatenate(logits), oracle.logits, config.tolerance(model).logits)


def test_layers_that_are_not_set_keep_the_scorers_choice(tiny_model: Path) -> None:
    tokens = random_tokens(3 * S)
    with open_llama(tiny_model, CONFIG) as llm:
        llm.eval([*tokens[:S], *tokens[S : S + 2]])
        expected = llm.kv.memory_indices(1)
        llm.reset()
        llm.eval(tokens[:S])
        own = np.tile(np.arange(CONFIG.M, dtype=np.int64), (len(expected), 1))
        llm.kv.set_memory_indices(0, own)
        np.testing.assert_array_equal(llm.kv.memory_indices(1), expected)
        llm.kv.set_memory_indices(0, own[:, ::-1][:, ::-1])  # again, in another memory layout
        llm.eval(tokens[S:])
        assert llm.kv.chunk_index == 3
        np.testing.assert_array_equal(llm.kv.history[0][0], own)
        assert len(llm.kv.history) == 2


def test_a_call_that_is_undone_keeps_them(tiny_model: Path) -> None:
    with open_llama(tiny_model, CONFIG) as llm:
        llm.eval(random_tokens(S))
        own = np.tile(np.arange(CONFIG.M, dtype=np.int32), (llm.kv.memory_indices(0).shape[0], 1))
        llm.kv.set_memory_indices(0, own)
        with pytest.raises(ZeroDivisionError):
            llm.eval(random_tokens(3 * S), progress=lambda done, total: 1 // (total - done - S))
        np.testing.assert_array_equal(llm.kv.memory_indices(0), own)
        assert len(llm.kv.history) == 1


@pytest.mark.parametrize("n", [0, 1, S - 1, S + 1])
def test_not_within_a_chunk(tiny_model: Path, n: int) -> None:
    with open_llama(tiny_model, CONFIG) as llm:
        if n:
            llm.eval(random_tokens(n))
        with pytest.raises(H2OError, match="eval up to the chunk's end first"):
            llm.kv.set_memory_indices(0, llm.kv.memory_indices(0))


def change(index: Any, value: int) -> Any:
    def changed(memory: Any) -> Any:
        memory[index] = value
        return memory

    return changed


def test_bad_memory_sets_change_nothing(tiny_model: Path) -> None:
    for bad, message in [
        (change((0, 0), -1), "strictly ascending positions from 0 to 15"),  # negative
        (change((-1, 9), 16), "strictly ascending"),  # from the future
        (change((0, 3), 2), "strictly ascending"),  # twice
        (change((0, 3), 11), "strictly ascending"),  # not ascending
        (change((0, 3), -(2**31)), "strictly ascending"),  # the least integer
        (lambda m: m.astype(np.int64) + 2**40, "strictly ascending"),  # beyond 32 bits
        (lambda m: m[:, :-1], "an integer array of shape"),  # too few
        (lambda m: m[0], "an integer array of shape"),  # one dimension
        (lambda m: m.astype(np.float32), "an integer array of shape"),  # floats
        (lambda m: None, "an integer array of shape"),  # None
    ]:
        with case(bad=bad, message=message), open_llama(tiny_model, CONFIG) as llm:
            llm.eval(random_tokens(S))
            own = np.tile(np.arange(CONFIG.M, dtype=np.int32), (llm.kv.memory_indices(0).shape[0], 1))
            llm.kv.set_memory_indices(0, own)
            with pytest.raises(ValueError, match=message):
                llm.kv.set_memory_indices(0, bad(own.copy()))
            np.testing.assert_array_equal(llm.kv.memory_indices(0), own)


def test_padding_must_be_minus_one(tiny_model: Path) -> None:
    with open_llama(tiny_model, Config(S=S, L=4, H=27, A=1)) as llm:
        llm.eval(random_tokens(S))
        own = np.tile(np.arange(32, dtype=np.int32), (llm.kv.memory_indices(0).shape[0], 1))
        with pytest.raises(ValueError, match="then only -1"):
            llm.kv.set_memory_indices(0, own)
