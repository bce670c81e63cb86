"""`h2o-llama options`: the settings of H2O."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from h2o_llama import H2OConfig
from h2o_llama._cli.options import KEYS
from h2o_llama._core import H2OOption
from h2o_llama.config import OPTIONS

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
