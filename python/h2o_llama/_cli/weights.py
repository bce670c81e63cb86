"""Options that change what a model computes: adapters, and how positions beyond the trained ones are read."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any

import typer

from h2o_llama._cli.options import Options, instead_of
from h2o_llama.models._loading import check_adapters
from h2o_llama.models.rope import SCALING_TYPES, check_rope

Changes = Mapping[str, Any]
"""Arguments of `Model`, by their names."""

NONE: Changes = MappingProxyType({})


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


def with_changes(command: Callable[..., None]) -> Callable[..., None]:
    """Gives a command these options in the place of its parameter `changes`."""
    return instead_of("changes", OPTIONS, _changes)(command)


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


def _adapter(text: str) -> tuple[Path, float]:
    """A file, and the scale after the last colon, unless a file has the whole name."""
    name, colon, scale = text.rpartition(":")
    if colon and not os.path.exists(text):
        try:
            return Path(name), float(scale)
        except ValueError:
            pass
    return Path(text), 1.0


def upstream_arguments(changes: Changes) -> list[str]:
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
