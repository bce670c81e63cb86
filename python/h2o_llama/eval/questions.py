"""The task "recall": questions about documents, whose answers are generated."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Literal

import numpy as np

from h2o_llama import _check
from h2o_llama.eval.recall import RecallCell, measure_recall
from h2o_llama.eval.settings import DENSE, Setting
from h2o_llama.eval.subject import Subject
from h2o_llama.eval.task import Progress, Row
from h2o_llama.eval.tasks import KINDS
from h2o_llama.sequence import DENSE_TAIL


@dataclass(frozen=True)
class Recall:
    """Needles in documents made for the purpose; see `h2o_llama.eval.recall.measure_recall`.

    Parameters
    ----------
    kinds : sequence of str
        What is hidden and asked, see `h2o_llama.eval.tasks.make_item`; a row for each.
    depths : sequence of float, default 0, 0.25, 0.5, 0.75, 1
        Where, from 0 for the document's start to 1 for its end.
    samples : int, default 4
        Documents for each kind and depth.
    dense_tail : int, default 128
        The last tokens of a question and its document attend to everything kept; 0: the question is nothing but the end
        of
        the prompt. Dense attention ignores it.
    question : {"after", "before"}
        Whether the question follows the document, or stands in front of it too.
    style : {"auto", "english", "keys"}
        The wording. "auto" is "keys" for the packaged demo model, which knows nothing else, and "english" for others.
    haystack : bytes, optional
        The text to hide them in; by default source of Python's standard library.
    """

    kinds: Sequence[str]
    depths: Sequence[float] = (0.0, 0.25, 0.5, 0.75, 1.0)
    samples: int = 4
    dense_tail: int = DENSE_TAIL
    question: Literal["after", "before"] = "after"
    style: Literal["auto", "english", "keys"] = "auto"
    haystack: bytes | None = None
    name = "recall"
    contexts_each = 1

    def variants(self, subject: Subject, n_tokens: int) -> list[Row]:
        """A row for each kind."""
        if not self.kinds:
            raise _check.bad_argument("eval", "kinds", "one or more of " + ", ".join(KINDS), self.kinds)
        for kind in self.kinds:
            _check.choice("eval", "kind", kind, KINDS)
        for depth in self.depths:
            _check.real("eval", "depth", depth, 0, 1)
        common = {
            "depths": list(self.depths),
            "samples": self.samples,
            "dense_tail": self.dense_tail,
            "question": self.question,
            "style": self.style,
            "haystack_sha256": None if self.haystack is None else hashlib.sha256(self.haystack).hexdigest(),
        }
        return [{"kind": kind, **common} for kind in self.kinds]

    def measure(
        self, subject: Subject, settings: Sequence[Setting], n_tokens: int, progress: Progress
    ) -> Mapping[str, Sequence[Row]]:
        """Results by the settings' names, for each kind."""
        with ExitStack() as stack:
            llms = {s.name: stack.enter_context(subject.open(s, n_tokens)) for s in (DENSE, *settings)}
            cells = measure_recall(
                llms,
                kinds=self.kinds,
                n_tokens=n_tokens,
                depths=self.depths,
                samples=self.samples,
                seed=subject.seed,
                style=self.style,
                dense_tail=self.dense_tail,
                question=self.question,
                haystack=self.haystack,
                progress=progress,
            )
        return {s.name: [_recall_row(cells[s.name], cells[DENSE.name], kind) for kind in self.kinds] for s in settings}


def _recall_row(cells: Sequence[RecallCell], dense: Sequence[RecallCell], kind: str) -> Row:
    pairs = [(cell, other) for cell, other in zip(cells, dense, strict=True) if cell.kind == kind]
    n = [cell.n for cell, _ in pairs]
    return {
        "recall": float(np.average([cell.recall for cell, _ in pairs], weights=n)),
        "recall_dense": float(np.average([other.recall for _, other in pairs], weights=n)),
        "n": sum(n),
        "cells": [
            {"depth": cell.depth, "recall": cell.recall, "recall_dense": other.recall, "n": cell.n}
            for cell, other in pairs
        ],
    }
