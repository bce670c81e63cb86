"""Variable tracking: chains of assignments (RULER, arXiv:2404.06654, section 3.2)."""

from __future__ import annotations

from random import Random
from string import ascii_uppercase

from h2o_llama.eval.tasks.draft import Draft, Maker
from h2o_llama.eval.tasks.english import ask
from h2o_llama.eval.tasks.filler import Filler, hide, spread

_N_CHAINS = 2
_N_VARIABLES = 5  # of a chain; four hops


def variables(rng: Random, depth: float, filler: Filler) -> Draft:
    """All variables of one chain. Its first assignment is at `depth`; another chain lies anywhere."""
    names = _variable_names(rng, _N_CHAINS * _N_VARIABLES)
    values = rng.sample(range(10_000, 100_000), _N_CHAINS)
    needles: list[tuple[float, bytes]] = []
    for i, value in enumerate(values):
        chain = names[i * _N_VARIABLES : (i + 1) * _N_VARIABLES]
        depths = sorted(rng.random() for _ in chain) if i else spread(depth, len(chain))
        sources = [b"%d" % value, *(b"VAR " + name for name in chain[:-1])]
        needles += [(d, b"VAR %s = %s\n" % (x, y)) for d, x, y in zip(depths, chain, sources, strict=True)]
    question = ask(
        b"Which variables (VAR) have the value %d, given directly or by way of other variables?" % values[0],
        b"The %d variables that have the value %d are:" % (_N_VARIABLES, values[0]),
        tuple(names[:_N_VARIABLES]),
    )
    return Draft(lambda n: hide(filler(n), needles), (question,))


def _variable_names(rng: Random, n: int) -> list[bytes]:
    """n different names of five capital letters."""
    names: dict[bytes, None] = {}
    while len(names) < n:
        names["".join(rng.choices(ascii_uppercase, k=5)).encode()] = None
    return list(names)


MAKERS: dict[str, Maker] = {"variables": variables}
