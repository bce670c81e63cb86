"""`h2o-llama rpc-server`: lets another machine's model use this machine's memory and processors."""

from __future__ import annotations

from typing import Annotated

import typer

from h2o_llama._cli import options
from h2o_llama._cli.programs import become, program
from h2o_llama._internal.cpus import available_cpus

_REMEDY = "install h2o-llama from its source with RPC: pip install . -C cmake.define.GGML_RPC=ON"


def rpc_server(
    host: Annotated[
        str, typer.Option(help="Address to listen at. There is no password: use a trusted network only.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port to listen at.")] = 50052,
    threads: options.Threads = None,
) -> None:
    """Hold and compute layers for a model on another machine.

    It is llama.cpp's RPC server, with H2O's operators. There, name this machine by --rpc HOST:PORT, or
    Llama(…, rpc_servers="HOST:PORT").
    """
    n_threads = available_cpus() if threads is None else threads
    path = program("rpc-server", "ggml-rpc-server", _REMEDY)
    become(path, ["--host", host, "--port", str(port), "--threads", str(n_threads)])
