"""Losses of a model and of an approximation to it, token by token, in llama-perplexity's terms."""

import time
from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from h2o_llama.llama import Llama

# float64 numbers of a block of rows, 16 MiB.
_BLOCK = 2**21


Losses = NDArray[np.void]
"""What dense attention and a setting give to each token of a text: an array of `LOSSES`."""

LOSSES = np.dtype([("nats", "f8"), ("nats_dense", "f8"), ("kld", "f8"), ("same_top", "?")])
"""The negative log-probability of the token that came next, the KL divergence of the setting's distribution from dense
attention's, KL(dense ‖ setting), in nats, and whether both find the same token most probable."""


def summary(losses: Losses) -> dict[str, float | int]:
    """Means over all tokens, as llama-perplexity computes them."""
    nats, nats_dense = losses["nats"].mean(), losses["nats_dense"].mean()
    return {
        "n_scored": losses.size,
        "ppl": float(np.exp(nats)),
        "ppl_dense": float(np.exp(nats_dense)),
        "nats_added": float(nats - nats_dense),
        "kld_mean": float(losses["kld"].mean()),
        "same_top": float(losses["same_top"].mean()),
    }


def over_windows(losses: Losses) -> dict[str, float | list[float] | None]:
    """Loss over dense and KL with standard errors between windows, the first axis: tokens of one text are alike.

    The error of one window is None.
    """
    res: dict[str, float | list[float] | None] = {}
    for name, values in (("nats_added", losses["nats"] - losses["nats_dense"]), ("kld", losses["kld"])):
        means = values.mean(axis=1)
        res[name] = float(means.mean())
        res[f"{name}_se"] = float(means.std(ddof=1) / np.sqrt(len(means))) if len(means) > 1 else None
        res[f"{name}_by_window"] = [round(float(mean), 6) for mean in means]
    return res


def compare(
    dense: NDArray[np.float32], others: Sequence[NDArray[np.float32]], targets: NDArray[np.int32]
) -> list[Losses]:
    """Losses [n] of each of `others` against dense attention.

    Logits are float32 [n, n_vocab], `targets` int32 [n] the tokens that came next.
    """
    n_rows = max(1, _BLOCK // dense.shape[1])
    found = [np.empty(len(targets), LOSSES) for _ in others]
    for start in range(0, len(targets), n_rows):
        rows = slice(start, start + n_rows)
        log_p = log_softmax(dense[rows])
        p, top = np.exp(log_p), log_p.argmax(axis=-1)
        for losses, logits in zip(found, others, strict=True):
            part, log_q = losses[rows], log_softmax(logits[rows])
            for name, of in (("nats_dense", log_p), ("nats", log_q)):
                part[name] = -of[np.arange(len(of)), targets[rows]]
            part["same_top"] = log_q.argmax(axis=-1) == top
            part["kld"] = np.einsum("ij,ij->i", p, np.subtract(log_p, log_q, out=log_q))
    return found


def log_softmax(logits: NDArray[np.float32]) -> NDArray[np.float64]:
    """Log-probabilities of each row, computed in float64: [n, n_vocab] of both."""
    x = logits.astype(np.float64)
    x -= x.max(axis=-1, keepdims=True)
    x -= np.log(np.exp(x).sum(axis=-1, keepdims=True))
    return x


_PIECE_BYTES = 64 * 2**20  # of logits, for each context


def piece_tokens(n_vocab: int) -> int:
    """The most tokens whose logits are held at once."""
    return max(1, _PIECE_BYTES // (4 * n_vocab))


def pieces(n_tokens: int, chunk_size: int, most: int) -> list[tuple[int, int]]:
    """(start, stop) of the calls that read a text: cut where chunks end, then evenly, at most `most` each."""
    calls: list[tuple[int, int]] = []
    for first, end in pairwise([*range(0, n_tokens, chunk_size), n_tokens]):
        n = -(-(end - first) // most)
        calls += pairwise([first + (end - first) * i // n for i in range(n + 1)])
    return calls


def read_windows(
    dense: Llama,
    readers: Sequence[Llama],
    windows: NDArray[np.int32],
    chunk_size: int,
    progress: Callable[[int, int], object],
) -> tuple[list[Losses], list[float]]:
    """Read every window with all contexts, piece by piece, and compare their logits with dense attention's.

    Windows are int32 [n, n_tokens]; every window is a new sequence. Compared are the logits of positions up to
    n_tokens - 2, as they have a next token. `progress` is called as progress(n_done, n) in tokens of all contexts.

    Returns the readers' losses [n, scored tokens], and the seconds of `eval`: dense attention's, then theirs.
    """
    n_tokens, everyone = windows.shape[1], [dense, *readers]
    calls = pieces(n_tokens, chunk_size, piece_tokens(dense.n_vocab))
    seconds = [0.0] * len(everyone)
    losses: list[Sequence[Losses]] = []
    n_done, n_total = 0, windows.size * len(everyone)
    for window in windows:
        for llm in everyone:
            llm.reset()
        for start, stop in calls:
            for i, llm in enumerate(everyone):
                begin = time.perf_counter()
                llm.eval(window[start:stop], logits="all")
                seconds[i] += time.perf_counter() - begin
                n_done += stop - start
                progress(n_done, n_total)
            targets = window[start + 1 : stop + 1]
            logits = [llm.logits[: len(targets)] for llm in everyone]
            losses.append(compare(logits[0], logits[1:], targets))
    return [np.concatenate(parts).reshape(len(windows), -1) for parts in zip(*losses, strict=True)], seconds
