"""What quality.py measured, by step."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from h2o_llama.eval import Setting
from h2o_llama.eval.rows import read_rows
from h2o_llama.eval.task import Row


@dataclass(frozen=True)
class Mean:
    """A mean over windows with its standard error, None of one window."""

    value: float
    error: float | None

    @classmethod
    def of(cls, values: list[float]) -> Mean:
        error = float(np.std(values, ddof=1) / np.sqrt(len(values))) if len(values) > 1 else None
        return cls(float(np.mean(values)), error)


@dataclass(frozen=True)
class Loss:
    """What a setting costs over dense attention on some windows, and what it costs in the first chunk of them."""

    nats: Mean
    kl: Mean
    same_top: Mean
    first_nats: Mean
    first_kl: Mean
    file: str
    windows: int


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

    def loss(self, step: str, n_tokens: int, setting: Setting) -> Loss | None:
        """Means over the windows that there are, None without any."""
        rows = [*_newest(self._of(step, n_tokens, setting), "only").values()]
        if not rows:
            return None
        return Loss(
            *(
                Mean.of([value(row) for row in rows])
                for value in (
                    lambda row: row["over_windows"]["nats_added"],
                    lambda row: row["over_windows"]["kld"],
                    lambda row: row["same_top"],
                    lambda row: row["first_chunk"]["nats_added"],
                    lambda row: row["first_chunk"]["kld"],
                )
            ),
            rows[0]["file"],
            len(rows),
        )

    def ruler(self, step: str, n_tokens: int, setting: Setting, dense_tail: int) -> dict[str, Row]:
        """RULER's tasks that were measured."""
        return _newest(self._of(step, n_tokens, setting, dense_tail=dense_tail), "kind")

    def speed(self, model: str, n_tokens: int) -> list[Row]:
        """Rows of a benchmark, none if it has not been run."""
        path = rows_file(self._folder, f"{model} speed", n_tokens)
        rows: list[Row] = json.loads(path.read_text()) if path.exists() else []
        return rows

    def _of(self, step: str, n_tokens: int, setting: Setting, **identity: object) -> list[Row]:
        path = rows_file(self._folder, step, n_tokens)
        wanted = {"setting": setting.name, **identity}
        return [row for row in read_rows(path) if wanted.items() <= row.items()]


def _newest(rows: list[Row], key: str) -> dict[Any, Row]:
    return {row[key]: row for row in rows}
