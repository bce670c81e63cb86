"""Going back in a sequence, and keeping what it shares with another text."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from h2o_llama import _check, _core
from h2o_llama.errors import H2OError


def rewind(context: _core.Context, n_tokens: int, record: bool) -> None:
    """Keep the first n_tokens of the context's sequence. See `Llama.rewind`."""
    owner, n_now = "Llama.rewind", context.n_tokens
    n = _check.integer(owner, "n_tokens", n_tokens, 0, n_now)
    below, above = context.rewind_points(n)
    if below != n:
        advice = "" if record else "; with record=True every boundary between chunks is kept"
        raise H2OError(
            f"[{owner}] the sequence of {n_now} tokens cannot go back to {n}, as what came after has left a trace: the "
            f"nearest possible are {below} and {above}{advice}"
        )
    context.rewind(n)


def keep_prefix(context: _core.Context, ids: NDArray[np.int32]) -> int:
    """Keep as much of the context's sequence as begins ids, and say how much. See `Llama.reuse`."""
    now = context.tokens
    n = min(len(now), len(ids))
    differ = np.flatnonzero(now[:n] != ids[:n])
    n = int(differ[0]) if len(differ) else n
    if n == len(ids) and not (n == len(now) and context.has_logits):
        n = max(n - 1, 0)  # the last token's logits are wanted
    n, _ = context.rewind_points(n)
    context.rewind(n)
    return n
