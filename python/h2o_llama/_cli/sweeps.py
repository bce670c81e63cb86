"""The settings of H2O: options of the commands that measure several, and `h2o-llama options`, which lists them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, TypeVar

import typer
from rich.console import Console
from rich.table import Table

from h2o_llama import H2OConfig
from h2o_llama._cli.options import KEYS, Group, Options, check_word, key_values, option, value_of
from h2o_llama._core import H2OOption
from h2o_llama.config import OPTIONS, PRESETS
from h2o_llama.eval import Setting, evicting, sweep

T = TypeVar("T")

Text = Annotated[
    Path | None,
    typer.Option("--file", "-f", help="A text, or a name that `pull` lists; - is standard input; or Python's sources."),
]


_OPTIONS: Options = {
    "preset": option(str, "--h2o", f"{', '.join(PRESETS)}; one or more, with commas.", "NAMES", H2OConfig.preset),
    "evict": option(bool, "--evict", "Measure eviction too, with H + B heavy hitters and no lookups.", None, False),
    "cold_store": option(str | None, "--cold-store", "Measure eviction to 'memory' or a folder, too.", "WHERE"),
    "h2o_set": option(
        list[str] | None, "--h2o-set", "See `h2o-llama options`; one or more values; repeatable.", "KEY=VALUES"
    ),
}


def settings_group(**defaults: str) -> Group:
    """H2O's options with several values each. `defaults` are values of --h2o-set."""
    return Group(_OPTIONS, partial(settings, defaults))


def values(option: str, text: str, kind: Callable[[str], T]) -> list[T]:
    """The values of a list such as "64,128"."""
    try:
        return [kind(word.strip()) for word in text.split(",") if word.strip()]
    except ValueError:
        raise typer.BadParameter(f"{option} must be numbers with commas between them, got {text!r}") from None


def settings(
    defaults: Mapping[str, str], *, preset: str, evict: bool, cold_store: str | None, h2o_set: Sequence[str] | None
) -> list[Setting]:
    """All combinations of the options' values. Settings without an option follow from the others."""
    presets = values("--h2o", preset, str)
    for word in presets:
        check_word("--h2o", word, PRESETS)
    texts = {**defaults, **key_values(h2o_set)}
    chunk_size = value_of("chunk_size", texts.pop("chunk_size", str(H2OConfig.chunk_size)))
    chosen = {
        key: [value_of(key, word) for word in ([text] if key == "dense_layers" else values(key, text, str))]
        for key, text in texts.items()
    }
    kept = sweep(chunk_size=chunk_size, preset=presets, **chosen)
    evicted = evicting(kept) if evict else []
    stored = evicting(kept, cold_store) if cold_store is not None else []
    return [*kept, *evicted, *stored]


def chunk_size_of(settings: Sequence[Setting]) -> int:
    """That of all of them."""
    h2o = settings[0].h2o
    assert h2o is not None  # a sweep has no dense setting
    return h2o.chunk_size


_DEFAULTS = H2OConfig()
_CASES = {"--evict": H2OConfig(evict=True), "--h2o-set retrieval=ngrams": H2OConfig(retrieval="ngrams")}
_RANGES = {"part": "0 to 1", "layers": "layers"}


def list_settings() -> None:
    """List the settings of H2O that --h2o-set takes."""
    table = Table(box=None, header_style="bold")
    for title in ("Key", "Default", "Values", "Meaning"):
        table.add_column(title, max_width=13 if title == "Values" else None)
    for key in KEYS:
        option = OPTIONS[key]
        table.add_row(key, _DEFAULTS.as_text().get(key) or "none", _values(option), option.help)
    console = Console()
    console.print(table)
    for case, config in _CASES.items():
        texts = config.as_text().items()
        others = [f"{key}={text}" for key, text in texts if key in KEYS and text != _DEFAULTS.as_text().get(key)]
        console.print(f"\nDefaults with {case}: {', '.join(others)}.", highlight=False)
    console.print(f"\nSizes are smaller in chunks below {_DEFAULTS.chunk_size:,} tokens.", highlight=False)


def _values(option: H2OOption) -> str:
    if option.choices:
        return ", ".join(option.choices)
    return _RANGES.get(option.kind, f"{option.min:.0f} or more")
