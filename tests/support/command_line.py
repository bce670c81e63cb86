"""Runs the command line."""

import re
from functools import cache
from pathlib import Path

import typer
from typer.testing import CliRunner, Result

from h2o_llama._cli import app

# Else it makes all commands anew for each one that is run, which takes longer than most of them.
typer.testing._get_command = cache(typer.main.get_command)


def invoke(
    *arguments: str | Path, stdin: str | bytes | None = None, columns: int = 200, app: typer.Typer = app
) -> Result:
    return CliRunner(env={"COLUMNS": str(columns)}).invoke(app, [str(a) for a in arguments], input=stdin)


def assert_wrong_usage(result: Result, match: str) -> None:
    assert result.exit_code == 2
    assert result.stdout == ""
    assert match in " ".join(result.stderr.replace("│", " ").split())


def succeeded(result: Result) -> Result:
    """The result of a command that must end well."""
    assert result.exit_code == 0, result.stderr
    return result


def assert_one_line_error(result: Result, match: str) -> None:
    assert result.exit_code == 1
    assert result.stdout == ""
    assert len(result.stderr.splitlines()) == 1
    assert result.stderr.startswith("h2o-llama: ")
    assert re.search(match, result.stderr)
    assert isinstance(result.exception, SystemExit)


def h2o_set(**values: object) -> list[str]:
    """Settings of H2O as options."""
    return [word for key, value in values.items() for word in ("--h2o-set", f"{key}={value}")]
