"""What was undone leaves no trace, whatever H2O keeps: from there on all bits are those of a fresh sequence."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from compare import assert_all_equal
from h2o_llama import H2OError
from inputs import repetitive_tokens
from llamas import Config, open_llama, view
from pairwise import pairwise
from test_h2o_decode import decode_calls
from test_h2o_sequence import remove
from test_threads_cancel import Stop, stop_at

S = 16
CONFIG = Config(S=S, L=4, H=6, A=1)
MEMORY = replace(CONFIG, decode="memory")
LOOKUP, INDEX = replace(MEMORY, B=6, T=4), replace(MEMORY, B=8, retrieval="index")
FEATURES = {
    "sum": CONFIG,
    "distant": replace(CONFIG, scorer="distant"),
    "two_phase": replace(CONFIG, schedule="two_phase"),
    "lookup": replace(LOOKUP, decode="full"),
    "lookup, two_phase": replace(LOOKUP, schedule="two_phase", scorer="distant"),
    "decode memory": MEMORY,
    "decode memory, distant, lookup": replace(LOOKUP, scorer="distant"),
    "many lookups": replace(LOOKUP, B=200, T=1),
    "dense layer": replace(LOOKUP, dense_layers=(0,)),
    "long chunks": replace(LOOKUP, S=40, scorer="distant"),
    "composed": replace(LOOKUP, flash_attn="off"),
    "composed, dense layer": replace(LOOKUP, flash_attn="off", dense_layers=(0,)),
    "index": INDEX,
    "index, two_phase": replace(INDEX, schedule="two_phase"),
    "index, cold store": replace(INDEX, evict=True, cold_store="memory"),
    "evict": replace(MEMORY, evict=True, kv_type="f16"),
}


@pairwise(name=FEATURES, limit=[2, 18, 34, 40], dense_tail=[0, 25])
def test_a_cancelled_call(tiny_model: Path, name: str, limit: int, dense_tail: int) -> None:
    """Within a chunk, after chunks were closed, in a tail. Neither can what was read be found in the text."""
    config, text = FEATURES[name], repetitive_tokens(150, seed=7)
    first, generated, cancelled = text[:46], text[46:60], text[60:100]
    with open_llama(tiny_model, config) as llm, open_llama(tiny_model, config) as fresh:
        for x in (llm, fresh):
            x.eval(first)
            decode_calls(x, [[token] for token in generated])
        before = view(llm)
        for _ in range(2):
            with pytest.raises(Stop):
                llm.eval(cancelled, dense_tail=dense_tail, progress=stop_at(limit))
            assert_all_equal(view(llm), before)
            with pytest.raises(H2OError, match="no logits"):
                _ = llm.logits
        for more in (cancelled, text[100:107], text[:46]):
            for x in (llm, fresh):
                x.eval(more, logits="all", dense_tail=dense_tail)
            np.testing.assert_array_equal(llm.logits, fresh.logits)
            assert_all_equal(view(llm), view(fresh))


@pytest.mark.parametrize(("n_read", "n_kept", "is_generated"), [(50, 48, False), (70, 64, False), (49, 49, True)])
@pytest.mark.parametrize("name", [name for name in FEATURES if name not in ("evict", "long chunks")])
def test_tokens_that_are_taken_back(tiny_model: Path, name: str, n_read: int, n_kept: int, is_generated: bool) -> None:
    """A prompt's to where a chunk begins, also over the end of another; generated ones to the prompt's end."""
    config, tokens, others = FEATURES[name], repetitive_tokens(110, seed=5), repetitive_tokens(40, seed=6)
    with open_llama(tiny_model, config) as llm, open_llama(tiny_model, config) as fresh:
        llm.eval(tokens[:n_read])
        if is_generated:
            decode_calls(llm, [others[:3], others[3:4], others[4:9]])
        else:
            llm.eval(others)
        assert remove(llm, n_kept)
        fresh.eval(tokens[:n_kept])
        calls: list[Any] = [tokens[n_kept : n_kept + 3], *([token] for token in tokens[n_kept + 3 : n_kept + 20])]
        np.testing.assert_array_equal(decode_calls(llm, calls), decode_calls(fresh, calls))
        for x in (llm, fresh):
            x.eval(tokens[90:])
        np.testing.assert_array_equal(llm.logits, fresh.logits)
        assert_all_equal(view(llm), view(fresh))
