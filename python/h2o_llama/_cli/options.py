"""Arguments and options of the commands that read a text."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import wraps
from pathlib import Path
from typing import Annotated, Any

import typer

from h2o_llama import H2OConfig
from h2o_llama.config import OPTIONS as H2O
from h2o_llama.config import PRESETS, option_names
from h2o_llama.sequence.generating import DENSE_TAIL

KEYS = [name for name in H2O if name in option_names() and name not in ("evict", "cold_store")]
"""Of --h2o-set; the others have options of their own."""


Model = Annotated[str, typer.Argument(metavar="MODEL", help="A GGUF file, a name that `pull` lists, or 'demo'.")]
File = Annotated[
    Path | None,
    typer.Option("--file", "-f", help="A text, or a name that `pull` lists; - is standard input."),
]
Prompt = Annotated[str, typer.Option("--prompt", "-p", help="Text after that of the file, or alone.")]
Mmproj = Annotated[Path | None, typer.Option(help="The model's file for images (its 'mmproj').")]
Images = Annotated[
    list[Path] | None, typer.Option("--image", metavar="FILE", help="An image to ask about, with --mmproj. Repeatable.")
]

DenseTail = Annotated[
    int | None,
    typer.Option(
        min=0,
        show_default=f"{DENSE_TAIL}, and all of --prompt after a --file",
        help="Last tokens of the text that attend to everything before them.",
    ),
]
Temp = Annotated[float, typer.Option(min=0, help="Temperature; 0: the most probable token.")]
Seed = Annotated[int | None, typer.Option(min=0, help="Seed of the sampling; random by default.")]


def _machine(kind: Any, help: str, *names: str, **options: Any) -> Any:
    """An option that --help-all lists."""
    return Annotated[kind, typer.Option(*names, hidden=True, help=help, **options)]


Threads = _machine(int | None, "CPU threads; all cores by default.", "--threads", "-t", min=1)
ThreadsBatch = _machine(int | None, "CPU threads that read the prompt; by default as --threads.", min=1)
Mlock = _machine(bool, "Keep the weights in RAM, never swapped.", "--mlock")
NoMmap = _machine(bool, "Read the model's file instead of mapping it.", "--no-mmap")
GpuLayers = _machine(int, "Layers to keep on the GPU; -1 is all.", "--gpu-layers", min=-1)
RpcGpuLayers = _machine(
    int | None, "Layers on the GPU and by --rpc; -1 is all.", "--gpu-layers", min=-1, show_default="0, with --rpc -1"
)
Rpc = _machine(
    str | None, "Machines that hold layers: `h2o-llama rpc-server` runs there.", "--rpc", metavar="HOST:PORT,…"
)
MatmulKernels = _machine(
    str, "Whose kernels multiply by weights: own, upstream, or auto, which is own with H2O.", metavar="NAME"
)

Library = Annotated[
    bool,
    typer.Option("--library/--no-library", help="Keep the text in the library; reuse one with the same beginning."),
]


def max_tokens(least: int = 1) -> Any:
    """The option for a parameter of this name."""
    return typer.Option("--max-tokens", "-n", min=least, help="Maximum number of tokens to generate.")


Options = Mapping[str, tuple[Any, Any]]
"""By name: annotation and default."""

Preset = Annotated[
    str,
    typer.Option("--h2o", metavar="NAME", help=f"How much a token attends to: {', '.join(PRESETS)}; or off."),
]
Evict = Annotated[bool, typer.Option("--evict", help="Drop tokens outside of memory sets: bounded memory.")]
ColdStore = Annotated[
    str | None, typer.Option(metavar="WHERE", help="With --evict: keep them in 'memory' or a folder.")
]
Settings = Annotated[
    list[str] | None,
    typer.Option("--h2o-set", metavar="KEY=VALUE", help="A setting of `h2o-llama options`. Repeatable."),
]

H2O_OPTIONS: Options = {
    "preset": (Preset, H2OConfig.preset),
    "evict": (Evict, False),
    "cold_store": (ColdStore, None),
    "h2o_set": (Settings, None),
}
"""The same in every command."""


def instead_of(parameter: str, options: Options, make: Callable[..., Any]) -> Callable[..., Callable[..., None]]:
    """Gives a command these options in the place of a parameter, whose value is make(**theirs)."""

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @wraps(command)
        def run(**given: Any) -> None:
            taken = {name: given.pop(name) for name in options}
            command(**given, **{parameter: make(**taken)})

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


def check_word(option: str, word: str, words: Iterable[str]) -> None:
    """BadParameter if the value of an option is none of these."""
    if word not in words:
        raise typer.BadParameter(f"{word!r} is not one of {', '.join(words)}.", param_hint=option)


def with_h2o(command: Callable[..., None]) -> Callable[..., None]:
    """Gives a command H2O's options in the place of its parameter `h2o`, which is None if H2O is off."""

    def make(*, preset: str, h2o_set: Sequence[str] | None, **others: Any) -> H2OConfig | None:
        check_word("--h2o", preset, (*PRESETS, "off"))
        chosen = {key: value_of(key, text) for key, text in key_values(h2o_set).items()}
        return None if preset == "off" else H2OConfig.from_dict({"preset": preset, **others, **chosen})

    return instead_of("h2o", H2O_OPTIONS, make)(command)


def key_values(pairs: Sequence[str] | None) -> dict[str, str]:
    """What --h2o-set was given, by key. The last value of a key counts."""
    found = {}
    for pair in pairs or ():
        key, equals, text = pair.partition("=")
        if key not in KEYS or not equals:
            wanted = "KEY=VALUE, with a key that `h2o-llama options` lists"
            raise typer.BadParameter(f"{pair!r} is not {wanted}.", param_hint="--h2o-set")
        found[key] = text
    return found


def value_of(key: str, text: str) -> Any:
    """The value of a setting; the text where it is of another kind, which H2OConfig refuses."""
    kind = H2O[key].kind
    if kind == "layers":
        return layers(text)
    if kind == "switch":
        check_word("--h2o-set", text, ("on", "off"))
        return text == "on"
    try:
        return int(text) if kind == "number" else float(text) if kind == "part" else text
    except ValueError:
        return text


def layers(text: str) -> tuple[int, ...]:
    """Numbers and ranges with commas between them."""
    found: list[int] = []
    for part in text.split(","):
        first, dash, last = part.partition("-")
        end = last if dash else first
        if not (first.isdecimal() and end.isdecimal() and int(first) <= int(end) < 512):
            wanted = "numbers below 512 and ranges such as 0-2,11"
            raise typer.BadParameter(f"dense_layers must be {wanted}, got {text!r}", param_hint="--h2o-set")
        found += range(int(first), int(end) + 1)
    return tuple(found)


def upstream_options(h2o: H2OConfig) -> list[str]:
    """A configuration as options of llama.cpp's programs: all of it, as their defaults are others."""
    return [word for name, text in h2o.as_text().items() if text for word in (f"--h2o-{H2O[name].flag}", text)]
