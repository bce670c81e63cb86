"""Scorers: tables computed by hand, then whole models against the oracle."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from h2o_llama.config import SCORERS
from inputs import random_tokens
from llamas import POSITION_SCORERS, Config, eval_calls, open_llama
from oracle.attention import attend
from oracle.scorers import SCORERS as ORACLE_SCORERS
from standalone import add_chunk, kept, make_cache, per_head


def test_distant_by_hand(tiny_model: Path) -> None:
    """Positions 0 to 3 before a local window of 2: divided by 4, 3, 2 and 1 queries that are at least 2 later."""
    cache = make_cache(tiny_model, chunk_size=6, local_window=2, heavy_budget=2, scorer="distant")
    add_chunk(cache, per_head(cache, [8, 5, 4.2, 1.9, 99, 99]))
    assert kept(cache) == [0, 2, 4, 5]


# --- the oracle's own


def test_oracle_counts_by_a_naive_loop(rng: np.random.Generator) -> None:
    """Weights of one chunk's queries, counted pair by pair."""
    S, L, n_head, n_head_kv_, d = 80, 7, 4, 2, 8
    queries, keys = np.arange(S, 2 * S), np.arange(60, 2 * S)
    q, k, v = (rng.standard_normal((h, n, d)) for h, n in ((n_head, S), (n_head_kv_, 100), (n_head_kv_, 100)))
    allowed = keys <= queries[:, None]
    for name, scorer in ORACLE_SCORERS.items():
        _, colsum = attend(q, k, v, allowed, scorer.counts(queries[:, None], keys[None, :], S, L))
        expected = np.zeros((n_head_kv_, len(keys)))
        for head in range(n_head):
            for i, x in enumerate(queries):
                logits = np.array([q[head, i] @ k[head // 2, j] if keys[j] <= x else -np.inf for j in range(len(keys))])
                weights = np.exp(logits - logits.max())
                for j, p in enumerate(keys):
                    is_counted = name != "distant" or x - p >= L
                    expected[head // 2, j] += is_counted * weights[j] / weights.sum()
        np.testing.assert_allclose(colsum, expected, rtol=1e-10, atol=1e-12, err_msg=name)


# --- whole models


def test_the_oracle_knows_every_scorer() -> None:
    assert set(ORACLE_SCORERS) == set(SCORERS)


@pytest.mark.parametrize("scorer", POSITION_SCORERS)
def test_layers_side_by_side_keep_what_one_thread_keeps(scorer: str, tiny_model: Path) -> None:
    """The threads that compute also build the memory sets, one layer each."""
    config = Config(S=32, L=4, H=8, scorer=scorer)
    tokens = random_tokens(300, seed=10)
    found = []
    for n_threads in (1, 3):
        with open_llama(tiny_model, config, n_threads=n_threads) as llm:
            eval_calls(llm, [tokens])
            found.append(llm.kv.history)
    for one, three in zip(*found, strict=True):
        for il, expected in one.items():
            np.testing.assert_array_equal(three[il], expected)
