"""What quality.py measured, by step."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from h2o_llama.eval import Setting
from h2o_llama.eval.rows import find_row, read_rows
from h2o_llama.eval.task import Row


@dataclass(frozen=True)
class Loss:
    """What a setting costs on some windows: nats per token and KL over dense, each with its error, and the same top."""

    nats: float
    error: float
    kl: float
    same_top: float


def rows_file(folder: Path, step: str, n_tokens: int) -> Path:
    """Where a step's rows are."""
    return folder / f"{step.replace(' ', '-')}-{n_tokens}.json"


class Rows:
    """The newest rows in a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @property
    def machine(self) -> dict[str, Any]:
        """What it was measured on. Raises ValueError if nothing was measured."""
        try:
            machine: dict[str, Any] = json.loads((self._folder / "machine.json").read_text())
        except FileNotFoundError:
            raise ValueError(f"nothing has been measured in {self._folder}") from None
        return machine

    def find(self, step: str, n_tokens: int, setting: Setting, **identity: object) -> Row:
        """Raises ValueError if it was not measured."""
        path = rows_file(self._folder, step, n_tokens)
        row = find_row(read_rows(path), {"setting": setting.name, **identity})
        if row is None:
            raise ValueError(f"{path} has no row of {setting.name!r}: measure first, without --report-only")
        return row

    def loss(self, step: str, n_tokens: int, setting: Setting) -> Loss:
        """The error is that of windows: tokens of one text are alike."""
        row = self.find(step, n_tokens, setting)
        added = row["nats_added_by_window"]
        error = np.std(added, ddof=1) / np.sqrt(len(added))
        return Loss(row["nats_added"], float(error), row["kld_mean"], row["same_top"])

    def cells(self, step: str, n_tokens: int, setting: Setting, kind: str) -> list[Row]:
        """Recall by depth."""
        cells: list[Row] = self.find(step, n_tokens, setting, kind=kind)["cells"]
        return cells
