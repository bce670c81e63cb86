"""What was looked up, in the terminal."""

from __future__ import annotations

from collections.abc import Iterator

from rich.style import Style
from rich.table import Table
from rich.text import Text

from h2o_llama.inspect.lookups import examples, most_wanted, places
from h2o_llama.inspect.memory import MemoryReport
from h2o_llama.inspect.snippets import snippet

_FOUND = Style(color="#1d1c1a", bgcolor="#fbd98f")
_MOST_WANTED = 8
_EXAMPLES = 4
_PLACES = 4


def lookup_sentence(report: MemoryReport) -> str:
    """How much was looked up, on average, and what a token sees of it; empty without a lookup budget."""
    lookups = report.lookups
    if lookups is None:
        return ""
    mass = "" if report.captured is None else " The mass is that of the memory sets alone."
    return (
        f"Looked up by the text: {lookups.mean_per_tile:,.1f} tokens on average by every tile of {lookups.tile_size:,} "
        f"tokens after the first chunk. A token attends to the newest {lookups.budget:,} up to its own.{mass}"
    )


def lookup_tables(report: MemoryReport, brackets: bool = False) -> Iterator[Table]:
    """What most tiles looked up, and what some queries of the last tiles did; none if nothing was.

    `brackets` puts looked-up tokens, and those that asked, into ⟦ ⟧ as well, for an output without colours.
    """
    lookups = report.lookups
    if lookups is None or len(lookups.positions) == 0:
        return
    table = Table("Position", "Tiles", "Looked up most often")
    for column in table.columns[:-1]:
        column.justify = "right"
    for position, n_tiles in most_wanted(lookups, _MOST_WANTED):
        place = _marked(report, range(position, position + 1), brackets, n_before=30, n_after=20)
        table.add_row(f"{position:,}", f"{n_tiles:,}", place)
    yield table

    table = Table("Position", "A token of the last tiles, after its text", "What it looked up")
    table.columns[0].justify = "right"
    for query, positions in examples(lookups, _EXAMPLES):
        asking = _marked(report, range(query, query + 1), brackets, n_before=20, n_after=0)
        found = places(positions)
        lines = [_marked(report, place, brackets, n_before=20, n_after=10) for place in found[:_PLACES]]
        if len(found) > _PLACES:
            lines.append(Text(f"and {len(found) - _PLACES} more"))
        table.add_row(f"{query:,}", asking, Text("\n").join(lines))
    yield table


def _marked(report: MemoryReport, positions: range, brackets: bool, n_before: int, n_after: int) -> Text:
    part = snippet(report, positions, n_before, n_after)
    text = f"⟦{part.text}⟧" if brackets else part.text
    return Text.assemble("…", part.before, (text, _FOUND), part.after, "…" if n_after else "")
