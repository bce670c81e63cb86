"""`h2o-llama serve`: llama.cpp's server, with H2O; and `h2o-llama rpc-server`."""

import errno
import os
import signal
import socket
import sys
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from h2o_llama import H2OConfig, H2OError, H2OWarning, Llama, Model, UnsupportedModelError, _core
from h2o_llama._cli.command import describe
from h2o_llama._cli.inputs import has_library, open_model
from h2o_llama._cli.options import Options, default_config, option, upstream_arguments, upstream_options
from h2o_llama._internal import check, log
from h2o_llama._internal.machine import available_cpus, physical_memory
from h2o_llama._internal.terminal import echo
from h2o_llama._thoughts import MAX_THOUGHTS
from h2o_llama.config import uses_gpu
from h2o_llama.library import default_folder
from h2o_llama.library._serving import ServerTexts
from h2o_llama.llama import DENSE_ON_A_GPU
from h2o_llama.models._files import changed_fingerprint, check_rpc_servers
from h2o_llama.models._projector import open_projector
from h2o_llama.sequence._engine import MATMUL_KERNELS
from h2o_llama.sequence.snapshot import SnapshotOrigin

_PAGE = Path(__file__).parent.parent / "page"
"""What a browser is shown."""

_MOST_ROOM = 32768
"""Tokens that a slot holds at most, unless told."""

_ROOM_STEP = 256
"""llama.cpp makes a slot's room a multiple of it."""

_MOST_CACHE_RAM = 8192
"""MiB: llama-server's own default."""

_LONGEST_EMBEDDED = 4096
"""Tokens of a text whose embedding is asked for."""


def _possible(o: Options, weights: Model, n_ctx: int) -> tuple[H2OConfig | None, str]:
    """What the model and the device can have, decided as `Llama` does, and the type of K and V."""
    given = o.attention
    if given is None:
        return None, "f16"
    if given == "auto" and uses_gpu(weights.n_gpu_layers) and n_ctx <= DENSE_ON_A_GPU:
        echo(f"h2o-llama: a GPU reads up to {DENSE_ON_A_GPU:,} tokens faster with dense attention, as here", err=True)
        return None, "f16"
    h2o = default_config(o) if given == "auto" else given
    try:
        with Llama(weights, n_ctx=h2o.chunk_size, n_threads=1, h2o=h2o) as llm:
            return llm.h2o, llm._state.engine.origin.type_k
    except UnsupportedModelError as error:
        if given != "auto":
            raise
        echo(f"h2o-llama: {describe(error)}: attention is dense", err=True)
        return None, "f16"


def _room(weights: Model, h2o: object, n_ctx: int, further: list[str]) -> int:
    """Tokens of a slot, and says so if that is another number than was asked for."""
    if n_ctx == 0:
        return min(weights.n_ctx_train, _MOST_ROOM)
    if isinstance(h2o, H2OConfig) and h2o.has_bounded_memory:
        return n_ctx  # a slot is never full
    if any("context_length=" in argument for argument in further):
        return n_ctx  # --override-kv gives the server another trained length
    room = min(-(-n_ctx // _ROOM_STEP) * _ROOM_STEP, weights.n_ctx_train)
    if room != n_ctx:
        reason = f"a multiple of {_ROOM_STEP}, and at most the {weights.n_ctx_train:,} that the model was trained for"
        echo(f"h2o-llama: a slot holds {room:,} tokens, not {n_ctx:,}: {reason}", err=True)
    return min(n_ctx, room)


def _stretched(weights: Model) -> list[str]:
    """llama-server cuts a slot's room to the trained length; only of YaRN does it know that it makes that longer."""
    if weights.n_ctx_train == weights._handle.n_ctx_train or weights._rope.get("rope_scaling_type") == "yarn":
        return []
    return ["--override-kv", f"{weights.metadata['general.architecture']}.context_length=int:{weights.n_ctx_train}"]


def _origin(weights: Model, h2o: H2OConfig | None, type_kv: str, n_ctx: int, further: list[str]) -> SnapshotOrigin:
    """What the slots' states are of. Options that are passed on may change it, so with others it is another one."""
    environment = {name: value for name, value in os.environ.items() if name.startswith("LLAMA_ARG_")}
    return SnapshotOrigin(
        model=os.path.basename(weights.model_path),
        fingerprint=changed_fingerprint(weights.fingerprint, further, environment),
        n_vocab=weights.n_vocab,
        type_k=type_kv,
        type_v=type_kv,
        flash_attn="auto",
        h2o=None if h2o is None else h2o.for_context(n_ctx),
    )


def _cache_ram() -> list[Any]:
    """Texts that had to leave their slot take at most a quarter of the memory, unless the user says more."""
    memory = physical_memory()
    if memory is None or "LLAMA_ARG_CACHE_RAM" in os.environ:
        return []
    return ["--cache-ram", min(memory // 4 >> 20, _MOST_CACHE_RAM)]


def _check_port(host: str, port: int) -> None:
    try:
        socket.create_server((host, port)).close()
    except OSError as error:  # llama-server says what else is wrong with an address
        if error.errno == errno.EADDRINUSE:
            raise H2OError(f"port {port} is in use: --port N") from None


def serve(
    o: Options,
    passed_on: Annotated[
        list[str] | None, typer.Argument(metavar="-- OPTIONS", help="Further options of llama-server.")
    ] = None,
    host: Annotated[str, option("Address to listen at; 0.0.0.0: all.")] = "127.0.0.1",
    port: Annotated[int, option("Port to listen at.", min=0, max=65535)] = 8080,
    parallel: Annotated[int, option("Slots: requests computed at the same time.", min=1)] = 1,
    api_key: Annotated[
        str | None, option("Key that requests must have. Other users see it, not the variable.", envvar="LLAMA_API_KEY")
    ] = None,
    slot_save_path: Annotated[
        Path | None, option("Where clients may save and restore slots.", metavar="FOLDER", exists=True, file_okay=False)
    ] = None,
    library_folder: Annotated[
        str | None,
        option(
            "Keep texts there, and reuse a text with the same beginning.",
            "--library",
            metavar="FOLDER|off",
            show_default="the user's library",
        ),
    ] = None,
    cors_origins: Annotated[
        str | None,
        option("Web pages that may use the server, with commas: https://a.example, app://*, localhost, or * for all."),
    ] = None,
    sleep_idle_seconds: Annotated[
        int | None, option("Give the memory of the model back after so long without a request.", min=1)
    ] = None,
    embeddings: Annotated[bool, option("Serve embeddings instead of answers, without H2O.", "--embeddings")] = False,
) -> None:
    """Serve a model over HTTP, with a web page.

    The server is llama.cpp's, with OpenAI's interface and its own, and H2O in every slot. Options after -- are
    passed to llama-server.
    """
    if api_key is not None and not api_key.strip(", "):
        raise typer.BadParameter("there is no key in it", param_hint="--api-key")
    if api_key is not None and api_key != os.environ.get("LLAMA_API_KEY"):
        os.environ["LLAMA_API_KEY"] = api_key  # not among the arguments, which other users see: begin again without it
        os.execv(sys.executable, _without_key(sys.orig_argv))
    further = passed_on or []
    _check_port(host, port)
    if o.model.startswith("-"):  # no model is named: this is the first argument after --
        o, further = replace(o, model="demo"), [o.model, *further]
    on_gpu = o.gpu_layers if o.gpu_layers and uses_gpu(o.gpu_layers) else 0  # machines of --rpc have all operators
    with open_model(replace(o, gpu_layers=on_gpu, rpc=None, mmproj=None), "own") as weights:
        path = weights.model_path
        try:
            weights.tokenize("")
        except H2OError as error:
            raise H2OError(
                f"[serve] {path} has no tokenizer, and a server needs one: use Llama with token ids"
            ) from error
        if o.mmproj is not None:  # llama-server itself would serve with a file that is cut off
            open_projector(weights._handle, o.mmproj, 1, use_gpu=False, verbose=log.is_printed)
        stretched = _stretched(weights)
        n_ctx = _room(weights, o.attention, o.n_ctx, further)
        h2o, type_kv = (None, "f16") if embeddings else _possible(o, weights, n_ctx)
        is_chatml = weights.chat_template is None and not embeddings and "--chat-template" not in " ".join(further)
        tells_day = weights.chat_template is not None and weights._template.tells_day
        origin = _origin(weights, h2o, type_kv, n_ctx, further)
        own = weights.metadata.get(f"{weights.metadata['general.architecture']}.pooling_type", "0")
        pooling = ["--pooling", "mean"] if own == "0" and "LLAMA_ARG_POOLING" not in os.environ else []
    alias = Path(o.model).name.removesuffix(".gguf")
    arguments: list[Any] = ["--model", path, "--alias", alias, "--host", host, "--port", port]
    arguments += [*upstream_arguments(o.changes), *stretched]
    arguments += ["--parallel", parallel, "--ctx-size", n_ctx * parallel]
    layers = (-1 if o.rpc else 0) if o.gpu_layers is None else o.gpu_layers
    arguments += ["--gpu-layers", layers] if o.rpc or uses_gpu(-1) else ["--fit", "off"]  # no warning of no GPU
    arguments += [] if o.rpc is None else ["--rpc", ",".join(check_rpc_servers(o.rpc))]
    arguments += ["--cache-reuse", o.cache_reuse] if o.cache_reuse else []
    arguments += ["--threads", o.threads or available_cpus(), *_cache_ram()]
    if check.choice("serve", "matmul_kernels", o.matmul_kernels, MATMUL_KERNELS) != MATMUL_KERNELS[0]:
        arguments += ["--h2o-products", o.matmul_kernels]
    arguments += [] if o.mmproj is None else ["--mmproj", o.mmproj]
    arguments += ["--path", _PAGE, "--reasoning-budget", MAX_THOUGHTS]
    arguments += [] if "LLAMA_ARG_LOG_VERBOSITY" in os.environ else ["--log-verbosity", 1]  # errors
    arguments += [] if slot_save_path is None else ["--slot-save-path", slot_save_path]
    arguments += [] if cors_origins is None else ["--cors-origins", cors_origins]
    arguments += [] if sleep_idle_seconds is None else ["--sleep-idle-seconds", sleep_idle_seconds]
    if embeddings:  # a text is read in one step
        n_step = min(n_ctx, _LONGEST_EMBEDDED)
        arguments += ["--embeddings", "--ubatch-size", n_step, "--batch-size", n_step, *pooling]
    if h2o is not None:
        # One chunk at a time, and a token of each other slot: requests are cancelled in between.
        arguments += ["--ubatch-size", h2o.chunk_size, "--batch-size", h2o.chunk_size + parallel]
        arguments += ["--no-kv-unified", *upstream_options(h2o)]
        for part in "kv":
            if f"LLAMA_ARG_CACHE_TYPE_{part.upper()}" not in os.environ:
                arguments += [f"--cache-type-{part}", type_kv]
    folder = default_folder() if library_folder is None else Path(library_folder)
    is_kept = has_library(library_folder != "off" and not embeddings, folder, "--library off")
    texts = ServerTexts(folder if is_kept else None, origin, tells_day, o.cache_reuse)
    if is_chatml:
        echo("h2o-llama: this model has no chat template: messages are written as ChatML", err=True)
    raise typer.Exit(run_server([*map(str, arguments), *further], texts))


def _without_key(arguments: list[str]) -> list[str]:
    n = arguments.index("--") if "--" in arguments else len(arguments)
    pairs = zip(["", *arguments[: n - 1]], arguments[:n], strict=True)
    own = [word for last, word in pairs if "--api-key" not in (last, word) and not word.startswith("--api-key=")]
    return own + arguments[n:]


def run_server(arguments: list[str], texts: ServerTexts) -> int:
    """llama.cpp's server in this process, until a signal ends it. Returns its exit code."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)  # until the model is loaded; then the server has its own
    warnings.simplefilter("always", H2OWarning)
    sys.stdout.flush()
    sys.stderr.flush()
    code = _core.serve([os.fsencode(argument) for argument in ("llama-server", *arguments)], texts)
    texts.close()
    return code


def rpc_program(name: str = "ggml-rpc-server") -> Path:
    """In the extension module's folder, which an editable installation keeps elsewhere.

    Raises H2OError, with the remedy, if this build lacks it.
    """
    path = Path(_core.__file__).parent / "lib" / (f"{name}.exe" if os.name == "nt" else name)
    if not path.is_file():
        remedy = "install h2o-llama from its source with RPC: pip install . -C cmake.define.GGML_RPC=ON"
        raise H2OError(f"[rpc-server] {path} is missing: {remedy}")
    return path


def rpc_server(
    host: Annotated[
        str, option("Address to listen at. Clients need no password: use a trusted network only.")
    ] = "127.0.0.1",
    port: Annotated[int, option("Port to listen at.", min=1, max=65535)] = 50052,
    threads: Annotated[int | None, option("CPU threads; all cores by default.", "--threads", "-t", min=1)] = None,
) -> None:
    """Hold and compute layers for a model on another machine.

    It is llama.cpp's RPC server, with H2O's operators. There, name this machine by --rpc HOST:PORT, or
    Llama(…, rpc_servers="HOST:PORT").
    """
    n_threads = available_cpus() if threads is None else threads
    path = rpc_program()
    os.execv(path, [path.name, "--host", host, "--port", str(port), "--threads", str(n_threads)])  # signals reach it
