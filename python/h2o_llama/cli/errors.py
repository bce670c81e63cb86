"""Errors as one line on stderr."""

from __future__ import annotations

import traceback
from typing import Any

import typer
from typer.core import TyperGroup

from h2o_llama import H2OError


def describe(error: BaseException) -> str:
    """The error in one line."""
    if isinstance(error, OSError) and error.strerror and error.filename:
        return f"{error.filename}: {error.strerror}"
    if isinstance(error, MemoryError):
        return "not enough memory"
    return " ".join(str(error).split())


class Commands(TyperGroup):
    """Ends with exit code 1 and one line on stderr where a command fails, after a traceback only with --debug."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command named on the command line."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            raise  # the reader of our output has gone; typer ends silently
        except (H2OError, OSError, ValueError, ImportError, MemoryError) as error:
            if ctx.params["debug"]:
                traceback.print_exception(error)
            typer.echo(f"h2o-llama: {describe(error)}", err=True)
            raise typer.Exit(1) from error
