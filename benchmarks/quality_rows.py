"""Looking up what quality.py measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from h2o_llama.eval import Setting
from h2o_llama.eval.rows import find_row
from h2o_llama.eval.task import Row
from quality_plan import DEPTHS, FAR_DEPTHS, GOAL_TEXT


@dataclass(frozen=True)
class Estimate:
    """A mean and its standard error."""

    mean: float
    error: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Estimate:
        """Of independent values, at least two."""
        return cls(float(np.mean(values)), float(np.std(values, ddof=1) / np.sqrt(len(values))))


class Rows:
    """The newest row of each measurement."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self._rows = rows
        self.lengths = sorted({row["n_tokens"] for row in rows if row["task"] == "text"})

    def find(self, task: str, setting: Setting | None = None, **identity: object) -> Row:
        """Raises ValueError if it was not measured."""
        if setting is not None:
            identity["setting"] = setting.name
        row = find_row(self._rows, {"task": task, **identity})
        if row is None:
            named = ", ".join(f"{name} {value}" for name, value in identity.items())
            raise ValueError(f"there is no row of task {task!r} with {named}: measure first, without --report-only")
        return row

    def text(self, setting: Setting, n_tokens: int) -> Row:
        return self.find("text", setting, n_tokens=n_tokens)

    def ratio(self, setting: Setting, n_tokens: int) -> Estimate:
        """Perplexity over dense, less 1. The error is that of windows."""
        added = Estimate.of(self.text(setting, n_tokens)["added"])
        return Estimate(float(np.expm1(added.mean)), float(np.exp(added.mean) * added.error))

    def difference(self, setting: Setting, other: Setting) -> Estimate:
        """Nats per token that a setting costs more than another on the same windows, the many of the goals."""
        added = [np.array(self.find(GOAL_TEXT, s)["added"]) for s in (setting, other)]
        return Estimate.of((added[0] - added[1]).tolist())

    def far(self, setting: Setting, n_tokens: int, kind: str, dense_tail: int) -> float:
        """Recall of what is at least half of the document back, over dense attention's."""
        identity = {"n_tokens": n_tokens, "kind": kind, "dense_tail": dense_tail, "depths": list(FAR_DEPTHS)}
        row = self.find("recall", setting, **identity)
        return float(row["recall"] / row["recall_dense"])

    def by_depth(self, setting: Setting, n_tokens: int, kind: str, dense_tail: int) -> list[Row]:
        """The cells of every depth."""
        identity = {"n_tokens": n_tokens, "kind": kind, "dense_tail": dense_tail, "depths": list(DEPTHS)}
        cells: list[Row] = self.find("recall", setting, **identity)["cells"]
        return cells
