"""The task "continuation": the losses of the text that follows a prompt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from h2o_llama._internal import check
from h2o_llama.eval._lockstep import Reader, read_windows
from h2o_llama.eval._losses import Losses
from h2o_llama.eval._settings import DENSE, Setting
from h2o_llama.eval._subject import Subject
from h2o_llama.eval._task import Progress, Row

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
        return {s.name: [_row(subject, readings[f"{s.name}, {over}"].losses) for over in _OVER] for s in settings}


def _row(subject: Subject, losses: Losses) -> Row:
    return {"text": subject.text.name, **losses.summary(), "over_windows": losses.over_windows()}
