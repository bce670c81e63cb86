"""A task before its length is known."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

from h2o_llama.models._named import find_text

WORDS, ESSAYS = "english-words", "war-and-peace"
"""Names of the texts that RULER's words and its essays are taken from."""


@dataclass(frozen=True)
class Draft:
    """A question about a text that is still to be cut, and what must be said in so many tokens after `prefix`.

    question(n) has n units (sentences, words), from `least` to `most`; what is asked does not depend on n.
    """

    question: Callable[[int], str]
    prefix: str
    answers: tuple[str, ...]
    n_generate: int
    least: int = 1
    most: int = 2**31


@dataclass(frozen=True)
class Sources:
    """Words and essays, read when a task needs them. Raises FileNotFoundError if they have not been fetched."""

    read: Callable[[str], str] = field(default=lambda name: find_text(name).read_text(encoding="utf-8"))

    @cached_property
    def adjectives_nouns_verbs(self) -> list[list[str]]:
        """Three lists of English words."""
        return [group.split("\n") for group in self.read(WORDS).strip().split("\n\n")]

    @cached_property
    def essays(self) -> list[str]:
        """Words of a long English text."""
        return self.read(ESSAYS).split()
