"""Errors as one line on stderr, and what tells more."""

from __future__ import annotations

import inspect
import logging
import traceback
from collections.abc import Callable
from functools import wraps
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from h2o_llama import H2OError
from h2o_llama._internal import log
from h2o_llama._internal.terminal import echo


def describe(error: BaseException) -> str:
    """The error in one line."""
    if isinstance(error, OSError) and error.strerror and error.filename:
        return f"{error.filename}: {error.strerror}"
    return " ".join(str(error).split()) or "not enough memory"


_DEBUG = "h2o_llama.debug"  # in what a command's context shares with its group's


class Commands(TyperGroup):
    """Ends with exit code 1 and one line on stderr where a command fails, after a traceback only with --debug."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command named on the command line."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            raise  # the reader of our output has gone; typer ends silently
        except (H2OError, OSError, ValueError, ImportError, MemoryError) as error:
            if ctx.meta.get(_DEBUG):
                echo("".join(traceback.format_exception(error)).rstrip(), err=True)
            echo(f"h2o-llama: {describe(error)}", err=True)
            raise typer.Exit(1) from error


def _set_debug(context: typer.Context, is_on: bool) -> None:
    context.meta[_DEBUG] = is_on


def _set_verbose(is_on: bool) -> None:
    log.is_printed = is_on
    if is_on:
        logging.basicConfig(format="h2o-llama: %(message)s", level=logging.INFO, force=True)
        logging.getLogger(log.NAME).propagate = False  # it is printed as it comes


_ON_EVERY_COMMAND: dict[str, Any] = {
    "verbose": typer.Option(
        "--verbose", is_eager=True, callback=_set_verbose, help="Print llama.cpp's log and this package's to stderr."
    ),
    "debug": typer.Option(
        "--debug", is_eager=True, callback=_set_debug, help="Print the whole traceback of an error, to report it."
    ),
}


def with_debug(command: Callable[..., None]) -> Callable[..., None]:
    """Gives a command --verbose and --debug."""

    @wraps(command)
    def run(verbose: bool, debug: bool, **given: Any) -> None:
        command(**given)

    own = inspect.signature(command, eval_str=True)
    more = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=False, annotation=Annotated[bool, option])
        for name, option in _ON_EVERY_COMMAND.items()
    ]
    run.__signature__ = own.replace(parameters=[*own.parameters.values(), *more])  # type: ignore[attr-defined]
    return run
