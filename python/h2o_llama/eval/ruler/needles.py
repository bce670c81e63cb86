"""Needles in a haystack: eight tasks that differ in what is hidden, in what, and how much of it is asked for."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Literal
from uuid import UUID

import numpy as np

from h2o_llama.eval.ruler.draft import Draft, Sources

NOISE = "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again."

_NEEDLE = "One of the special magic {kind} for {key} is: {value}."
_QUESTION = (
    "Some special magic {kind} are hidden within the following text. Make sure to memorize it. I will quiz you about "
    "the {kind} afterwards.\n{context}\nWhat are all the special magic {kind} for {query} mentioned in the provided "
    "text?"
)
_PREFIX = " The special magic {kind} for {query} mentioned in the provided text are"
_DEPTHS = [int(depth) for depth in np.round(np.linspace(0, 100, 40))]
# After a full stop, perhaps in quotes, and before a capital letter.
_BETWEEN_SENTENCES = re.compile(r"(?:(?<=[.!?])|(?<=[.!?][\"')])) (?=[\"'(]?[A-Z])")


@dataclass(frozen=True)
class Needles:
    """RULER's configuration of a task: so many keys, values of each, and keys that are asked."""

    haystack: Literal["noise", "essay", "needle"]
    keys: Literal["words", "uuids"] = "words"
    values: Literal["numbers", "uuids"] = "numbers"
    n_keys: int = 1
    n_values: int = 1
    n_asked: int = 1

    def draft(self, rng: Random, n_tokens: int, sources: Sources) -> Draft:
        """Draw the needles and where they go."""
        facts = [
            (key, [_draw(self.values, rng, sources) for _ in range(self.n_values)])
            for key in (_draw(self.keys, rng, sources) for _ in range(self.n_keys))
        ]
        needles = [self._needle(key, value) for key, values in facts for value in values]
        rng.shuffle(needles)
        asked = rng.sample(facts, self.n_asked)
        query = ", and ".join(filter(None, [", ".join(key for key, _ in asked[:-1]), asked[-1][0]]))
        hide = (self._in_essays if self.haystack == "essay" else self._in_lines)(needles, rng, sources)
        question, prefix, kind = _QUESTION, _PREFIX, str(self.values)
        if self.n_asked * self.n_values == 1:
            question, prefix = (
                t.replace("Some", "A").replace("are all", "is").replace("are", "is") for t in (question, prefix)
            )
            kind = kind[:-1]
        return Draft(
            lambda n: question.format(kind=kind, query=query, context=hide(n)),
            prefix.format(kind=kind, query=query),
            tuple(value for _, values in asked for value in values),
            n_generate=128,
            least=len(needles),
        )

    def _needle(self, key: str, value: str) -> str:
        return _NEEDLE.format(kind=self.values, key=key, value=value)

    def _in_lines(self, needles: list[str], rng: Random, sources: Sources) -> Callable[[int], str]:
        """In n lines, of noise or of other needles."""
        seed = rng.random()

        def drawn_needle(rng: Random) -> str:
            return self._needle(_draw(self.keys, rng, sources), _draw(self.values, rng, sources))

        def hide(n: int) -> str:
            others, places = Random(f"{seed} lines"), Random(f"{seed} places")
            lines = [NOISE if self.haystack == "noise" else drawn_needle(others) for _ in range(n)]
            for place, needle in zip(sorted(places.sample(range(n), len(needles)), reverse=True), needles, strict=True):
                lines.insert(place, needle)
            return "\n".join(lines)

        return hide

    def _in_essays(self, needles: list[str], rng: Random, sources: Sources) -> Callable[[int], str]:
        """Between the sentences of the first n words, over again from the start when they end."""
        depths = sorted(rng.sample(_DEPTHS, len(needles)))

        def hide(n: int) -> str:
            words = sources.essays
            sentences = _BETWEEN_SENTENCES.split(" ".join((words * (n // len(words) + 1))[:n]))
            places = [int(len(sentences) * depth / 100) for depth in depths]
            for place, needle in zip(reversed(places), reversed(needles), strict=True):
                sentences.insert(place, needle)
            return " ".join(sentences)

        return hide


def _draw(kind: str, rng: Random, sources: Sources) -> str:
    if kind == "numbers":
        return str(rng.randint(1_000_000, 9_999_999))
    if kind == "uuids":
        return str(UUID(int=rng.getrandbits(128), version=4))
    adjectives, nouns, _ = sources.adjectives_nouns_verbs
    return f"{rng.choice(adjectives)}-{rng.choice(nouns)}"


NEEDLES = {
    "niah_single_1": Needles("noise"),
    "niah_single_2": Needles("essay"),
    "niah_single_3": Needles("essay", values="uuids"),
    "niah_multikey_1": Needles("essay", n_keys=4),
    "niah_multikey_2": Needles("needle"),
    "niah_multikey_3": Needles("needle", keys="uuids", values="uuids"),
    "niah_multivalue": Needles("essay", n_values=4),
    "niah_multiquery": Needles("essay", n_keys=4, n_asked=4),
}
