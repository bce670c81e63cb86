"""The tasks "perplexity" and "continuation": the losses of a text read as a prompt, and of the text after a prompt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import pairwise

from h2o_llama._internal import check
from h2o_llama.eval._lockstep import Reader, Reading, read_windows
from h2o_llama.eval._losses import Losses
from h2o_llama.eval._settings import DENSE, Setting
from h2o_llama.eval._subject import Progress, Row, Subject
from h2o_llama.llama import Llama


@dataclass(frozen=True)
class Perplexity:
    """Perplexity and KL divergence as llama-perplexity computes them.

    Windows of N tokens are taken evenly from the whole text, and the second half of each is scored: the logits of
    positions N/2 to N - 2. If the text has as many tokens as the windows, they are llama-perplexity's. "buckets" has
    all positions, by the position that predicts. "over_windows" has errors between windows, as tokens of one text are
    alike, and so has "first_chunk", where H2O is dense attention and only rounding differs. "tokens_per_s" is that of
    the calls to `Llama.eval`, which all compute the logits of every token.

    Parameters
    ----------
    windows : int, default 4
        The most windows.
    only : int, optional
        Read one of them, so that a long measurement can be cut off between them. The first is 0.
    """

    windows: int = 4
    only: int | None = None
    name = "perplexity"
    contexts_each = 1

    def variants(self, subject: Subject, n_tokens: int) -> list[Row]:
        """One row."""
        identity = subject.text.identity(n_tokens, self.windows)
        if self.only is None:
            return [identity]
        return [identity | {"only": check.integer("eval", "only", self.only, 0, identity["windows"] - 1)}]

    def measure(
        self, subject: Subject, settings: Sequence[Setting], n_tokens: int, progress: Progress
    ) -> Mapping[str, Sequence[Row]]:
        """Results by the settings' names."""
        windows = subject.text.windows(n_tokens, self.windows)
        if self.only is not None:
            windows = windows[self.only : self.only + 1]
        with ExitStack() as stack:
            dense = stack.enter_context(subject.open(DENSE, n_tokens))
            llms = {s.name: stack.enter_context(subject.open(s, n_tokens)) for s in settings}
            readers = {name: Reader(llm) for name, llm in llms.items()}
            readings = read_windows(dense, readers, windows, 0, subject.chunk_size, progress)
            return {
                name: [
                    {"text": subject.text.name}
                    | _perplexity_row(readings[name], subject.chunk_size)
                    | _costs(readings[name], windows.size, llm, dense)
                ]
                for name, llm in llms.items()
            }


def _perplexity_row(reading: Reading, chunk_size: int) -> Row:
    losses = reading.losses
    n_tokens = losses.nats.shape[1] + 1
    scored = losses[:, n_tokens // 2 :]
    return {
        **scored.summary(),
        "over_windows": scored.over_windows(),
        "first_chunk": losses[:, :chunk_size].over_windows(),
        "buckets": _buckets(losses, chunk_size),
    }


def _buckets(losses: Losses, chunk_size: int) -> list[Row]:
    """Means by position: a power of two that fits into the first chunk, then twice as many each time."""
    end = losses.nats.shape[1]
    edges = [0, 1 << (chunk_size.bit_length() - 1)]
    while edges[-1] < end:
        edges.append(2 * edges[-1])
    edges[-1] = end
    rows = []
    for start, stop in pairwise(edges):
        summary = losses[:, start:stop].summary()
        shown = {key: summary[key] for key in ("ppl", "ppl_dense", "kld_mean", "same_top")}
        rows.append({"start": start, "stop": stop, **shown, "n": summary["n_scored"]})
    return rows


def _costs(reading: Reading, n_tokens: int, llm: Llama, dense: Llama) -> Row:
    return {
        "tokens_per_s": n_tokens / reading.seconds,
        "tokens_per_s_dense": n_tokens / reading.seconds_dense,
        "kv_bytes": _bytes_held(llm),
        "kv_bytes_dense": _bytes_held(dense),
    }


def _bytes_held(llm: Llama) -> int:
    """Of K and V, scores, memory sets, and what a first phase leaves."""
    stats = llm.kv.stats
    return stats.kv_bytes + stats.state_bytes


# Whether the continuation attends to all K and V of the prompt, or to its chunk's memory set.
_OVER = ("full", "memory")


@dataclass(frozen=True)
class Continuation:
    """How well the text after a prompt of N tokens is predicted, from what the prompt's prefill left in the cache.

    The continuation is given, not generated. Its tokens attend to everything kept ("over": "full"), as generated tokens
    do, or to a memory set and their own chunk ("memory"), as the prompt's. Its first token is not scored: the prompt
    predicts it.

    Parameters
    ----------
    length : int, default 256
        Tokens of the continuation, at least 2.
    windows : int, default 4
        The most prompts, evenly from the whole text.
    """

    length: int = 256
    windows: int = 4
    name = "continuation"
    contexts_each = len(_OVER)

    def variants(self, subject: Subject, n_tokens: int) -> list[Row]:
        """A row for each "over"."""
        size = n_tokens + check.integer("eval", "length", self.length, 2)
        common = subject.text.identity(size, self.windows)
        return [{**common, "over": over, "prompt_tokens": n_tokens, "length": self.length} for over in _OVER]

    def measure(
        self, subject: Subject, settings: Sequence[Setting], n_tokens: int, progress: Progress
    ) -> Mapping[str, Sequence[Row]]:
        """Results by the settings' names, for each "over"."""
        size = n_tokens + self.length
        windows = subject.text.windows(size, self.windows)
        with ExitStack() as stack:
            dense = stack.enter_context(subject.open(DENSE, size))
            readers = {
                f"{s.name}, {over}": Reader(stack.enter_context(subject.open(s, size)), dense_tail=over == "full")
                for s in settings
                for over in _OVER
            }
            readings = read_windows(dense, readers, windows, n_tokens, subject.chunk_size, progress)
        return {
            s.name: [_continuation_row(subject, readings[f"{s.name}, {over}"].losses) for over in _OVER]
            for s in settings
        }


def _continuation_row(subject: Subject, losses: Losses) -> Row:
    return {"text": subject.text.name, **losses.summary(), "over_windows": losses.over_windows()}
