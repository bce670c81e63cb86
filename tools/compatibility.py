"""Write what docs/compatibility.md says out of the tables of tests/architectures.py."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from architectures import ACCEPTED, CHANGES, KINDS, REFUSED  # noqa: E402

PAGE = ROOT / "docs" / "compatibility.md"
HEADING = "## Adapters and RoPE options\n"
"""From here on this program writes the page."""


def listed(names: str) -> str:
    return ", ".join(f"`{name}`" for name in sorted(names.split()))


def changes() -> str:
    """The table: a model of each kind is tested with each change."""
    header = " | ".join(KINDS)
    rows = "\n".join(f"| {change} |{' yes |' * len(KINDS)}" for change in CHANGES)
    return f"| with H2O on | {header} |\n|---|{'---|' * len(KINDS)}\n{rows}"


def page() -> str:
    """The page as it should be: the part above the heading stays."""
    rows = "\n".join(f"| {refusal.why} | {listed(refusal.architectures)} |" for refusal in REFUSED)
    above, _, _ = PAGE.read_text(encoding="utf-8").partition(HEADING)
    return f"""{above}{HEADING}
A test runs H2O on a tiny random model of each kind, with each of these: with the defaults, an index of keys,
`schedule="two_phase"` (where all layers attend to the whole text), attention composed of operators, and
`evict=True`. With all tokens in memory it must give what dense attention gives with the same change. Forks, snapshots,
rewinding, several sequences and calls that were interrupted must change nothing.

{changes()}

## Architectures

The names are those in GGUF files (`general.architecture`). A test runs H2O on a tiny random model of each. With all
tokens in memory it must give what dense attention gives. Rewinding, forks, snapshots and eviction must change nothing.
Architectures in neither list were not tested.

H2O works with {listed(ACCEPTED)}.

| refused, as it has | |
|---|---|
{rows}
"""


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
