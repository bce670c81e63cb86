"""The task "ruler": one of RULER's tasks, whose answers are generated."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from h2o_llama._internal import check
from h2o_llama.eval.answering import answer
from h2o_llama.eval.dense_answers import DenseAnswers
from h2o_llama.eval.ruler.draft import Sources
from h2o_llama.eval.ruler.item import Item, make_item, score
from h2o_llama.eval.settings import DENSE, Setting
from h2o_llama.eval.subject import Subject
from h2o_llama.eval.task import Progress, Row
from h2o_llama.llama import Llama
from h2o_llama.sequence.generating import DENSE_TAIL


@dataclass(frozen=True)
class Ruler:
    """One of the tasks of RULER that need no data set, with its wording, lengths and score.

    Hsieh et al. 2024, "RULER: What's the Real Context Size of Your Long-Context Language Models?", arXiv:2404.06654.
    Essays are "war-and-peace" instead of Paul Graham's, cut into sentences at full stops. Dense attention's answers are
    kept in the user's cache folder, by the model and the prompt, and not generated again.

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

        def say(llm: Llama, item: Item) -> str:
            nonlocal n_done
            llm.reset()
            said = answer(llm, list(item.tokens), item.n_generate, self.dense_tail).decode(errors="replace")
            n_done += 1
            progress(n_done, n_total)
            return said

        kept = DenseAnswers(subject.fingerprint)
        missing = [item for item in items if item not in kept]
        n_done = len(items) - len(missing)
        if missing:
            with subject.open(DENSE, n_tokens) as llm:
                for item in missing:
                    kept.add(item, say(llm, item))
        dense = [score(kept[item], item.answers) for item in items]
        rows: dict[str, list[Row]] = {}
        for setting in settings:
            with subject.open(setting, n_tokens) as llm:
                scores = [score(say(llm, item), item.answers) for item in items]
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
