"""A function as a command: its options, and errors as one line on stderr."""

import inspect
import logging
import re
import signal
import sys
import traceback
import warnings
from collections.abc import Callable
from copy import copy
from dataclasses import fields
from functools import partial, wraps
from pathlib import Path
from typing import Annotated, Any, NoReturn, get_args, get_type_hints

import typer
from typer.core import TyperGroup

from h2o_llama import H2OError, H2OWarning
from h2o_llama._cli.options import Options, option
from h2o_llama._internal import log
from h2o_llama._internal.terminal import echo, printable

_FLAGS = {"temperature": "--temp", "rpc_servers": "--rpc"}
"""By Python's name: the options of all commands."""

_DEBUG = "h2o_llama.debug"  # in what a command's context shares with its group's


def describe(error: BaseException) -> str:
    """The error in one line."""
    if isinstance(error, OSError) and error.strerror and error.filename:
        return f"{error.filename}: {error.strerror}"
    return as_typed(" ".join(str(error).split())) or "not enough memory"


def as_typed(text: str) -> str:
    """A message without the name of the call, and with options in the place of Python's arguments."""

    def flag(word: re.Match[str]) -> str:
        name = word[0]
        is_certain = word.start() == 0 or "_" in name or name == "evict"
        return _FLAGS.get(name, _FLAGS.get(name.removeprefix("n_"), name)) if is_certain else name

    text = re.sub(r"^(\[[\w. -]+\] )+", "", text).replace("h2o=None to Llama", "--h2o off").replace(", or reset()", "")
    return re.sub(r"(?<![\w./-])\w+(?![\w/]|\.\w)", flag, text)


def confirm(question: str) -> None:
    """Ends the command if a person says no. Nobody is asked where nobody is at the terminal."""
    if sys.stdin.isatty():
        typer.confirm(printable(question), abort=True, err=True)


def _show(message: Warning | str, category: object, file: str, n_line: int, line: str | None = None) -> str:
    """A warning in one line."""
    return f"h2o-llama: {describe(message) if isinstance(message, H2OWarning) else message}\n"


class Commands(TyperGroup):
    """Ends with exit code 1 and one line on stderr where a command fails, after a traceback only with --debug."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command named on the command line."""
        warnings.formatwarning = _show  # type: ignore[assignment]  # mypy wants the names of its parameters
        signal.signal(signal.SIGTERM, _end)  # ends like Ctrl-C: with the chunks read so far in the library
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            raise  # the reader of our output has gone; typer ends silently
        except (H2OError, OSError, ValueError, ImportError, MemoryError) as error:
            if ctx.meta.get(_DEBUG):
                echo("".join(traceback.format_exception(error)).rstrip(), err=True)
            echo(f"h2o-llama: {describe(error)}", err=True)
            raise typer.Exit(1) from error


def _end(number: int, frame: object) -> NoReturn:
    raise SystemExit(128 + number)


def _set_debug(context: typer.Context, is_on: bool) -> None:
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
    name: option(help, f"--{name.replace('_', '-')}", is_eager=True, callback=callback)
    for name, help, callback in (
        ("verbose", "Print llama.cpp's log and this package's.", _set_verbose),
        ("debug", "Print the traceback of an error, to report it.", _set_debug),
        ("help_all", "Show the options of machine and RoPE, too.", _print_all),
    )
}


_METAVARS = {int: "N", float: "X", str: "TEXT", Path: "FILE"}
_SHARED = get_type_hints(Options, include_extras=True)


def as_command(command: Callable[..., None], *names: str, **defaults: Any) -> Callable[..., None]:
    """What typer calls: with --verbose, --debug and --help-all, and words for values.

    With `names` the command's first argument is an `Options` with these options. `defaults` replace the table's.
    """
    own = [*inspect.signature(command).parameters.values()][bool(names) :]
    given = {field.name: field.default for field in fields(Options) if field.name in names} | defaults
    if "model" not in defaults:
        given |= {"model": inspect.Parameter.empty} if "model" in given else {}
    make = partial(inspect.Parameter, kind=inspect.Parameter.KEYWORD_ONLY)
    shared = [make(name, annotation=_SHARED[name], default=default) for name, default in given.items()]
    always = [make(name, annotation=Annotated[bool, x], default=False) for name, x in _ON_EVERY_COMMAND.items()]
    is_model = "model" in names
    parameters = [*shared[:is_model], *own, *shared[is_model:], *always]
    for parameter in parameters:
        kind, option, *_ = get_args(parameter.annotation)
        if option.metavar is None:
            option.metavar = _METAVARS.get((get_args(kind) or (kind,))[0])
        if isinstance(option, typer.models.OptionInfo):
            words = [word for word in map(str, (option.default, *(option.param_decls or ()))) if word.startswith("--")]
            _FLAGS[parameter.name] = (words or ["--" + parameter.name.replace("_", "-")])[0].partition("/")[0]

    @wraps(command)
    def run(verbose: bool, debug: bool, help_all: bool, **values: Any) -> None:
        of_all = {name: values.pop(name) for name in given}
        command(*([Options(**of_all)] if names else []), **values)

    run.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in parameters]
    )
    return run


def group(help: str, first: Callable[[], None], **commands: Callable[..., None]) -> typer.Typer:
    """Commands after a common word; the word alone is the first of them, `list`."""
    made = typer.Typer(cls=Commands, help=help, rich_markup_mode=None, invoke_without_command=True)
    for name, command in {"list": first, **commands}.items():
        made.command(name)(as_command(command))

    @made.callback()
    def without_a_command(context: typer.Context) -> None:
        if context.invoked_subcommand is None:
            first()

    return made
