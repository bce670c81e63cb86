"""A task before its length is known."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from h2o_llama.eval.tasks.filler import Filler


@dataclass(frozen=True)
class Ask:
    """One question, as it stands in front of the document, and as it follows it, with the cue that the answer follows.

    The cue alone follows the document if the question stood in front of it. `slack` is tokens to generate beyond those
    of the answers, all of which must be said.
    """

    preface: bytes
    question: bytes
    cue: bytes
    answers: tuple[bytes, ...]
    slack: int


@dataclass(frozen=True)
class Draft:
    """A document that is still to be cut, and what is asked about it, one after the other.

    document(n) is the document with n units (lines, mostly), from `least` to `most`.
    """

    document: Callable[[int], bytes]
    asks: tuple[Ask, ...]
    least: int = 1
    most: int = 2**31


# maker(rng, depth, filler) draws a task; what is asked is put at `depth`.
Maker = Callable[[Random, float, Filler], Draft]
