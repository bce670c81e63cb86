"""What the reports are made with: their templates, and pictures."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from matplotlib import rc_context


def environment() -> Environment:
    """The templates of this folder. What is not given to them is an error."""
    found = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        undefined=StrictUndefined,
        trim_blocks=True,
        keep_trailing_newline=True,
    )
    found.filters["thousands"] = "{:,}".format
    return found


def equal_files(name: str) -> AbstractContextManager[None]:
    """Within it, equal figures are saved as equal SVG files; those of a page have its name as their salt."""
    return rc_context({"svg.hashsalt": name, "svg.fonttype": "none"})
