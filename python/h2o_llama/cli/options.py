"""Arguments and options of the commands that read a text."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from h2o_llama import H2OConfig
from h2o_llama.config import SCORERS
from h2o_llama.sequence import DENSE_TAIL

DEFAULTS = H2OConfig()
EVICTING = H2OConfig(evict=True)
CHUNK_SIZE = 1024

Model = Annotated[str, typer.Argument(metavar="MODEL", help="A GGUF file, a name that `pull` lists, or 'demo'.")]
File = Annotated[
    Path | None, typer.Option("--file", "-f", help="Text file, or a name that `pull` lists; - is standard input.")
]
Prompt = Annotated[str, typer.Option("--prompt", "-p", help="Text after that of the file, or alone.")]


def _size(default: int, text: str) -> Any:
    """An option for a size that goes with the chunk's where it is not given."""
    return typer.Option(min=0, show_default=f"{default}, less with smaller chunks", help=text)


Local = Annotated[
    int | None, _size(DEFAULTS.local_window, "L: tokens before a chunk that its memory set always holds.")
]
Heavy = Annotated[
    int | None,
    _size(
        DEFAULTS.heavy_budget,
        f"H: heavy hitters that a memory set holds; {EVICTING.heavy_budget} if what is evicted is gone.",
    ),
]
Sinks = Annotated[int | None, _size(DEFAULTS.sink_tokens, "A: first tokens of the prompt that every memory set holds.")]
Lookup = Annotated[
    int | None,
    _size(
        DEFAULTS.lookup_budget,
        "B: further tokens that every token attends to; 0 is none, as if what is evicted is gone.",
    ),
]
Retrieval = Annotated[
    Literal["ngrams", "index"],
    typer.Option(help="Find them by the text, or by an index of the keys, for every layer and head."),
]
Scorer = Annotated[str, typer.Option(metavar="NAME", help=f"How heavy hitters are ranked: {', '.join(SCORERS)}.")]
Schedule = Annotated[
    Literal["single_pass", "two_phase"],
    typer.Option(help="Each chunk once, with its memory set; or all chunks alone, then again with the memory sets."),
]
Decode = Annotated[
    Literal["full", "memory"] | None,
    typer.Option(
        show_default=f"{DEFAULTS.decode}, with --evict {EVICTING.decode}",
        help="Generated tokens attend to everything, or to what a prompt's tokens attend to.",
    ),
]
Evict = Annotated[
    bool, typer.Option("--evict", help="Drop what no memory set holds: the cache does not grow with the text.")
]
ColdStore = Annotated[
    str | None,
    typer.Option(
        metavar="WHERE",
        help="With --evict: where it goes, to be looked up there: memory, or a folder for a temporary file.",
    ),
]
Dense = Annotated[bool, typer.Option("--dense", help="Without H2O: llama.cpp's dense attention.")]
DenseTail = Annotated[
    int | None,
    typer.Option(
        min=0,
        show_default=f"{DENSE_TAIL}, and all of --prompt after a --file",
        help="Last tokens of the text that attend to everything before them.",
    ),
]
Chunk = Annotated[int, typer.Option(min=1, help="S: tokens per chunk.")]
Threads = Annotated[int | None, typer.Option("--threads", "-t", min=1, help="CPU threads; all cores by default.")]
GpuLayers = Annotated[int, typer.Option("--gpu-layers", min=-1, help="Layers to keep on the GPU; -1 is all.")]
RpcGpuLayers = Annotated[
    int | None,
    typer.Option(
        "--gpu-layers",
        min=-1,
        show_default="0, with --rpc -1",
        help="Layers on the GPU and by --rpc; -1 is all.",
    ),
]
Rpc = Annotated[
    str | None,
    typer.Option("--rpc", metavar="HOST:PORT,…", help="Machines that hold layers: `h2o-llama rpc-server` runs there."),
]

Options = Mapping[str, tuple[Any, Any]]
"""By name: annotation and default."""

H2O_OPTIONS: Options = {
    "local": (Local, None),
    "heavy": (Heavy, None),
    "lookup": (Lookup, None),
    "retrieval": (Retrieval, DEFAULTS.retrieval),
    "sinks": (Sinks, None),
    "scorer": (Scorer, DEFAULTS.scorer),
    "schedule": (Schedule, DEFAULTS.schedule),
    "decode": (Decode, None),
    "evict": (Evict, False),
    "cold_store": (ColdStore, None),
}
_FIELDS = {"local": "local_window", "heavy": "heavy_budget", "sinks": "sink_tokens", "lookup": "lookup_budget"}


def instead_of(parameter: str, options: Options, make: Callable[..., Any]) -> Callable[..., Callable[..., None]]:
    """Gives a command these options in the place of a parameter, whose value is make(the others, **theirs)."""

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @wraps(command)
        def run(**given: Any) -> None:
            taken = {name: given.pop(name) for name in options}
            command(**given, **{parameter: make(given, **taken)})

        signature = inspect.signature(command, eval_str=True)
        parameters: list[inspect.Parameter] = []
        for own in signature.parameters.values():
            if own.name == parameter:
                parameters += [
                    own.replace(name=name, annotation=annotation, default=default)
                    for name, (annotation, default) in options.items()
                ]
            else:
                parameters.append(own)
        run.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        return run

    return decorate


def with_h2o(*names: str) -> Callable[..., Callable[..., None]]:
    """These options of H2O, by default all, for the parameter `h2o`; None with --dense. The command has --chunk."""

    def make(others: Mapping[str, Any], **chosen: Any) -> H2OConfig | None:
        if others.get("dense"):
            return None
        return config(others["chunk"], **{_FIELDS.get(name, name): value for name, value in chosen.items()})

    return instead_of("h2o", {name: H2O_OPTIONS[name] for name in names or H2O_OPTIONS}, make)


def layers(text: str) -> tuple[int, ...]:
    """Numbers and ranges with commas between them."""
    found: list[int] = []
    for part in text.split(","):
        first, dash, last = part.partition("-")
        end = last if dash else first
        if not (first.isdecimal() and end.isdecimal() and int(end) < 512):
            raise typer.BadParameter(f"layers must be numbers below 512 and ranges such as 0-2,11, got {text!r}")
        found += range(int(first), int(end) + 1)
    return tuple(found)


def config(chunk: int, **chosen: Any) -> H2OConfig:
    """What was chosen, None being nothing, and the defaults for chunks of this size."""
    return H2OConfig.for_chunk_size(chunk, **{name: value for name, value in chosen.items() if value is not None})
