"""The command `h2o-llama`."""

from __future__ import annotations

from typing import Annotated

import typer

from h2o_llama import UPSTREAM_COMMIT, __version__
from h2o_llama.cli import batch, bench, chat, demo, info, inspect, pull, quantize, rpc_server, run, serve
from h2o_llama.cli.errors import Commands
from h2o_llama.cli.eval import eval_model

app = typer.Typer(
    name="h2o-llama",
    cls=Commands,
    help="llama.cpp with H2O sparse attention, and a look at which tokens attention kept.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(f"h2o-llama {__version__} (llama.cpp {UPSTREAM_COMMIT})")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
    debug: Annotated[
        bool, typer.Option("--debug", help="Print the whole traceback of an error, to report it.")
    ] = False,
) -> None:
    """Global options."""


for command in (
    demo.demo,
    chat.chat,
    run.run,
    serve.serve,
    rpc_server.rpc_server,
    batch.batch,
    inspect.inspect,
    bench.bench,
    info.info,
    pull.pull,
    quantize.quantize,
):
    app.command()(command)
app.command("eval")(eval_model)
