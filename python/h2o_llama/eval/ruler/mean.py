"""The mean over RULER's tasks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from h2o_llama.eval.task import Row


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
        """What is kept of dense attention's score; None if that is 0."""
        return self.score / self.dense if self.dense else None

    def over_dense_text(self) -> str:
        """With its error."""
        if self.over_dense is None:
            return "–"
        return f"{self.over_dense:.3f}" + ("" if self.error is None else f" ± {self.error / self.dense:.3f}")


def ruler_mean(rows: Sequence[Row]) -> RulerMean:
    """Of one setting's rows, one for each task."""
    variances = []
    for row in rows:
        added = np.subtract(row["scores"], row["scores_dense"])
        variances.append(added.var(ddof=1) / len(added) if len(added) > 1 else None)
    known = [variance for variance in variances if variance is not None]
    error = float(np.sqrt(np.sum(known)) / len(rows)) if len(known) == len(rows) else None
    return RulerMean(
        float(np.mean([row["score"] for row in rows])), float(np.mean([row["score_dense"] for row in rows])), error
    )
