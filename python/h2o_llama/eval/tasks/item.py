"""A task that is ready to be read."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Literal

from h2o_llama import _check
from h2o_llama.eval.tasks import keys, needles, pairs, variables, words
from h2o_llama.eval.tasks.draft import Ask, Maker
from h2o_llama.eval.tasks.filler import make_filler

_OWNER = "make_item"

QuestionPlace = Literal["after", "before"]

_MAKERS: dict[str, dict[str, Maker]] = {
    "english": {**needles.MAKERS, **variables.MAKERS, **words.MAKERS, **pairs.MAKERS},
    "keys": keys.MAKERS,
}
STYLES = tuple(_MAKERS)
KINDS = tuple(_MAKERS["english"])
KINDS_OF_STYLE = {style: tuple(makers) for style, makers in _MAKERS.items()}
_WITHOUT_DEPTH = ("words",)


@dataclass(frozen=True)
class Turn:
    """A question and what must be said in so many tokens right after it."""

    question: bytes
    answers: tuple[bytes, ...]
    n_generate: int


@dataclass(frozen=True)
class Item:
    """A document and the questions about it.

    `n_tokens` are those of the prompt: the document and the first question. `depth` is where what is asked was put, 0
    the document's start, 1 its end; None if it is everywhere. Of several things the first one is there, the others
    follow evenly up to the end. `context` is the document, with the questions in front of it if they stand there. The
    first of the `turns` follows the document, each other one the answer before it.
    """

    kind: str
    n_tokens: int
    depth: float | None
    context: bytes
    turns: tuple[Turn, ...]

    @property
    def prompt(self) -> bytes:
        """The document and the first question."""
        return self.context + self.turns[0].question


def has_depth(kind: str) -> bool:
    """Whether what is asked has a place in the document."""
    return kind not in _WITHOUT_DEPTH


def make_item(
    kind: str,
    *,
    n_tokens: int,
    depth: float,
    seed: int | str,
    style: str,
    count_tokens: Callable[[bytes], int],
    question: QuestionPlace = "after",
    haystack: bytes | None = None,
) -> Item:
    """Make a task as long as fits into `n_tokens`, its answers included. Equal arguments make equal items.

    Parameters
    ----------
    kind : str
        "single" (one needle), "multi-key" (one among others), "multi-value" (all values of one key), "multi-query"
        (several keys asked), "variables" (chains of assignments), "words" (the most frequent ones), "pairs" (the
        document is full of key-value pairs). Style "keys" has "single", "multi-key", "multi-query" and "pairs".
    n_tokens : int
        The prompt, the answers and further questions have at most so many tokens, and as many as whole lines allow.
    depth : float
        Where what is asked is put, 0 the document's start, 1 its end. "words" has none and ignores it.
    seed : int or str
        What is drawn by chance depends on it, not on `depth` or `n_tokens`.
    style : {"english", "keys"}
        "english": questions in plain sentences; "keys": the format of the packaged demo model.
    count_tokens : callable
        Tokens of a text as the model reads it, with those that the model puts around a text.
    question : {"after", "before"}
        "before": the questions also stand in front of the document, and after it follows only the cue of the answer.
    haystack : bytes, optional
        The text to hide needles in, from a random line on; by default source of Python's standard library.

    Raises
    ------
    ValueError
        If an argument is bad, there is no such kind in this style, or n_tokens is too short for it.
    OSError
        If there is no `haystack` and this interpreter has no source files.

    References
    ----------
    Hsieh et al. 2024, "RULER: What's the Real Context Size of Your Long-Context Language Models?", arXiv:2404.06654.
    """
    makers = _MAKERS[_check.choice(_OWNER, "style", style, STYLES)]
    if kind in KINDS and kind not in makers:
        raise ValueError(f"[{_OWNER}] style {style!r} has the kinds {', '.join(makers)}, not {kind!r}")
    _check.choice(_OWNER, "kind", kind, KINDS)
    n_tokens = _check.integer(_OWNER, "n_tokens", n_tokens, 1)
    depth = _check.real(_OWNER, "depth", depth, 0, 1)
    _check.choice(_OWNER, "question", question, ("after", "before"))

    rng = Random(seed)
    draft = makers[kind](rng, depth, make_filler(haystack, rng))
    preface = b"".join(ask.preface for ask in draft.asks) if question == "before" else b""
    turns = _turns(draft.asks, question, count_tokens)
    later = sum(turn.n_generate for turn in turns) + sum(count_tokens(turn.question) for turn in turns[1:])

    def context(n: int) -> bytes:
        return preface + draft.document(n)

    def n_prompt(n: int) -> int:
        return count_tokens(context(n) + turns[0].question)

    n_lines = _largest(lambda n: n_prompt(n) + later <= n_tokens, draft.least, draft.most)
    if n_lines is None:
        raise ValueError(
            f"[{_OWNER}] {n_tokens} tokens are too short for kind {kind!r} in style {style!r}: "
            f"it takes at least {n_prompt(draft.least) + later}"
        )
    return Item(kind, n_prompt(n_lines), depth if has_depth(kind) else None, context(n_lines), turns)


def _turns(asks: tuple[Ask, ...], question: QuestionPlace, count_tokens: Callable[[bytes], int]) -> tuple[Turn, ...]:
    """The questions, each but the first one on a new line after the answer before it."""
    texts = [ask.question if question == "after" else ask.cue for ask in asks]
    return tuple(
        Turn(b"\n" + text if i else text, ask.answers, count_tokens(b", ".join(ask.answers)) + ask.slack)
        for i, (ask, text) in enumerate(zip(asks, texts, strict=True))
    )


def _largest(fits: Callable[[int], bool], least: int, most: int) -> int | None:
    """The largest n from `least` to `most` that fits; None if none does."""
    if not fits(least):
        return None
    low = least
    while 2 * low <= most and fits(2 * low):
        low *= 2
    return low + bisect_left(range(low + 1, min(2 * low, most + 1)), True, key=lambda n: not fits(n))
