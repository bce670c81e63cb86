"""Arguments and options of the commands that read a text."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from functools import wraps
from pathlib import Path
from typing import Annotated, Any

import typer

from h2o_llama import H2OConfig
from h2o_llama.config import OPTIONS as H2O
from h2o_llama.config import PRESETS, option_names
from h2o_llama.sequence.generating import DENSE_TAIL

DEFAULTS = H2OConfig()
NGRAMS = H2OConfig(retrieval="ngrams")
EVICTING = H2OConfig(evict=True)
PANEL = "H2O"

_LESS = ", less with smaller chunks"
_FOLLOWING = {
    "local_window": f"{DEFAULTS.local_window}{_LESS}",
    "heavy_budget": f"{DEFAULTS.heavy_budget}; ngrams {NGRAMS.heavy_budget}; --evict {EVICTING.heavy_budget}{_LESS}",
    "sink_tokens": f"{DEFAULTS.sink_tokens}{_LESS}",
    "lookup_budget": f"{DEFAULTS.lookup_budget}; ngrams {NGRAMS.lookup_budget}; none if what is evicted is gone{_LESS}",
    "retrieval": f"{DEFAULTS.retrieval}; {NGRAMS.retrieval} with --evict or on a device without an index",
    "positions": f"{EVICTING.positions}; {DEFAULTS.positions} with --cold-store, and where keys cannot be rotated",
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


def shown_default(name: str) -> str:
    """The default in words."""
    return _FOLLOWING.get(name, H2O[name].default or "none")


def _option(name: str) -> tuple[Any, Any]:
    """Annotation and default. What is not given, follows."""
    option, text, shown = H2O[name], summary(name) + ".", shown_default(name)
    if option.kind == "switch":
        return Annotated[bool, typer.Option(f"--{option.flag}", rich_help_panel=PANEL, help=text)], False
    limits: dict[str, Any] = {"rich_help_panel": PANEL, "show_default": shown, "help": text}
    if option.kind == "number":
        return Annotated[int | None, typer.Option(min=int(option.min), **limits)], None
    if option.kind == "part":
        return Annotated[float | None, typer.Option(min=0, max=1, **limits)], None
    metavar = {"choice": "NAME", "layers": "LIST", "text": "WHERE"}[option.kind]
    return Annotated[str | None, typer.Option(metavar=metavar, **limits)], None


Model = Annotated[str, typer.Argument(metavar="MODEL", help="A GGUF file, a name that `pull` lists, or 'demo'.")]
File = Annotated[
    Path | None, typer.Option("--file", "-f", help="Text file, or a name that `pull` lists; - is standard input.")
]
Prompt = Annotated[str, typer.Option("--prompt", "-p", help="Text after that of the file, or alone.")]


Mmproj = Annotated[
    Path | None, typer.Option(metavar="FILE", help="The GGUF file that reads images for this model (its 'mmproj').")
]
Images = Annotated[
    list[Path] | None,
    typer.Option("--image", metavar="FILE", help="An image to ask about, by --mmproj. Can be repeated."),
]

DenseTail = Annotated[
    int | None,
    typer.Option(
        min=0,
        show_default=f"{DENSE_TAIL}, and all of --prompt after a --file",
        help="Last tokens of the text that attend to everything before them.",
    ),
]
Temp = Annotated[float, typer.Option(min=0, help="Temperature; 0 always takes the most probable token.")]
Seed = Annotated[int | None, typer.Option(min=0, help="Seed of the sampling; random by default.")]
MACHINE = "Machine"
Threads = Annotated[
    int | None,
    typer.Option("--threads", "-t", min=1, rich_help_panel=MACHINE, help="CPU threads; all cores by default."),
]
ThreadsBatch = Annotated[
    int | None,
    typer.Option(
        min=1, rich_help_panel=MACHINE, help="CPU threads that read the prompt; by default those of --threads."
    ),
]
Mlock = Annotated[
    bool, typer.Option("--mlock", rich_help_panel=MACHINE, help="Keep the weights in RAM, never swapped.")
]
NoMmap = Annotated[
    bool, typer.Option("--no-mmap", rich_help_panel=MACHINE, help="Read the model's file instead of mapping it.")
]
GpuLayers = Annotated[
    int, typer.Option("--gpu-layers", min=-1, rich_help_panel=MACHINE, help="Layers to keep on the GPU; -1 is all.")
]
RpcGpuLayers = Annotated[
    int | None,
    typer.Option(
        "--gpu-layers",
        min=-1,
        rich_help_panel=MACHINE,
        show_default="0, with --rpc -1",
        help="Layers on the GPU and by --rpc; -1 is all.",
    ),
]
Rpc = Annotated[
    str | None,
    typer.Option(
        "--rpc",
        metavar="HOST:PORT,…",
        rich_help_panel=MACHINE,
        help="Machines that hold layers: `h2o-llama rpc-server` runs there.",
    ),
]

Library = Annotated[
    bool,
    typer.Option(
        "--library/--no-library",
        help="Keep what is read in the user's library, and go on from a text there that begins alike.",
    ),
]
Products = Annotated[str, typer.Option(metavar="NAME", help=summary("products") + ".")]


def max_tokens(least: int = 1) -> Any:
    """The option for a parameter of this name."""
    return typer.Option("--max-tokens", "-n", min=least, help="Tokens to generate at most.")


Options = Mapping[str, tuple[Any, Any]]
"""By name: annotation and default."""

Preset = Annotated[
    str,
    typer.Option(
        "--h2o",
        metavar="NAME",
        rich_help_panel=PANEL,
        help=f"How much a token attends to: {', '.join(PRESETS)}; or off: llama.cpp's dense attention.",
    ),
]
Chunk = Annotated[int, typer.Option(min=1, rich_help_panel=PANEL, help="S: tokens per chunk.")]

H2O_OPTIONS: Options = {
    "preset": (Preset, DEFAULTS.preset),
    flag("chunk_size"): (Chunk, DEFAULTS.chunk_size),
    **{flag(name): _option(name) for name in option_names() if name != "chunk_size"},
}
"""The panel that is the same in every command."""


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


def check_preset(word: str, words: Iterable[str]) -> None:
    """BadParameter if the value of --h2o is none of these."""
    if word not in words:
        raise typer.BadParameter(f"{word!r} is not one of {', '.join(words)}.", param_hint="--h2o")


def with_h2o(command: Callable[..., None]) -> Callable[..., None]:
    """Gives a command the panel of H2O's options in the place of its parameter `h2o`, which is None if H2O is off."""
    names = {flag(name): name for name in option_names()} | {"preset": "preset"}

    def make(_: Mapping[str, Any], **chosen: Any) -> H2OConfig | None:
        check_preset(chosen["preset"], (*PRESETS, "off"))
        return None if chosen["preset"] == "off" else config({names[flag]: value for flag, value in chosen.items()})

    return instead_of("h2o", H2O_OPTIONS, make)(command)


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


def config(chosen: Mapping[str, Any]) -> H2OConfig:
    """What was chosen, None being nothing."""
    given = {name: value for name, value in chosen.items() if value is not None}
    if "dense_layers" in given:
        given["dense_layers"] = layers(given["dense_layers"])
    return H2OConfig(**given)
