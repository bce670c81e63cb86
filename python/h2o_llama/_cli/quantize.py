"""`h2o-llama quantize`: a model with weights of another type."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.filesize import decimal

from h2o_llama._cli import options
from h2o_llama._cli.prompt import model_file
from h2o_llama._internal.atomic import check_target
from h2o_llama._internal.terminal import echo
from h2o_llama.models._quantize import quantize_model, quantize_types


def quantize(
    model: options.Model,
    out: Annotated[Path, typer.Argument(help="The GGUF file to write; one that is there is replaced.")],
    type: Annotated[str, typer.Argument(metavar="TYPE", help=f"Type of the weights: {', '.join(quantize_types())}.")],
    threads: options.Threads = None,
) -> None:
    """Write a model with weights of another type."""
    check_target(out)
    quantize_model(model_file(model), out, type, threads)
    echo(f"Written: {out}, {decimal(out.stat().st_size)}")
