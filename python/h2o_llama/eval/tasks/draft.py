"""A task before its length is known."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from h2o_llama.eval.tasks.filler import Filler


@dataclass(frozen=True)
class Ask:
    """One question.

    Attributes
    ----------
    preface : bytes
        The question as it stands in front of the document.
    question : bytes
        The question as it follows the document, with the cue that the answer follows.
    cue : bytes
        What follows the document if the question stood in front of it.
    answers : tuple of bytes
        All that must be said.
    slack : int
        Tokens to generate beyond those of the answers.
    """

    preface: bytes
    question: bytes
    cue: bytes
    answers: tuple[bytes, ...]
    slack: int


@dataclass(frozen=True)
class Draft:
    """A document that is still to be cut, and what is asked about it, one after the other.

    Attributes
    ----------
    document : callable
        document(n): the document with n units (lines, mostly), from `least` to `most`.
    asks : tuple of Ask
        At least one.
    """

    document: Callable[[int], bytes]
    asks: tuple[Ask, ...]
    least: int = 1
    most: int = 2**31


# maker(rng, depth, filler) draws a task; what is asked is put at `depth`.
Maker = Callable[[Random, float, Filler], Draft]
