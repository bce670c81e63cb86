"""Write the part of docs/compatibility.md about architectures, out of tests/architectures.py."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from architectures import ACCEPTED, REFUSED  # noqa: E402

PAGE = ROOT / "docs" / "compatibility.md"
HEADING = "## Architectures\n"


def listed(names: str) -> str:
    return ", ".join(f"`{name}`" for name in sorted(names.split()))


def page() -> str:
    """The page as it should be: what stands above the heading stays."""
    rows = "\n".join(f"| {refusal.why} | {listed(refusal.architectures)} |" for refusal in REFUSED)
    above, _, _ = PAGE.read_text(encoding="utf-8").partition(HEADING)
    return f"""{above}{HEADING}
The names are those in GGUF files (`general.architecture`). A test runs H2O on a tiny random model of each. With all
tokens in memory it must give what dense attention gives. Rewinding, forks, snapshots and eviction must change nothing.
What is in neither list has not been tested.

H2O works with {listed(ACCEPTED)}.

| refused, as it has | |
|---|---|
{rows}
"""


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
