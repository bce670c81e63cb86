"""The command `h2o-llama`."""

from collections.abc import Callable
from typing import Annotated

import typer

from h2o_llama import UPSTREAM_COMMIT, __version__
from h2o_llama._cli import ask, batch, chat, demo, inspect, measure, models, run, serve
from h2o_llama._cli.command import Commands, as_command
from h2o_llama._cli.library import library, why
from h2o_llama._cli.options import ATTENTION, CHANGES
from h2o_llama._internal.terminal import echo

app = typer.Typer(
    name="h2o-llama",
    cls=Commands,
    help="llama.cpp with H2O sparse attention, and a view of the kept tokens.",
    invoke_without_command=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)

_FIRST_STEPS = """\
Three things to try:

  h2o-llama demo                                              keys in a document, found densely and with H2O
  h2o-llama pull qwen2.5-coder-0.5b                           a chat model, 0.5 GB; then
  h2o-llama chat qwen2.5-coder-0.5b --file document.txt       a chat about a document

h2o-llama --help lists all commands."""


def _print_version(asked: bool) -> None:
    if asked:
        echo(f"h2o-llama {__version__} (llama.cpp {UPSTREAM_COMMIT})")
        raise typer.Exit


@app.callback()
def main(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """What there is to do without a command."""
    if context.invoked_subcommand is None:
        echo(_FIRST_STEPS)


_LLAMA = ("model", *ATTENTION, "threads", "gpu_layers", *CHANGES)
_ANSWER = ("max_tokens", "think", "n_ctx", "temp", "seed", "library")
_TALK = (*_LLAMA, "mmproj", *_ANSWER, "threads_batch", "rpc", "mlock", "no_mmap")
_TEXT = tuple(name for name in _TALK if name != "mmproj")
_READ = tuple(name for name in _TEXT if name not in ("model", "max_tokens", "temp", "seed", "library"))
_COMMANDS: dict[str, Callable[..., None]] = {
    "demo": as_command(demo.demo),
    "chat": as_command(chat.chat, *_TALK, "image", "cache_reuse"),
    "ask": as_command(ask.ask, *_TEXT, "file", temp=0.0),
    "read": as_command(ask.read, *_READ),
    "run": as_command(run.run, *_TEXT, "file", "prompt", "dense_tail", "matmul_kernels"),
    "batch": as_command(batch.batch, *_LLAMA, *_ANSWER, temp=0.0, seed=0),
    "serve": as_command(serve.serve, *_LLAMA, "mmproj", "n_ctx", "cache_reuse", "matmul_kernels", "rpc", model="demo"),
    "rpc-server": as_command(serve.rpc_server),
    "options": as_command(measure.list_settings),
    "inspect": as_command(inspect.inspect, *_LLAMA, "file", "prompt", "library"),
    "info": as_command(models.info, "model", *CHANGES),
    "bench": as_command(measure.bench, *_LLAMA, "file"),
    "eval": as_command(measure.eval_model, *_LLAMA, "file"),
    "pull": as_command(models.pull),
    "quantize": as_command(models.quantize, "model", "threads"),
}

for _name, _command in _COMMANDS.items():
    app.command(_name)(_command)

library.command("why")(as_command(why, *_READ))
app.add_typer(library, name="library")
app.add_typer(models.models, name="models")
