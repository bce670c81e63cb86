"""Losses of a model and of an approximation to it, token by token, in llama-perplexity's terms."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from h2o_llama.eval._settings import DENSE
from h2o_llama.llama import Llama

# float64 numbers of a block of rows, 16 MiB.
_BLOCK = 2**21


@dataclass(frozen=True)
class Losses:
    """What dense attention and a setting give to each token of a text. All arrays have the same shape.

    `nats` and `nats_dense` are the negative log-probability of the token that came next, `kld` is the KL divergence of
    the setting's distribution from dense attention's, KL(dense ‖ setting), in nats, all float64; `same_top` is whether
    both find the same token most probable.
    """

    nats: NDArray[np.float64]
    nats_dense: NDArray[np.float64]
    kld: NDArray[np.float64]
    same_top: NDArray[np.bool_]

    def __getitem__(self, index: slice | tuple[slice, ...]) -> Losses:
        """A part of every array."""
        return Losses(*(getattr(self, field.name)[index] for field in fields(self)))

    def reshape(self, *shape: int) -> Losses:
        """The same tokens in another shape."""
        return Losses(*(getattr(self, field.name).reshape(shape) for field in fields(self)))

    def summary(self) -> dict[str, float | int]:
        """Means over all tokens and their standard errors, as llama-perplexity computes them.

        Tokens count as independent; differences are paired. An error of one token is 0.
        """
        added, added_se = _mean_and_error(self.nats - self.nats_dense)
        kld, kld_se = _mean_and_error(self.kld)
        same_top, same_top_se = _mean_and_error(self.same_top.astype(np.float64))
        return {
            "n_scored": self.nats.size,
            "ppl": float(np.exp(self.nats.mean())),
            "ppl_dense": float(np.exp(self.nats_dense.mean())),
            "ppl_ratio": float(np.exp(added)),
            "ppl_ratio_se": float(np.exp(added) * added_se),
            "nats_added": added,
            "nats_added_se": added_se,
            "kld_mean": kld,
            "kld_mean_se": kld_se,
            "kld_median": float(np.median(self.kld)),
            "kld_99": float(np.quantile(self.kld, 0.99)),
            "same_top": same_top,
            "same_top_se": same_top_se,
        }

    def over_windows(self) -> dict[str, float | list[float] | None]:
        """Loss over dense and KL with standard errors between windows, the first axis: tokens of one text are alike.

        The error of one window is None.
        """
        res: dict[str, float | list[float] | None] = {}
        for name, values in (("nats_added", self.nats - self.nats_dense), ("kld", self.kld)):
            means = values.mean(axis=1)
            res[name] = float(means.mean())
            res[f"{name}_se"] = _mean_and_error(means)[1] if len(means) > 1 else None
            res[f"{name}_by_window"] = [round(float(mean), 6) for mean in means]
        return res


def join(parts: Sequence[Losses]) -> Losses:
    """One after the other, along the first axis."""
    return Losses(*(np.concatenate([getattr(part, field.name) for part in parts]) for field in fields(Losses)))


def compare(
    dense: NDArray[np.float32], others: Sequence[NDArray[np.float32]], targets: NDArray[np.int32]
) -> list[Losses]:
    """Losses of each of `others` against dense attention.

    Logits are float32 [n, n_vocab], `targets` int32 [n] the tokens that came next.
    """
    n_rows = max(1, _BLOCK // dense.shape[1])
    parts: list[list[Losses]] = [[] for _ in others]
    for start in range(0, len(targets), n_rows):
        rows = slice(start, start + n_rows)
        log_p = log_softmax(dense[rows])
        p = np.exp(log_p)
        nats_dense = _picked(log_p, targets[rows])
        top = log_p.argmax(axis=-1)
        for part, logits in zip(parts, others, strict=True):
            log_q = log_softmax(logits[rows])
            nats = _picked(log_q, targets[rows])
            same_top = log_q.argmax(axis=-1) == top
            np.subtract(log_p, log_q, out=log_q)
            part.append(Losses(nats, nats_dense, np.einsum("ij,ij->i", p, log_q), same_top))
    return [join(part) for part in parts]


def log_softmax(logits: NDArray[np.float32]) -> NDArray[np.float64]:
    """Log-probabilities of each row, computed in float64: [n, n_vocab] of both."""
    x = logits.astype(np.float64)
    x -= x.max(axis=-1, keepdims=True)
    x -= np.log(np.exp(x).sum(axis=-1, keepdims=True))
    return x


def _picked(log_p: NDArray[np.float64], targets: NDArray[np.int32]) -> NDArray[np.float64]:
    nats: NDArray[np.float64] = -log_p[np.arange(len(targets)), targets]
    return nats


def _mean_and_error(values: NDArray[np.float64]) -> tuple[float, float]:
    error = values.std(ddof=1) / np.sqrt(values.size) if values.size > 1 else 0.0
    return float(values.mean()), float(error)


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
