"""The file of finished rows, from which an interrupted run continues."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from h2o_llama._internal.atomic import alone_with, replacing
from h2o_llama.eval._task import Row


def read_rows(path: Path) -> list[Row]:
    """The rows of a file; none if it is missing or empty.

    Raises ValueError if it is not a list of rows as `evaluate` writes them.
    """
    try:
        content = path.read_bytes()
        rows = json.loads(content) if content else []
    except FileNotFoundError:
        return []
    except ValueError as error:  # no JSON, or no UTF-8
        raise _bad_file(path) from error
    if not isinstance(rows, list) or not all(isinstance(row, dict) and "task" in row for row in rows):
        raise _bad_file(path)
    return rows


def append_rows(path: Path, rows: Sequence[Row]) -> None:
    """Add rows to a file, to which other runs may add theirs.

    It is replaced as a whole: readers see all of the rows or none of them.
    """
    with alone_with(path):
        text = json.dumps([*read_rows(path), *rows], indent=1) + "\n"
        with replacing(path) as file:
            file.write(text.encode())


def find_row(rows: Sequence[Row], identity: Row) -> Row | None:
    """The newest row that has all of these values."""
    return next((row for row in reversed(rows) if identity.items() <= row.items()), None)


def _bad_file(path: Path) -> ValueError:
    return ValueError(f"[eval] {path} is not a list of rows of this command: name another file, or remove it")
