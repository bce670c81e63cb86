"""Arguments and options of the commands that read a text."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import wraps
from pathlib import Path
from typing import Annotated, Any

import typer

from h2o_llama import H2OConfig
from h2o_llama.config import OPTIONS as H2O
from h2o_llama.config import option_names
from h2o_llama.sequence.generating import DENSE_TAIL

DEFAULTS = H2OConfig()
NGRAMS = H2OConfig(retrieval="ngrams")
EVICTING = H2OConfig(evict=True)
CHUNK_SIZE = DEFAULTS.chunk_size

_LESS = ", less with smaller chunks"
_FOLLOWING = {
    "local_window": f"{DEFAULTS.local_window}{_LESS}",
    "heavy_budget": f"{DEFAULTS.heavy_budget}; ngrams {NGRAMS.heavy_budget}; --evict {EVICTING.heavy_budget}{_LESS}",
    "sink_tokens": f"{DEFAULTS.sink_tokens}{_LESS}",
    "lookup_budget": f"{DEFAULTS.lookup_budget}; ngrams {NGRAMS.lookup_budget}; none if what is evicted is gone{_LESS}",
    "retrieval": f"{DEFAULTS.retrieval}; {NGRAMS.retrieval} with --evict or layers on a GPU",
    "decode": f"{DEFAULTS.decode}, with --evict {EVICTING.decode}",
}
"""What is said of defaults that depend on other options."""


def flag(name: str) -> str:
    """Of a parameter of `H2OConfig`: its option's name, as an argument."""
    return H2O[name].flag.replace("-", "_")


def summary(name: str) -> str:
    """What the option does, and its choices."""
    option = H2O[name]
    choices = f": {', '.join(option.choices)}" if option.kind == "choice" else ""
    return option.help[0].upper() + option.help[1:] + choices


def _option(name: str) -> tuple[Any, Any]:
    """Annotation and default. What is not given, follows."""
    option, text = H2O[name], summary(name) + "."
    shown = _FOLLOWING.get(name, option.default or "none")
    if option.kind == "switch":
        return Annotated[bool, typer.Option(f"--{option.flag}", help=text)], False
    if option.kind == "number":
        return Annotated[int | None, typer.Option(min=int(option.min), show_default=shown, help=text)], None
    if option.kind == "part":
        return Annotated[float | None, typer.Option(min=0, max=1, show_default=shown, help=text)], None
    metavar = {"choice": "NAME", "layers": "LIST", "text": "WHERE"}[option.kind]
    return Annotated[str | None, typer.Option(metavar=metavar, show_default=shown, help=text)], None


Model = Annotated[str, typer.Argument(metavar="MODEL", help="A GGUF file, a name that `pull` lists, or 'demo'.")]
File = Annotated[
    Path | None, typer.Option("--file", "-f", help="Text file, or a name that `pull` lists; - is standard input.")
]
Prompt = Annotated[str, typer.Option("--prompt", "-p", help="Text after that of the file, or alone.")]


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

Products = Annotated[str, typer.Option(metavar="NAME", help=summary("products") + ".")]

Options = Mapping[str, tuple[Any, Any]]
"""By name: annotation and default."""

H2O_OPTIONS: Options = {name: _option(name) for name in option_names() if name != "chunk_size"}

Preset = Annotated[
    str,
    typer.Option(
        "--h2o", metavar="NAME", help="How much a token attends to: fast, balanced, faithful; off is --dense."
    ),
]


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
    """--h2o, and options for these parameters of `H2OConfig` (by default all), for the parameter `h2o`.

    It is None if H2O is off. The command has --chunk.
    """
    flags = {flag(name): name for name in names or H2O_OPTIONS}

    def make(others: Mapping[str, Any], preset: str, **chosen: Any) -> H2OConfig | None:
        if others.get("dense") or preset == "off":
            return None
        return config(others["chunk"], preset=preset, **{flags[name]: value for name, value in chosen.items()})

    own = {"preset": (Preset, DEFAULTS.preset)}
    return instead_of("h2o", own | {name: H2O_OPTIONS[flags[name]] for name in flags}, make)


def layers(text: str) -> tuple[int, ...]:
    """Numbers and ranges with commas between them."""
    found: list[int] = []
    for part in text.split(","):
        first, dash, last = part.partition("-")
        end = last if dash else first
        if not (first.isdecimal() and end.isdecimal() and int(first) <= int(end) < 512):
            raise typer.BadParameter(f"layers must be numbers below 512 and ranges such as 0-2,11, got {text!r}")
        found += range(int(first), int(end) + 1)
    return tuple(found)


def config(chunk: int, **chosen: Any) -> H2OConfig:
    """What was chosen, None being nothing, in chunks of this size."""
    given = {name: value for name, value in chosen.items() if value is not None}
    if "dense_layers" in given:
        given["dense_layers"] = layers(given["dense_layers"])
    return H2OConfig(chunk_size=chunk, **given)
