"""What one does with a text, played alike wherever a model computes."""

from typing import Any

import numpy as np
import pytest

from h2o_llama import H2OConfig, Llama
from spies import Stop, stop_at

N_SEQUENCES = 2
"""The sequences that a context needs for it."""


def play(llm: Llama, tokens: list[int]) -> tuple[dict[str, Any], list[Any]]:
    """Logits by scenario, which begins where the one before ends; the memory sets at the end."""
    assert isinstance(llm.h2o, H2OConfig)
    n = len(tokens) - 3
    llm.eval(tokens[:n], logits="all", dense_tail=7)
    found = {"ask": llm.logits}
    snapshot = llm.snapshot()
    for token in tokens[n:]:
        llm.eval([token], decode=True)
        found[f"answer, {llm.n_tokens}"] = llm.logits
    with pytest.raises(Stop):
        llm.eval(tokens, progress=stop_at(n // 2))
    llm.eval(tokens[:9])
    found["go on after a cancelled call"] = llm.logits
    second = [*tokens[: n - 30], *tokens[:50]]
    llm.eval(second[llm.reuse(second) :])
    found["ask a second question"] = llm.logits
    llm.restore(snapshot)
    with llm.fork() as fork:
        for name, sequence in (("go on in a fork", fork), ("go on with what was saved", llm)):
            sequence.eval(tokens[5:40])
            found[name] = sequence.logits
    edited = [*tokens[:10], *tokens[20:n]]
    llm.eval(edited[llm.reuse(edited) :])
    found["edit the beginning"] = llm.logits
    return found, [llm.kv.memory_indices(layer) for layer in llm.kv.layers]


def assert_plays_alike(there: Llama, here: Llama, tokens: list[int], bound: float, shared: float = 1.0) -> None:
    """Logits within a part of the largest one, and at least this part of the memory sets."""
    found, sets = play(there, tokens)
    expected, sets_here = play(here, tokens)
    for name, want in expected.items():
        error = np.abs(found[name] - want).max() / np.abs(want).max()
        assert error <= bound, f"{name}: {error:.1e}"
    n_shared = [np.isin(a, b).mean() for x, y in zip(sets, sets_here, strict=True) for a, b in zip(x, y, strict=True)]
    assert np.mean(n_shared) >= shared
