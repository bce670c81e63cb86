"""Warnings that point at the caller's line, however deep in this package their reason was found."""

from __future__ import annotations

import sys
import warnings

from h2o_llama._internal.terminal import printable
from h2o_llama.errors import H2OWarning


def warn(message: str) -> None:
    """An H2OWarning about the line that has called this package."""
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] == "h2o_llama":
        level, frame = level + 1, frame.f_back
    warnings.warn(printable(message), H2OWarning, stacklevel=level)
