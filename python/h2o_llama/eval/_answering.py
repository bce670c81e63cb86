"""Greedy answers."""

from __future__ import annotations

from itertools import islice

from h2o_llama import Llama


def answer(llm: Llama, tokens: list[int], n_generate: int, dense_tail: int) -> bytes:
    """Append a question to the sequence and say the most probable n_generate tokens, fewer if the model ends its text.

    The last `dense_tail` tokens of the question attend to everything kept; without H2O every token does.
    """
    llm.eval(tokens, dense_tail=dense_tail)
    return llm.detokenize(list(islice(llm.generate([], temperature=0), n_generate)))
