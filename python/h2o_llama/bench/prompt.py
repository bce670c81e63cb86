"""The tokens that are read: what they are matters to lookups, which find n-grams again."""

from __future__ import annotations

import numpy as np

from h2o_llama.bench.case import Tokens
from h2o_llama.errors import H2OError
from h2o_llama.eval.text import default_text
from h2o_llama.llama import Llama
from h2o_llama.model import Model


def prompt_tokens(model: Model | Llama, text: bytes | None, n_tokens: int) -> Tokens:
    """The first n_tokens of a text, int32 [n_tokens]. A short prompt is the beginning of a longer one.

    Without a text: source of this Python's standard library, or, if the model has no tokenizer, ids drawn by Zipf's
    law, the same every time.

    Raises ValueError if the text has fewer tokens; H2OError if there is a text, and the model has no tokenizer.
    """
    if text is None:
        try:
            found = model.tokenize(default_text())
        except H2OError:
            return _zipf(model.n_vocab, n_tokens)
    else:
        found = model.tokenize(text)
    if len(found) < n_tokens:
        raise ValueError(
            f"[bench] the text has {len(found):,} tokens, but {n_tokens:,} are needed: give a longer text or smaller "
            "lengths"
        )
    return np.array(found[:n_tokens], dtype=np.int32)


def _zipf(n_vocab: int, n_tokens: int) -> Tokens:
    weights = 1 / np.arange(1, n_vocab + 1)
    return np.random.default_rng(0).choice(n_vocab, n_tokens, p=weights / weights.sum()).astype(np.int32)
