"""`h2o-llama read`: documents for the library."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from h2o_llama._cli.ask import open_read
from h2o_llama._cli.errors import describe
from h2o_llama._cli.options import MODEL, Options
from h2o_llama._cli.prompt import open_model, read_text
from h2o_llama._internal.terminal import echo
from h2o_llama.batch._answering import Prompts
from h2o_llama.batch._answers import find_documents


def read(
    o: Options,
    paths: Annotated[list[Path], typer.Argument(metavar="FILE|FOLDER…", help="Texts, PDF or HTML files.")],
    model: Annotated[str, MODEL],
) -> None:
    """Read documents now, for questions later.

    After an interruption the same command continues. All commands then find the documents in the library.
    """
    files = [file for path in paths for file in (find_documents(path).values() if path.is_dir() else [path])]
    has_failed = False
    with open_model(replace(o, model=model)) as weights:
        prompts = Prompts(weights, o.thinking)
        for file in files:
            try:
                with open_read(o, weights, file.name, partial(prompts.shared, read_text(file))):
                    pass
            except (OSError, ValueError) as error:
                has_failed = True
                echo(f"h2o-llama: {describe(error)}", err=True)
    if has_failed:
        raise typer.Exit(1)
