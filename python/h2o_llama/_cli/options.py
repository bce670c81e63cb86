"""Arguments and options that several commands have."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any

import typer

from h2o_llama import H2OConfig
from h2o_llama.config import OPTIONS as H2O
from h2o_llama.config import PRESETS, option_names
from h2o_llama.models._files import check_adapters
from h2o_llama.models.rope import SCALING_TYPES, check_rope
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


def option(kind: Any, name: str, help: str, metavar: str | None = None, default: Any = None) -> tuple[Any, Any]:
    """An entry of `Options`."""
    return Annotated[kind, typer.Option(name, metavar=metavar, help=help)], default


H2O_OPTIONS: Options = {
    "preset": option(
        str, "--h2o", f"How much a token attends to: {', '.join(PRESETS)}; or off.", "NAME", H2OConfig.preset
    ),
    "evict": option(bool, "--evict", "Drop tokens outside of memory sets: bounded memory.", None, False),
    "cold_store": option(str | None, "--cold-store", "With --evict: keep them in 'memory' or a folder.", "WHERE"),
    "h2o_set": option(list[str] | None, "--h2o-set", "A setting of `h2o-llama options`. Repeatable.", "KEY=VALUE"),
}
"""The same in every command."""


@dataclass(frozen=True)
class Group:
    """What annotates a command's parameter that has these options in its place; its value is make(**theirs)."""

    options: Options
    make: Callable[..., Any]


def check_word(option: str, word: str, words: Iterable[str]) -> None:
    """BadParameter if the value of an option is none of these."""
    if word not in words:
        raise typer.BadParameter(f"{word!r} is not one of {', '.join(words)}.", param_hint=option)


def _config(*, preset: str, h2o_set: Sequence[str] | None, **others: Any) -> H2OConfig | None:
    check_word("--h2o", preset, (*PRESETS, "off"))
    chosen = {key: value_of(key, text) for key, text in key_values(h2o_set).items()}
    return None if preset == "off" else H2OConfig.from_dict({"preset": preset, **others, **chosen})


Attention = Annotated[H2OConfig | None, Group(H2O_OPTIONS, _config)]
"""H2O's options; None if H2O is off."""


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


def _option(kind: Any, help: str, *names: str, metavar: str | None = None) -> tuple[Any, None]:
    option = typer.Option(*names, metavar=metavar, show_default=False, hidden=True, help=help)
    return Annotated[kind | None, option], None


OPTIONS: Options = {
    "lora": (
        Annotated[list[str] | None, typer.Option(metavar="FILE[:SCALE]", help="A LoRA adapter. Repeatable.")],
        None,
    ),
    "rope_scaling_type": _option(
        str,
        f"How positions beyond the trained ones are read: {', '.join(SCALING_TYPES)}.",
        "--rope-scaling",
        metavar="NAME",
    ),
    "rope_scale": _option(float, "Extend the trained context by this factor, as --rope-freq-scale 1/X does."),
    "rope_freq_base": _option(float, "The base of RoPE's frequencies."),
    "rope_freq_scale": _option(float, "Factor of positions."),
    "yarn_orig_ctx": _option(int, "YaRN: tokens of the texts that the model was trained for."),
    "yarn_ext_factor": _option(float, "YaRN: how far high frequencies stay unchanged; 0 is interpolation alone."),
    "yarn_attn_factor": _option(float, "YaRN: a factor of attention, with --yarn-ext-factor 0."),
    "yarn_beta_slow": _option(float, "YaRN: frequencies that turn less often are interpolated."),
    "yarn_beta_fast": _option(float, "YaRN: frequencies that turn more often stay unchanged."),
}
"""llama.cpp's names; --lora takes a scale, too."""


def _changes(*, lora: list[str] | None, rope_scale: float | None, **rope: Any) -> dict[str, Any]:
    if rope_scale is not None:
        if rope["rope_freq_scale"] is not None:
            raise typer.BadParameter("--rope-scale and --rope-freq-scale say the same: give one of them")
        if not rope_scale > 0:
            raise typer.BadParameter(f"--rope-scale must be above 0, got {rope_scale:g}")
        rope["rope_freq_scale"] = 1 / rope_scale
    changes: dict[str, Any] = {name: value for name, value in rope.items() if value is not None}
    if lora:
        changes["lora"] = [_adapter(text) for text in lora]
    return changes


Changes = Annotated[Mapping[str, Any], Group(OPTIONS, _changes)]
"""Arguments of `Model`, by their names."""

NONE: Mapping[str, Any] = MappingProxyType({})


def _adapter(text: str) -> tuple[Path, float]:
    """A file, and the scale after the last colon, unless a file has the whole name."""
    name, colon, scale = text.rpartition(":")
    if colon and not os.path.exists(text):
        try:
            return Path(name), float(scale)
        except ValueError:
            pass
    return Path(text), 1.0


def upstream_arguments(changes: Mapping[str, Any]) -> list[str]:
    """The same for llama.cpp's programs. Raises as `Model`."""
    rope = check_rope("serve", {name: value for name, value in changes.items() if name != "lora"})
    words = []
    for path, scale in check_adapters("serve", changes.get("lora")):
        name = os.fsdecode(path)
        if set(name) & set(':,"\n'):
            raise ValueError(f"[serve] llama-server cannot take a file whose name has a colon, comma or quote: {name}")
        words += ["--lora-scaled", f"{name}:{scale!r}"]
    for option, value in rope.items():
        flag = "rope-scaling" if option == "rope_scaling_type" else option.replace("_", "-")
        words += [f"--{flag}", str(value)]
    return words
