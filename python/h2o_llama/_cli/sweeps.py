"""The settings of H2O: options of the commands that measure several, and `h2o-llama options`, which lists them."""

from collections.abc import Callable, Sequence
from typing import TypeVar

import typer
from rich.console import Console
from rich.table import Table

from h2o_llama import H2OConfig
from h2o_llama._cli.options import KEYS, Options, check_word, default_config, key_values, value_of
from h2o_llama._core import H2OOption
from h2o_llama.config import OPTIONS, PRESETS
from h2o_llama.eval import Setting, evicting, sweep

T = TypeVar("T")


def values(option: str, text: str, kind: Callable[[str], T]) -> list[T]:
    """The values of a list such as "64,128"."""
    try:
        return [kind(word.strip()) for word in text.split(",") if word.strip()]
    except ValueError:
        raise typer.BadParameter(f"{option} must be numbers with commas between them, got {text!r}") from None


def settings(o: Options, **defaults: str) -> list[Setting]:
    """All combinations of the values that H2O's options have. Settings without one follow from the others."""
    presets = values("--h2o", o.h2o, str)
    for word in presets:
        check_word("--h2o", word, ("auto", *PRESETS))
    texts = {**defaults, **key_values(o.h2o_set)}
    chunk_size = value_of("chunk_size", texts.pop("chunk_size", str(default_config(o).chunk_size)))
    chosen = {
        key: [value_of(key, word) for word in ([text] if key == "dense_layers" else values(key, text, str))]
        for key, text in texts.items()
    }
    kept = sweep(chunk_size=chunk_size, preset=["balanced" if word == "auto" else word for word in presets], **chosen)
    evicted = evicting(kept) if o.evict else []
    stored = evicting(kept, o.cold_store) if o.cold_store is not None else []
    return [*kept, *evicted, *stored]


def chunk_size_of(settings: Sequence[Setting]) -> int:
    """That of all of them."""
    h2o = settings[0].h2o
    assert h2o is not None  # a sweep has no dense setting
    return h2o.chunk_size


_DEFAULTS = H2OConfig()
_CASES = {"--evict": H2OConfig(evict=True), "--h2o-set lookup_budget=0": H2OConfig(lookup_budget=0)}
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
