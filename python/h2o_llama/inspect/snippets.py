"""A few tokens of a report's text, with a little of the text around them."""

from __future__ import annotations

from dataclasses import dataclass

from h2o_llama.inspect.memory import MemoryReport


@dataclass(frozen=True)
class Snippet:
    """The text of some tokens, of those before and of those after; in one line."""

    before: str
    text: str
    after: str


def snippet(report: MemoryReport, positions: range, n_before: int, n_after: int) -> Snippet:
    """The text at `positions`, which must not be empty, with so many characters before it and after it."""
    pieces = report.pieces
    first, last = report.piece_of[positions[0]], report.piece_of[positions[-1]]
    # Most pieces are several characters, and few are none: so many pieces are enough.
    before = "".join(piece.text for piece in pieces[max(0, first - n_before) : first])
    text = "".join(piece.text for piece in pieces[first : last + 1])
    after = "".join(piece.text for piece in pieces[last + 1 : last + 1 + n_after])
    return Snippet(_in_line(before[max(0, len(before) - n_before) :]), _in_line(text), _in_line(after[:n_after]))


def _in_line(text: str) -> str:
    return text.replace("\n", "⏎").replace("\t", "⇥")
