"""A task that is ready to be read, and the score of what is said."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

from h2o_llama._internal import check
from h2o_llama.eval.ruler.chains import variable_tracking
from h2o_llama.eval.ruler.draft import Draft, Sources
from h2o_llama.eval.ruler.frequencies import common_words, frequent_words
from h2o_llama.eval.ruler.needles import NEEDLES
from h2o_llama.llama import Llama
from h2o_llama.model import Model

_OWNER = "eval"

_DRAFTS: dict[str, Callable[[Random, int, Sources], Draft]] = {
    **{name: needles.draft for name, needles in NEEDLES.items()},
    "vt": variable_tracking,
    "cwe": common_words,
    "fwe": frequent_words,
}
KINDS = tuple(_DRAFTS)
"""RULER's names of its tasks, without the two that ask about data sets."""


@dataclass(frozen=True)
class Item:
    """A prompt as tokens, and what must be said in so many tokens after it."""

    tokens: tuple[int, ...]
    answers: tuple[str, ...]
    n_generate: int


def make_item(kind: str, n_tokens: int, seed: int | str, model: Model | Llama, sources: Sources) -> Item:
    """Draw a task: prompt and answer have at most n_tokens tokens, and as many as a sentence or word more allows.

    The question is a user's message in the model's chat template, if it has one, and the answer begins with RULER's
    prefix. What is drawn depends on all arguments.

    Raises ValueError if there is no such kind, or n_tokens is too short for it.
    """
    draft = _DRAFTS[check.choice(_OWNER, "ruler", kind, KINDS)](Random(f"{seed} {kind} {n_tokens}"), n_tokens, sources)
    before, after = _around(model)

    def tokens(n: int) -> list[int]:
        text = before + draft.question(n) + after + draft.prefix
        return model.tokenize(text, parse_special=bool(before or after))

    def fits(n: int) -> bool:
        return len(tokens(n)) + draft.n_generate <= n_tokens

    n = _largest(fits, draft.least, draft.most)
    if n is None:
        least = len(tokens(draft.least)) + draft.n_generate
        raise ValueError(f"[{_OWNER}] {n_tokens} tokens are too short for RULER's {kind!r}: it takes at least {least}")
    return Item(tuple(tokens(n)), draft.answers, draft.n_generate)


def score(said: str, answers: Sequence[str]) -> float:
    """RULER's string_match_all: the share of answers that are in what was said, in either case."""
    text = re.sub(r"[\x00-\x1f]", "\n", said).lower()
    return sum(answer.lower() in text for answer in answers) / len(answers)


def _around(model: Model | Llama) -> tuple[str, str]:
    """What the chat template puts before and after a user's message; nothing without a template."""
    if "tokenizer.chat_template" not in model.metadata:
        return "", ""
    mark = "THE MESSAGE"
    before, _, after = model.apply_chat_template([{"role": "user", "content": mark}]).partition(mark)
    return before, after


def _largest(fits: Callable[[int], bool], least: int, most: int) -> int | None:
    """The largest n from `least` to `most` that fits; None if none does."""
    if not fits(least):
        return None
    low = least
    while 2 * low <= most and fits(2 * low):
        low *= 2
    return low + bisect_left(range(low + 1, min(2 * low, most + 1)), True, key=lambda n: not fits(n))
