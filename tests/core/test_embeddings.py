"""Rows of embeddings in the place of tokens. What a token's row gives: test_h2o_past.py."""

from pathlib import Path

import numpy as np
import pytest

from cases import SMALL
from llamas import open_llama, rows_of

N_CTX = 512


def test_what_is_shared_with_a_text_of_rows(tiny_model: Path) -> None:
    with open_llama(tiny_model, None, n_ctx=N_CTX) as llm:
        llm.eval([1, 2, 3])
        llm.eval(embeddings=rows_of(tiny_model, [4, 5, 6]))
        ids = llm.tokens
        assert llm.reuse(ids) == 6
        other = ids.copy()
        other[4] += 1
        assert llm.reuse(other) == 4
        assert llm.reuse(np.array([1, 2, 3, 4], dtype=np.int32)) == 3  # a token is not its row
        np.testing.assert_array_equal(llm.embed("abc", n_threads=1), llm.embed("abc"))


@pytest.mark.parametrize("h2o", [True, False])
def test_bad_embeddings(tiny_model: Path, h2o: bool) -> None:
    with open_llama(tiny_model, SMALL if h2o else None, n_ctx=N_CTX) as llm:
        n_embd = llm.n_embd
        good = np.zeros((3, n_embd), np.float32)
        bad = good.copy()
        bad[1, 2] = np.nan
        for arguments, message in (
            ({"embeddings": good[:, 1:]}, rf"\[n, {n_embd}\], got shape \[3, {n_embd - 1}\]"),
            ({"embeddings": good[0]}, "got shape"),
            ({"embeddings": "rows"}, "an array of numbers"),
            ({"embeddings": bad}, "finite"),
            ({"embeddings": good[:0]}, "must not be empty"),
            ({"embeddings": np.zeros((N_CTX + 1, n_embd), np.float32)}, "do not fit"),
            ({"embeddings": good, "decode": True}, "are for a prompt"),
            ({"embeddings": good, "tokens": [1]}, "got both"),
            ({}, "tokens must be a sequence of token ids"),
        ):
            with pytest.raises(ValueError, match=message):
                llm.eval(**arguments)
        assert llm.n_tokens == 0
        llm.eval(embeddings=good)
        assert llm.n_tokens == 3
        snapshot = llm.snapshot()
        snapshot.tokens[1] = -1  # an unknown token
        with pytest.raises(ValueError, match="token id from 0"):
            llm.restore(snapshot)
