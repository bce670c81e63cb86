"""Reading texts with dense attention and with settings side by side, so that their logits can be dropped at once."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from h2o_llama.eval._losses import Losses, compare, join
from h2o_llama.eval._settings import DENSE
from h2o_llama.llama import Llama

_PIECE_BYTES = 64 * 2**20  # of logits, for each context


@dataclass(frozen=True)
class Reader:
    """A context that reads. With `dense_tail` the scored tokens attend to everything kept."""

    llm: Llama
    dense_tail: bool = False


@dataclass(frozen=True)
class Reading:
    """What a reader gave: losses [windows, scored tokens], and the seconds of its and of dense attention's `eval`."""

    losses: Losses
    seconds: float
    seconds_dense: float


def piece_tokens(n_vocab: int) -> int:
    """The most tokens whose logits are held at once."""
    return max(1, _PIECE_BYTES // (4 * n_vocab))


def pieces(start: int, stop: int, chunk_size: int, most: int) -> list[tuple[int, int]]:
    """(start, stop) of the calls that read these positions: cut where chunks end, then evenly, at most `most` each."""
    if start == stop:
        return []
    cuts = [start, *range((start // chunk_size + 1) * chunk_size, stop, chunk_size), stop]
    calls: list[tuple[int, int]] = []
    for first, end in pairwise(cuts):
        n = -(-(end - first) // most)
        bounds = [first + (end - first) * i // n for i in range(n + 1)]
        calls += pairwise(bounds)
    return calls


def read_windows(
    dense: Llama,
    readers: Mapping[str, Reader],
    windows: NDArray[np.int32],
    first: int,
    chunk_size: int,
    progress: Callable[[int, int], object] | None = None,
) -> dict[str, Reading]:
    """Read every window with all contexts, piece by piece, and compare their logits with dense attention's.

    Windows are int32 [n, n_tokens]; every window is a new sequence. Compared are the logits of positions from `first`
    to n_tokens - 2, as they have a next token. `progress` is called as progress(n_done, n) in tokens of all contexts.
    """
    n_tokens = windows.shape[1]
    most = piece_tokens(dense.n_vocab)
    calls = [*pieces(0, first, chunk_size, most), *pieces(first, n_tokens, chunk_size, most)]
    everyone = {DENSE.name: Reader(dense), **readers}
    seconds = dict.fromkeys(everyone, 0.0)
    losses: list[Sequence[Losses]] = []
    n_done, n_total = 0, windows.size * len(everyone)
    for window in windows:
        for reader in everyone.values():
            reader.llm.reset()
        for start, stop in calls:
            scored = start >= first
            for name, reader in everyone.items():
                tail = stop - start if scored and reader.dense_tail else 0
                begin = time.perf_counter()
                reader.llm.eval(window[start:stop], logits="all" if scored else "last", dense_tail=tail)
                seconds[name] += time.perf_counter() - begin
                n_done += stop - start
                if progress is not None:
                    progress(n_done, n_total)
            if scored:
                targets = window[start + 1 : stop + 1]
                logits = [reader.llm.logits[: len(targets)] for reader in everyone.values()]
                losses.append(compare(logits[0], logits[1:], targets))
    return {
        name: Reading(join(parts).reshape(len(windows), -1), seconds[name], seconds[DENSE.name])
        for name, parts in zip(readers, zip(*losses, strict=True), strict=True)
    }
