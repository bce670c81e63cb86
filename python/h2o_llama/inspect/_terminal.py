"""A memory report in the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from rich.style import Style
from rich.table import Table
from rich.text import Text

from h2o_llama.inspect._memory import HeadMemory, MemoryReport, shades, top_texts
from h2o_llama.inspect._pieces import Piece, snippet, visible

_MOST_READ = 8
_SHADE_COLOURS = ("#fdeecb", "#fbd98f", "#f6b950", "#e98d22", "#c9540a")
_SHADE_STYLES = tuple(Style(color="#1d1c1a", bgcolor=colour) for colour in _SHADE_COLOURS)
_REGION_STYLES = {"open": Style(), "local": Style(color="blue"), "sinks": Style(color="green"), "old": Style(dim=True)}


def head_table(report: MemoryReport, heads: Sequence[HeadMemory]) -> Table:
    """One row per head: numbers of kept tokens, and the most frequent texts of its heavy hitters."""
    table = Table("Layer", "KV head", "Kept", "Heavy hitters", "Heavy hitters' texts, most frequent first")
    for column in table.columns[:-1]:
        column.justify = "right"
    always = len(report.local) + len(report.sinks)
    for h in heads:
        tops = "  ".join(f"{visible(text)} ×{n}" for text, n in top_texts(report, h, 6))
        table.add_row(str(h.layer), str(h.head), str(always + len(h.heavy)), str(len(h.heavy)), Text(tops))
    return table


def extra_table(report: MemoryReport, heads: Sequence[HeadMemory]) -> Table | None:
    """Which distant tokens most tiles of the last chunk read for `heads`; None if none did."""
    found = [] if report.extra is None else report.extra.most_read([report.heads.index(h) for h in heads], _MOST_READ)
    if not found:
        return None
    table = Table("Position", "Tiles", "Distant tokens that the last chunk read most")
    for column in table.columns[:-1]:
        column.justify = "right"
    for position, share in found:
        place = snippet(report.pieces, position, 30, 20)
        text = Text.assemble("…", place.before, f"⟦{place.text}⟧", place.after, "…")
        table.add_row(f"{position:,}", f"{100 * share:.0f} %", text)
    return table


def highlighted(report: MemoryReport, heads: Sequence[HeadMemory], brackets: bool = False) -> Text:
    """The document with the heavy hitters of `heads` on a shade of orange.

    `brackets` puts them into ⟦ ⟧ as well, for an output without colours.
    """
    shade_of = shades(heads)

    def look_of(piece: Piece) -> tuple[int, str]:
        return max(shade_of.get(p, 0) for p in range(piece.start, piece.end)), report.region(piece.start)

    text = Text()
    inside = False
    for (shade, region), pieces in groupby(report.pieces, look_of):
        if brackets and bool(shade) != inside:
            inside = not inside
            text.append("⟦" if inside else "⟧")
        run = "".join(piece.text for piece in pieces)
        if shade:
            text.append(run.replace("\n", "⏎\n"), _SHADE_STYLES[shade - 1])
        else:
            text.append(run, _REGION_STYLES[region])
    if inside:
        text.append("⟧")
    return text


def legend(report: MemoryReport, brackets: bool = False) -> Text:
    """What the colours, or brackets, of `highlighted` mean."""
    if brackets:
        return Text("⟦heavy hitters⟧")
    text = Text()
    for style in _SHADE_STYLES:
        text.append("  ", style)
    text.append(" heavy hitter   ")
    for name, region, shown in (
        ("local window", "local", bool(report.local)),
        ("sinks", "sinks", bool(report.sinks)),
        ("not kept", "old", True),
        ("last chunk, read directly", "open", True),
    ):
        if shown:
            text.append(name, _REGION_STYLES[region])
            text.append("   ")
    return text
