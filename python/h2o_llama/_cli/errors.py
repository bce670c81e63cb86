"""Errors as one line on stderr, and what tells more."""

from __future__ import annotations

import inspect
import logging
import re
import traceback
from collections.abc import Callable
from copy import copy
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, get_args

import typer
from typer.core import TyperGroup

from h2o_llama import H2OError
from h2o_llama._cli.options import Group
from h2o_llama._internal import log
from h2o_llama._internal.terminal import echo

_parameters: list[Any] = []
"""The parameters of the command that runs."""

_ALIASES = {"temp": "temperature", "rpc": "rpc_servers"}
"""Where Python's argument has another name than the command's parameter."""

_DEBUG = "h2o_llama.debug"  # in what a command's context shares with its group's


def describe(error: BaseException) -> str:
    """The error in one line."""
    if isinstance(error, OSError) and error.strerror and error.filename:
        return f"{error.filename}: {error.strerror}"
    return as_typed(" ".join(str(error).split())) or "not enough memory"


def as_typed(text: str) -> str:
    """A message with options in the place of Python's arguments."""
    for parameter in _parameters:
        name, option = _ALIASES.get(parameter.name, parameter.name), max(parameter.opts, key=len)
        is_a_word = "_" not in name and name != "evict"  # then the name is where the message begins
        if option.startswith("--"):
            before = r"(?<=\] )" if is_a_word else r"(?<![\w./-])"
            text = re.sub(rf"{before}(n_)?{name}(?![\w/])", option, text)
    return text


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
    _parameters[:] = context.command.params
    context.meta[_DEBUG] = is_on


def _set_verbose(is_on: bool) -> None:
    log.is_printed = is_on
    if is_on:
        logging.basicConfig(format="h2o-llama: %(message)s", level=logging.INFO, force=True)
        logging.getLogger(log.NAME).propagate = False  # printed already


def _print_all(context: typer.Context, is_asked: bool) -> None:
    if is_asked:
        command: Any = copy(context.command)
        command.params = [copy(parameter) for parameter in command.params]
        for parameter in command.params:
            parameter.hidden = False
        echo(command.get_help(context))
        raise typer.Exit


_ON_EVERY_COMMAND: dict[str, Any] = {
    "verbose": typer.Option(
        "--verbose", is_eager=True, callback=_set_verbose, help="Print llama.cpp's log and this package's."
    ),
    "debug": typer.Option(
        "--debug", is_eager=True, callback=_set_debug, help="Print the traceback of an error, to report it."
    ),
    "help_all": typer.Option(
        "--help-all", is_eager=True, callback=_print_all, help="Show the options of machine and RoPE, too."
    ),
}


_METAVARS = {int: "N", float: "X", str: "TEXT", Path: "FILE"}


def as_command(command: Callable[..., None]) -> Callable[..., None]:
    """What typer calls: with the options of its groups, --verbose, --debug and --help-all, and words for values."""
    signature = inspect.signature(command, eval_str=True)
    groups: dict[str, Group] = {}
    parameters: list[inspect.Parameter] = []
    for own in signature.parameters.values():
        _, option, *_ = get_args(own.annotation)
        if isinstance(option, Group):
            groups[own.name] = option
            parameters += [
                own.replace(name=name, annotation=annotation, default=default)
                for name, (annotation, default) in option.options.items()
            ]
        else:
            parameters.append(own)
    for parameter in parameters:
        kind, option, *_ = get_args(parameter.annotation)
        if option.metavar is None:
            option.metavar = _METAVARS.get((get_args(kind) or (kind,))[0])
    parameters += [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=False, annotation=Annotated[bool, option])
        for name, option in _ON_EVERY_COMMAND.items()
    ]

    @wraps(command)
    def run(verbose: bool, debug: bool, help_all: bool, **given: Any) -> None:
        made = {name: group.make(**{key: given.pop(key) for key in group.options}) for name, group in groups.items()}
        command(**given, **made)

    run.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    return run
