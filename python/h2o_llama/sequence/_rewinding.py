"""Rewinding a sequence, and keeping the prefix that it shares with another text."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from h2o_llama import _core
from h2o_llama._internal import check
from h2o_llama.errors import H2OError


def rewind(context: _core.Context, n_tokens: int, keep_history: bool) -> None:
    """Keep the first n_tokens of the context's sequence. See `Llama.rewind`."""
    owner, n_now = "Llama.rewind", context.n_tokens
    n = check.integer(owner, "n_tokens", n_tokens, 0, n_now)
    below, above = context.rewind_points(n)
    if below != n:
        kv = _core.KV.of_context(context)
        is_grid = kv is not None and kv.info.rewind_step > 0
        advice = "" if keep_history or is_grid else "; with keep_history=True more boundaries between chunks are kept"
        raise H2OError(
            f"[{owner}] the sequence of {n_now} tokens cannot be rewound to {n}, as later tokens left traces: the "
            f"nearest possible are {below} and {above}{advice}"
        )
    context.rewind(n)


def shared_prefix(a: Sequence[int] | NDArray[np.int32], b: Sequence[int] | NDArray[np.int32]) -> int:
    """How many tokens two texts begin with in common, each a sequence of ints or an array.

    Examples
    --------
    >>> shared_prefix([1, 2, 3], [1, 2, 4, 5])
    2
    """
    n = min(len(a), len(b))
    differ = np.flatnonzero(np.asarray(a[:n]) != np.asarray(b[:n]))
    return int(differ[0]) if len(differ) else n


def as_generated(model: _core.Model, now: NDArray[np.int32], ids: NDArray[np.int32]) -> NDArray[np.int32]:
    """The same text as `ids`, with the tokens of `now` where their text is the same.

    A model may spell a word in other tokens than the tokenizer. They stay then, and need not be read again.
    """
    n = m = shared_prefix(now, ids)  # now[:n] and ids[:m] are the same text
    i, j, said, told = n, m, b"", b""  # the text after it in each
    while (said.startswith(told) and j < len(ids)) or (told.startswith(said) and i < len(now)):
        is_told = said.startswith(told) and j < len(ids)
        id_ = int(ids[j] if is_told else now[i])
        piece = b"" if id_ < 0 else model.detokenize([id_], False)
        if not piece:  # neither special tokens nor images are text
            break
        if is_told:
            told, j = told + piece, j + 1
        else:
            said, i = said + piece, i + 1
        if said == told:
            shared = shared_prefix(now[i:], ids[j:])
            n, m = i, j = i + shared, j + shared
            said = told = b""
    return np.concatenate([now[:n], ids[m:]])


def n_kept(context: _core.Context, ids: NDArray[np.int32]) -> int:
    """How much of the context's sequence can be kept where ids are to be evaluated."""
    now = context.tokens
    n = shared_prefix(now, ids)
    if n == len(ids) and not (n == len(now) and context.has_logits):
        n = max(n - 1, 0)  # the last token's logits are wanted
    return context.rewind_points(n)[0]


def keep_prefix(context: _core.Context, ids: NDArray[np.int32]) -> int:
    """Keep as much of the context's sequence as begins ids, and say how much. See `Llama.reuse`."""
    n = n_kept(context, ids)
    context.rewind(n)
    return n
