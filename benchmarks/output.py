"""The files that a benchmark is asked to write."""

from __future__ import annotations

from pathlib import Path

import typer


def check_output(option: str, path: Path | None) -> None:
    """Say that a file cannot be written before anything is measured."""
    if path is not None and not path.absolute().parent.is_dir():
        raise typer.BadParameter(f"{path} is in no folder", param_hint=option)
