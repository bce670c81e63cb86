"""A chat as tokens. Special tokens are the template's alone: what a message says is text, whatever it looks like."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Any

from h2o_llama import _core

_UNUSED = range(0xF0000, 0xFFFFE)
"""Private characters, which no vocabulary and no template knows."""


IMAGE = -1
"""Stands among token ids where the text has an image's marker."""


class ChatTokenizer:
    """The special tokens of a model, by their names. `marker` stands for an image in a text; empty: there are none."""

    def __init__(self, model: _core.Model) -> None:
        self._model = model
        self._names: dict[int, str] = {}  # of the tokens that were looked at; empty: it is text

    def tokenize(self, text: str, marker: str = "") -> list[int]:
        """Token ids of a prompt in which every name of a special token is that token."""
        if not marker or marker not in text:
            return self._model.tokenize(text.encode(), True, True)
        begin, end = self._around_a_text()
        return [*begin, *self._tokenize_between(text, marker, True), *end]

    def _tokenize_between(self, text: str, marker: str, parse_special: bool) -> list[int]:
        """What is before, between and after images, each on its own."""
        ids: list[int] = []
        for i, part in enumerate(text.split(marker) if marker else [text]):
            ids += [IMAGE] * (i > 0) + self._model.tokenize(part.encode(), False, parse_special)
        return ids

    def special_names(self, ids: Iterable[int]) -> list[str]:
        """Names of the special tokens among these, longer ones first."""
        some = set(ids) - {IMAGE}
        for id_ in some - self._names.keys():
            is_text = self._model.detokenize([id_], False)
            self._names[id_] = "" if is_text else self._model.detokenize([id_], True).decode(errors="replace")
        return sorted({self._names[id_] for id_ in some} - {""}, key=len, reverse=True)

    def tokenize_around(self, text: str, names: Mapping[str, str], marker: str = "") -> list[int]:
        """The same, but characters that are keys of `names` stand for these names as text.

        A tokenizer reads what is between two special tokens as a whole. So it is cut there, to be read without them.
        """
        special = self.special_names(self.tokenize(text, marker))
        parts = re.split(f"({'|'.join(map(re.escape, special))})", text) if special else [text]
        pieces = [("", True)]
        for part in parts:
            is_special = names.keys().isdisjoint(part)
            if is_special and pieces[-1][1]:
                pieces[-1] = pieces[-1][0] + part, True
            else:
                pieces.append((part.translate({ord(character): name for character, name in names.items()}), is_special))
        ids = [id_ for piece, is_special in pieces for id_ in self._tokenize_between(piece, marker, is_special)]
        begin, end = self._around_a_text()
        return [*begin, *ids, *end]

    def _around_a_text(self) -> tuple[list[int], list[int]]:
        """The tokens that this model expects before and after every text."""
        inner, whole = self._model.tokenize(b"a", False, False), self.tokenize("a")
        n = next(i for i in range(len(whole)) if whole[i : i + len(inner)] == inner)
        return whole[:n], whole[n + len(inner) :]


def unused_characters(names: list[str], text: str) -> dict[str, str]:
    """For each of the names a character that is not in the text."""
    used = set(text)
    return dict(zip(islice((c for c in map(chr, _UNUSED) if c not in used), len(names)), names, strict=True))


def texts_of(message: Any) -> list[str]:
    """All that a message, or a part of one, says."""
    if isinstance(message, str):
        return [message]
    parts = message.values() if isinstance(message, Mapping) else message if isinstance(message, list | tuple) else ()
    return [text for part in parts for text in texts_of(part)]


def replaced(message: Any, names: Mapping[str, str]) -> Any:
    """The same with characters in the place of their names."""
    if isinstance(message, str):
        for character, name in names.items():
            message = message.replace(name, character)
        return message
    if isinstance(message, Mapping):
        return {key: replaced(value, names) for key, value in message.items()}
    return [replaced(part, names) for part in message] if isinstance(message, list | tuple) else message
