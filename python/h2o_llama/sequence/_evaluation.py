"""A prompt as calls into llama.cpp."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from h2o_llama import _core
from h2o_llama.sequence._params import ContextParams
from h2o_llama.sequence._prompt import Prompt

Progress = Callable[[int, int], object]


def split_calls(params: ContextParams, prompt: Prompt) -> list[tuple[int, int]]:
    """First and last place + 1 of each call: tokens and rows of embeddings cannot share one."""
    calls: list[tuple[int, int]] = []
    first = 0
    for run in prompt.runs():
        calls += [(first + start, first + stop) for start, stop in params.split_calls(len(run))]
        first += len(run)
    return calls


def evaluate(
    context: _core.Context,
    params: ContextParams,
    prompt: Prompt,
    calls: list[tuple[int, int]],
    logits: NDArray[np.float32],
    progress: Progress | None,
    dense_tail: int,
    decode: bool,
) -> None:
    """Append the prompt to the context's sequence, in these calls.

    `logits` [n, n_vocab] gets every token's, [1, n_vocab] the last one's. The other arguments: see `eval`.
    """
    n = len(prompt)
    for start, stop in calls:
        part = prompt[start:stop]
        report = None if progress is None else _Report(progress, start, n)
        rows = logits[start:stop] if len(logits) == n else logits[: int(stop == n)]
        tail = max(0, dense_tail - (n - stop))
        context.decode(part.ids, part.rows, rows, tail, decode, report)
        if report is not None and params.h2o is None:
            report(stop - start)


class _Report:
    """Turns the progress of one call into that of the whole prompt."""

    def __init__(self, progress: Progress, n_before: int, n_total: int) -> None:
        self._progress = progress
        self._n_before = n_before
        self._n_total = n_total

    def __call__(self, n_done: int) -> None:
        self._progress(self._n_before + n_done, self._n_total)
