"""Needles in a haystack: sentences that give names a number (RULER's NIAH tasks, arXiv:2404.06654, section 3.1)."""

from __future__ import annotations

from random import Random

from h2o_llama.eval.tasks.draft import Ask, Draft, Maker
from h2o_llama.eval.tasks.english import ask, enumerate_words
from h2o_llama.eval.tasks.filler import Filler, hide, spread
from h2o_llama.eval.tasks.names import distinct_names, number

_N_ASKED = 4
_N_OTHERS = 7


def single(rng: Random, depth: float, filler: Filler) -> Draft:
    """One name."""
    return _draft(rng, filler, [depth], n_names=1)


def multi_key(rng: Random, depth: float, filler: Filler) -> Draft:
    """One of several names, the others anywhere."""
    return _draft(rng, filler, [depth, *(rng.random() for _ in range(_N_OTHERS))], n_names=1 + _N_OTHERS)


def multi_value(rng: Random, depth: float, filler: Filler) -> Draft:
    """All numbers of one name."""
    return _draft(rng, filler, spread(depth, _N_ASKED), n_names=1)


def multi_query(rng: Random, depth: float, filler: Filler) -> Draft:
    """Several names asked at once."""
    return _draft(rng, filler, spread(depth, _N_ASKED), n_names=_N_ASKED, n_asked=_N_ASKED)


def _draft(rng: Random, filler: Filler, depths: list[float], *, n_names: int, n_asked: int = 1) -> Draft:
    """A number at each depth, given to the names in turn. The first names are asked."""
    names = distinct_names(rng, n_names)
    facts = [(names[i % n_names], number(rng)) for i in range(len(depths))]
    needles = [
        (depth, b"The special magic number for %s is: %s.\n" % fact) for depth, fact in zip(depths, facts, strict=True)
    ]
    asked = names[:n_asked]
    answers = tuple(value for name, value in facts if name in asked)
    return Draft(lambda n: hide(filler(n), needles), (_ask(asked, answers),))


def _ask(names: list[bytes], answers: tuple[bytes, ...]) -> Ask:
    subject = b"the special magic number%s for %s given in the text" % (
        b"s" if len(answers) > 1 else b"",
        enumerate_words(names),
    )
    verb = b"are" if len(answers) > 1 else b"is"
    return ask(b"What %s %s?" % (verb, subject), b"T%s %s:" % (subject[1:], verb), answers)


MAKERS: dict[str, Maker] = {
    "single": single,
    "multi-key": multi_key,
    "multi-value": multi_value,
    "multi-query": multi_query,
}
