"""Options of the commands that measure several configurations: each takes one value or more."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, TypeVar

import typer

from h2o_llama.cli.options import DEFAULTS, Options, instead_of
from h2o_llama.config import SCORERS
from h2o_llama.eval import Setting, evicting, sweep

T = TypeVar("T")

PANEL = "Settings to measure"

Text = Annotated[
    Path | None, typer.Option(help="Text file, or a text's name; - is standard input. By default Python's sources.")
]
Plot = Annotated[Path | None, typer.Option(help="Folder to draw pictures into.")]
JsonFile = Annotated[
    Path | None, typer.Option("--json", help="Write all figures to this file; -: to standard output, not tables.")
]
Locals = Annotated[str, typer.Option(rich_help_panel=PANEL, help="L, one or more: 64,128.")]
Heavies = Annotated[str, typer.Option(rich_help_panel=PANEL, help="H, one or more.")]
Lookups = Annotated[str, typer.Option(rich_help_panel=PANEL, help="B, one or more.")]
Retrievals = Annotated[
    str, typer.Option(rich_help_panel=PANEL, help="How they are found: ngrams (by the text), index (of keys), or both.")
]
Sinks = Annotated[str, typer.Option(rich_help_panel=PANEL, help="A, one or more.")]
Schedules = Annotated[str, typer.Option(rich_help_panel=PANEL, help="single_pass, two_phase, or both.")]
Scorers = Annotated[
    str, typer.Option(rich_help_panel=PANEL, help=f"How heavy hitters are chosen: {', '.join(SCORERS)}.")
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
Decodes = Annotated[
    str,
    typer.Option(
        rich_help_panel=PANEL,
        help="What generated tokens attend to: full, memory, or both. Prefills are measured with the first.",
    ),
]

OPTIONS: Options = {
    "local": (Locals, str(DEFAULTS.local_window)),
    "heavy": (Heavies, str(DEFAULTS.heavy_budget)),
    "lookup": (Lookups, str(DEFAULTS.lookup_budget)),
    "retrieval": (Retrievals, DEFAULTS.retrieval),
    "sinks": (Sinks, str(DEFAULTS.sink_tokens)),
    "schedule": (Schedules, DEFAULTS.schedule),
    "decode": (Decodes, DEFAULTS.decode),
    "scorer": (Scorers, DEFAULTS.scorer),
    "evict": (Evict, False),
    "cold_store": (ColdStore, None),
}


def with_settings(*left_out: str, **defaults: str) -> Callable[..., Callable[..., None]]:
    """All these options but some, and with some other defaults, for the parameter `settings`."""
    chosen = {
        name: (annotation, defaults.get(name, default))
        for name, (annotation, default) in OPTIONS.items()
        if name not in left_out
    }
    return instead_of("settings", chosen, lambda _, **given: settings(**given))


def values(option: str, text: str, kind: Callable[[str], T]) -> list[T]:
    """The values of a list such as "64,128"."""
    try:
        return [kind(word.strip()) for word in text.split(",") if word.strip()]
    except ValueError:
        raise typer.BadParameter(f"{option} must be numbers with commas between them, got {text!r}") from None


def settings(
    *,
    local: str,
    heavy: str,
    sinks: str,
    lookup: str,
    schedule: str,
    scorer: str,
    retrieval: str,
    evict: bool,
    cold_store: str | None,
    decode: str = DEFAULTS.decode,
) -> list[Setting]:
    """All combinations of the options' values."""
    kept = sweep(
        local=values("--local", local, int),
        heavy=values("--heavy", heavy, int),
        sinks=values("--sinks", sinks, int),
        lookup=values("--lookup", lookup, int),
        schedule=values("--schedule", schedule, str),
        scorer=values("--scorer", scorer, str),
        retrieval=values("--retrieval", retrieval, str),
        decode=values("--decode", decode, str),
    )
    evicted = evicting(kept) if evict else []
    stored = evicting(kept, cold_store) if cold_store is not None else []
    return [*kept, *evicted, *stored]
