"""Generated tokens: dense attention over the whole cache, by H2O's operator where it is fused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from compare import assert_logits_close
from inputs import ModelByName, limited, random_tokens, split
from llamas import Config, eval_calls, open_llama
from oracle import DenseOracle, GGUFModel
from pairwise import pairwise

S = 16
# Everything is in memory: a prompt's attention is dense too.
CONFIG = Config(S=S, L=4, H=1024)


def decode_calls(llm: Any, calls: list[list[int]]) -> Any:
    logits = []
    for call in calls:
        llm.eval(call, logits="all", decode=True)
        logits.append(np.array(llm.logits))
    return np.concatenate(logits)


@pairwise("flash_attn", "model_path", sizes=[[1] * 6, [3, 1, 5, S + 3, 1]])
def test_equals_dense_attention(flash_attn: str, model_path: Path, oracle_model: GGUFModel, sizes: list[int]) -> None:
    """One token or several, which are causal among themselves, over the ends of chunks. Scores do not change."""
    config = replace(CONFIG, flash_attn=flash_attn)
    n = limited(60, model_path)
    tokens = random_tokens(n, oracle_model.hparams.n_vocab, seed=3)
    n_prompt = n - sum(sizes)
    expected = DenseOracle(oracle_model, "f32").logits(np.array(tokens))
    bound = config.tolerance(oracle_model, [[0]]).logits
    with open_llama(model_path, config) as llm:
        eval_calls(llm, [tokens[:n_prompt]])
        scores = [llm.kv.scores(il) for il in llm.kv.layers]
        got = decode_calls(llm, split(tokens[n_prompt:], sizes))
        assert_logits_close(got, expected[n_prompt:], bound)
        for il, before in zip(llm.kv.layers, scores, strict=True):
            np.testing.assert_array_equal(llm.kv.scores(il)[:, :n_prompt], before)
            assert not llm.kv.scores(il)[:, n_prompt:].any()


def assert_graphs_are_used_again(
    monkeypatch: pytest.MonkeyPatch, model: Path, config: Config, tokens: list[int], n_prompt: int, n_built: int
) -> None:
    """The tokens after the prompt, one by one, need so many new graphs, and have the same bits as with one for each."""
    logits = []
    for disabled in ("1", "0"):
        monkeypatch.setenv("LLAMA_GRAPH_REUSE_DISABLE", disabled)
        with open_llama(model, config) as llm:
            eval_calls(llm, [tokens[:n_prompt]])
            before = llm.kv.stats.graphs_reused
            logits.append(decode_calls(llm, [[token] for token in tokens[n_prompt:]]))
            n_reused = llm.kv.stats.graphs_reused - before
            assert n_reused == (0 if disabled == "1" else len(tokens) - n_prompt - n_built)
    np.testing.assert_array_equal(logits[0], logits[1])


def test_graphs_are_used_again(model_by_name: ModelByName, monkeypatch: pytest.MonkeyPatch, flash_attn: str) -> None:
    """Over the ends of chunks, and of the width to which a step's rows are padded."""
    config = replace(CONFIG, flash_attn=flash_attn, kv_type="f16")
    # All but the first step, and the first that needs more than 256 rows.
    model = model_by_name("llama-gqa2-f32")
    assert_graphs_are_used_again(monkeypatch, model, config, random_tokens(300, seed=4), 200, n_built=2)
