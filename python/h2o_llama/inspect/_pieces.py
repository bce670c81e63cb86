"""A token sequence as displayable text. Byte tokens may hold a part of a character, so some tokens share a piece."""

from __future__ import annotations

import codecs
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from h2o_llama._internal.terminal import printable


@dataclass(frozen=True)
class Piece:
    """Text of the tokens at positions [start, end)."""

    start: int
    end: int
    text: str


def split_pieces(tokens: Sequence[bytes]) -> list[Piece]:
    """The shortest pieces whose ends are character boundaries; bytes that are not UTF-8 become U+FFFD."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    pieces = []
    start, text = 0, ""
    for position, token in enumerate(tokens):
        is_last = position == len(tokens) - 1
        text += decoder.decode(token, final=is_last)
        inside_character = bool(decoder.getstate()[0])
        if is_last or not inside_character:
            pieces.append(Piece(start, position + 1, printable(text)))
            start, text = position + 1, ""
    return pieces


def index_at(pieces: Sequence[Piece], position: int) -> int:
    """Which of the pieces has a position."""
    return bisect_right(pieces, position, key=lambda piece: piece.start) - 1


@dataclass(frozen=True)
class Snippet:
    """The text of a token, and of those before and after it; in one line."""

    before: str
    text: str
    after: str


def snippet(pieces: Sequence[Piece], position: int, n_before: int, n_after: int) -> Snippet:
    """The text at a position, with up to `n_before` characters before it and `n_after` after it."""
    i = index_at(pieces, position)
    # Most pieces are several characters, and few are none: a piece for each character is enough.
    before = "".join(piece.text for piece in pieces[max(0, i - n_before) : i])
    after = "".join(piece.text for piece in pieces[i + 1 : i + 1 + n_after])
    return Snippet(
        _in_line(before[max(0, len(before) - n_before) :]), _in_line(pieces[i].text), _in_line(after[:n_after])
    )


def _in_line(text: str) -> str:
    return text.replace("\n", "⏎").replace("\t", "⇥")


def visible(text: str) -> str:
    """Text for a table cell: white space becomes visible."""
    return _in_line(text).replace(" ", "␣")
