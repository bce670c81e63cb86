"""Parts of a text that come again in another one, at other places: they are not read again."""

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from h2o_llama import _core
from h2o_llama._prompt import Prompt

Pieces = list[list[int]]
"""From where, how many tokens, to where."""

LEAST_LAST = 64
"""Tokens at the end of a prompt that are always read."""


def find_pieces(known: NDArray[np.int32], ids: NDArray[np.int32], n_same: int, n_last: int, least: int) -> Pieces:
    """Pieces of at least `least` tokens of a known text after the first n_same tokens of a prompt, before its last."""
    end = len(ids) - max(n_last, LEAST_LAST)
    return _core.find_pieces(known, ids, n_same, end, least) if 0 < least <= end else []


def n_moved(pieces: Pieces) -> int:
    """Their tokens."""
    return sum(n for _, n, _ in pieces)


def between_pieces(context: _core.Context, prompt: Prompt, calls: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Calls (start, stop) without what the sequence takes over on its way; another prompt's pieces are dropped."""
    n, ids = context.n_tokens, prompt.ids
    planned = context.arranged[n : n + len(ids)]
    if len(planned) == 0 or not np.array_equal(ids[: len(planned)], planned):
        context.arrange(n, [], ids)
        return calls
    pieces = [(first - n, end - n) for first, end in context.unseen.items() if end - n <= len(ids)]
    edges = sorted({*(edge for call in calls for edge in call), *(edge for piece in pieces for edge in piece)})
    return [(a, b) for a, b in pairwise(edges) if not any(start <= a < stop for start, stop in pieces)]
