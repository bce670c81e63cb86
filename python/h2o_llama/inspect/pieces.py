"""A token sequence as displayable text. Byte tokens may hold a part of a character, so some tokens share a piece."""

from __future__ import annotations

import codecs
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


def visible(text: str) -> str:
    """Text for a table cell: white space becomes visible."""
    return text.replace("\n", "⏎").replace("\t", "⇥").replace(" ", "␣")
