"""Options of the commands that measure several configurations: each takes one value or more."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from h2o_llama._cli.options import DEFAULTS, PANEL, Options, check_preset, flag, instead_of, shown_default, summary
from h2o_llama.config import OPTIONS as H2O
from h2o_llama.config import PRESETS
from h2o_llama.eval import Setting, evicting, sweep

T = TypeVar("T")

Text = Annotated[
    Path | None,
    typer.Option(
        "--file", "-f", help="Text file, or a name that `pull` lists; - is standard input. By default Python's sources."
    ),
]
Evict = Annotated[
    bool,
    typer.Option(
        "--evict", rich_help_panel=PANEL, help="Measure eviction too, with H + B heavy hitters and nothing looked up."
    ),
]
ColdStore = Annotated[
    str | None,
    typer.Option(
        metavar="WHERE",
        rich_help_panel=PANEL,
        help="Measure eviction to a cold store too, with as many looked up: memory, or a folder for a temporary file.",
    ),
]
_SWEPT = ("local_window", "heavy_budget", "lookup_budget", "retrieval", "sink_tokens", "schedule", "scorer", "decode")
"""The parameters of `H2OConfig` of which there may be several values, the last one changing fastest."""


def _option(name: str, default: str = "") -> tuple[Any, str]:
    """The option for values of a parameter: annotation and default."""
    option = typer.Option(
        rich_help_panel=PANEL,
        show_default=True if default else shown_default(name),
        help=f"{summary(name)}; one or more, with commas.",
    )
    return Annotated[str, option], default


_PRESETS = typer.Option(
    "--h2o",
    rich_help_panel=PANEL,
    help=f"How much a token attends to: {', '.join(PRESETS)}; one or more, with commas.",
)


def with_settings(*left_out: str, **defaults: str) -> Callable[..., Callable[..., None]]:
    """The panel of H2O's options but some, and with some other defaults, for `settings`. The command has --chunk."""
    chosen: Options = {
        "preset": (Annotated[str, _PRESETS], DEFAULTS.preset),
        **{flag(name): _option(name, defaults.get(name, "")) for name in _SWEPT if name not in left_out},
        "evict": (Evict, False),
        "cold_store": (ColdStore, None),
    }
    return instead_of("settings", chosen, lambda others, **given: settings(others["chunk"], **given))


def values(option: str, text: str, kind: Callable[[str], T]) -> list[T]:
    """The values of a list such as "64,128"."""
    try:
        return [kind(word.strip()) for word in text.split(",") if word.strip()]
    except ValueError:
        raise typer.BadParameter(f"{option} must be numbers with commas between them, got {text!r}") from None


def settings(chunk_size: int, *, evict: bool, cold_store: str | None, **texts: str) -> list[Setting]:
    """All combinations of the options' values. What has none follows from the others."""
    options = {name: flag(name) for name in _SWEPT} | {"preset": "preset"}
    chosen = {
        name: values(f"--{option}", texts[option], int if name in H2O and H2O[name].kind == "number" else str)
        for name, option in options.items()
        if texts.get(option)
    }
    for word in values("--h2o", texts.get("preset", ""), str):
        check_preset(word, PRESETS)
    kept = sweep(chunk_size=chunk_size, **chosen)
    evicted = evicting(kept) if evict else []
    stored = evicting(kept, cold_store) if cold_store is not None else []
    return [*kept, *evicted, *stored]
