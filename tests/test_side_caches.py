"""Layers that H2O leaves to llama.cpp, with a sliding window or a recurrent state, and their past."""

from __future__ import annotations

import numpy as np
import pytest

from cases import SMALL, S
from compare import assert_all_equal
from h2o_llama import H2OError
from inputs import ModelByName, random_tokens, split
from llamas import arrays, open_llama, restore, state_of

with_other_layers = pytest.mark.parametrize("model", ["gemma3-windows-f32", "lfm2-conv-f32"])


@with_other_layers
def test_some_boundaries_keep_what_goes_with_them(model: str, model_by_name: ModelByName) -> None:
    """The first boundary and the latest seven, in however many calls the text was read."""
    tokens = random_tokens(40 * S)
    n_bytes = []
    with open_llama(model_by_name(model), SMALL) as llm:
        for calls in (split(tokens, [S] * 40), [tokens]):
            llm.reset()
            for call in calls:
                llm.eval(call)
                n_bytes.append(llm.kv.stats.side_bytes)
            with pytest.raises(H2OError, match=rf"nearest possible are {S} and \d+"):
                llm.rewind(20 * S)
            assert llm.reuse([*tokens[: 35 * S], 1]) == 35 * S
            assert llm.reuse([*tokens[: 20 * S], 1]) == S
            llm.eval(tokens[S : 3 * S], logits="all")
            again = llm.logits
            llm.reset()
            llm.eval(tokens[: 3 * S], logits="all")
            np.testing.assert_array_equal(again, llm.logits[S:])
    assert 0 < n_bytes[1] < n_bytes[8] == n_bytes[39] == n_bytes[40]


@with_other_layers
def test_a_damaged_state_is_refused(model: str, model_by_name: ModelByName) -> None:
    """Wherever it is damaged, the context can be used; in what the other layers hold, nothing has changed."""
    tokens = random_tokens(3 * S + 5)
    with open_llama(model_by_name(model), SMALL) as llm:
        llm.eval(tokens)
        state, before, n_side = state_of(llm), arrays(llm), llm.kv.stats.side_bytes
        for position in range(40, len(state), len(state) // 60):
            damaged = bytearray(state)
            damaged[position] ^= 0xFF
            try:
                restore(llm, bytes(damaged))
            except H2OError as error:
                if "damaged" in str(error):
                    assert_all_equal(arrays(llm), before)
                    assert llm.kv.stats.side_bytes == n_side
            restore(llm, state)
        llm.eval(random_tokens(S))
