"""The task "ruler": prompts of RULER, generated answers and their scores."""

from __future__ import annotations

import hashlib
import re
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random

import numpy as np

from h2o_llama._internal import check
from h2o_llama.eval._ruler.drafts import DRAFTS, Sources
from h2o_llama.eval._settings import DENSE, Setting
from h2o_llama.eval._subject import Progress, Row, Subject, answer
from h2o_llama.llama import Llama
from h2o_llama.model import Model
from h2o_llama.sequence.generating import DENSE_TAIL

_OWNER = "eval"

KINDS = tuple(DRAFTS)
"""RULER's names of its tasks."""


@dataclass(frozen=True)
class Item:
    """A prompt as tokens, and answers expected in up to `n_generate` tokens after it."""

    tokens: tuple[int, ...]
    answers: tuple[str, ...]
    n_generate: int


def make_item(kind: str, n_tokens: int, seed: int | str, model: Model | Llama, sources: Sources) -> Item:
    """Draw a task: prompt and answer have at most n_tokens tokens, and as many as a sentence or word more allows.

    The question is a user's message in the model's chat template, if it has one, and the answer begins with RULER's
    prefix. All arguments count in the drawing.

    Raises ValueError if the kind is unknown, or n_tokens is too short for it.
    """
    draft = DRAFTS[check.choice(_OWNER, "ruler", kind, KINDS)](Random(f"{seed} {kind} {n_tokens}"), n_tokens, sources)
    before, after = _around(model)

    def tokens(n: int) -> list[int]:
        text = before + draft.question(n) + after + draft.prefix
        return model.tokenize(text, parse_special=bool(before or after))

    def fits(n: int) -> bool:
        return len(tokens(n)) + draft.n_generate <= n_tokens

    n = _largest(fits, draft.least, draft.most)
    if n is None:
        least = len(tokens(draft.least)) + draft.n_generate
        raise ValueError(f"[{_OWNER}] {n_tokens} tokens are too short for RULER's {kind!r}: it takes at least {least}")
    return Item(tuple(tokens(n)), draft.answers, draft.n_generate)


def score(said: str, answers: Sequence[str]) -> float:
    """RULER's string_match_all: the share of answers in the generated text, in either case."""
    text = re.sub(r"[\x00-\x1f]", "\n", said).lower()
    return sum(answer.lower() in text for answer in answers) / len(answers)


def _around(model: Model | Llama) -> tuple[str, str]:
    """What the chat template puts before and after a user's message; nothing without a template."""
    if "tokenizer.chat_template" not in model.metadata:
        return "", ""
    mark = "THE MESSAGE"
    before, _, after = model.apply_chat_template([{"role": "user", "content": mark}]).partition(mark)
    return before, after


def _largest(fits: Callable[[int], bool], least: int, most: int) -> int | None:
    """The largest n from `least` to `most` that fits; None if none does."""
    if not fits(least):
        return None
    low = least
    while 2 * low <= most and fits(2 * low):
        low *= 2
    return low + bisect_left(range(low + 1, min(2 * low, most + 1)), True, key=lambda n: not fits(n))


@dataclass(frozen=True)
class RulerMean:
    """Mean scores of a setting and of dense attention, from 0 to 1, and the standard error of their difference.

    The error is that of prompts, paired, within each task; None if a task has only one.
    """

    score: float
    dense: float
    error: float | None

    @property
    def over_dense(self) -> float | None:
        """The part of dense attention's score that the setting reaches; None if that is 0."""
        return self.score / self.dense if self.dense else None

    def over_dense_text(self) -> str:
        """With its error."""
        if self.over_dense is None:
            return "–"
        return f"{self.over_dense:.3f}" + ("" if self.error is None else f" ± {self.error / self.dense:.3f}")


def ruler_mean(rows: Sequence[Row]) -> RulerMean:
    """The mean over a setting's rows, one for each task."""
    variances = []
    for row in rows:
        added = np.subtract(row["scores"], row["scores_dense"])
        variances.append(added.var(ddof=1) / len(added) if len(added) > 1 else None)
    known = [variance for variance in variances if variance is not None]
    error = float(np.sqrt(np.sum(known)) / len(rows)) if len(known) == len(rows) else None
    return RulerMean(
        float(np.mean([row["score"] for row in rows])), float(np.mean([row["score_dense"] for row in rows])), error
    )


@dataclass(frozen=True)
class Ruler:
    """One of the tasks of RULER that need no data set, with its wording, lengths and score.

    Hsieh et al. 2024, "RULER: What's the Real Context Size of Your Long-Context Language Models?", arXiv:2404.06654.
    Essays are "war-and-peace" instead of Paul Graham's, cut into sentences at full stops.

    Parameters
    ----------
    kind : str
        RULER's name of the task: "niah_single_1" to "niah_single_3", "niah_multikey_1" to "niah_multikey_3",
        "niah_multivalue", "niah_multiquery", "vt", "cwe" or "fwe".
    samples : int, default 5
        Prompts.
    dense_tail : int, default 128
        The last tokens of a prompt attend to everything kept; 0: the question is nothing but the end of the prompt.
        Dense attention ignores it.
    """

    kind: str
    samples: int = 5
    dense_tail: int = DENSE_TAIL
    sources: Sources = field(default_factory=Sources, repr=False, compare=False)
    name = "ruler"
    contexts_each = 1

    def variants(self, subject: Subject, n_tokens: int) -> list[Row]:
        """One row."""
        check.integer("eval", "samples", self.samples, 1)
        check.integer("eval", "dense_tail", self.dense_tail, 0)
        first = self._item(subject, n_tokens, 0)
        digest = hashlib.sha256(np.array(first.tokens, dtype=np.int32).tobytes()).hexdigest()
        return [
            {"kind": self.kind, "samples": self.samples, "dense_tail": self.dense_tail, "first_prompt_sha256": digest}
        ]

    def measure(
        self, subject: Subject, settings: Sequence[Setting], n_tokens: int, progress: Progress
    ) -> Mapping[str, Sequence[Row]]:
        """Results by the settings' names."""
        items = [self._item(subject, n_tokens, i) for i in range(self.samples)]
        n_done, n_total = 0, len(items) * (1 + len(settings))

        def scores_of(setting: Setting) -> list[float]:
            nonlocal n_done
            scores = []
            with subject.open(setting, n_tokens) as llm:
                for item in items:
                    llm.reset()
                    said = answer(llm, list(item.tokens), item.n_generate, self.dense_tail).decode(errors="replace")
                    scores.append(score(said, item.answers))
                    n_done += 1
                    progress(n_done, n_total)
            return scores

        dense = scores_of(DENSE)
        rows: dict[str, list[Row]] = {}
        for setting in settings:
            scores = scores_of(setting)
            rows[setting.name] = [
                {
                    "score": float(np.mean(scores)),
                    "score_dense": float(np.mean(dense)),
                    "scores": scores,
                    "scores_dense": dense,
                }
            ]
        return rows

    def _item(self, subject: Subject, n_tokens: int, sample: int) -> Item:
        return make_item(self.kind, n_tokens, f"{subject.seed} {sample}", subject.weights, self.sources)
