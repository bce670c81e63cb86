"""Variable tracking: a chain of assignments, with a worked example in front."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from string import ascii_uppercase

from h2o_llama.eval.ruler.draft import Draft, Sources
from h2o_llama.eval.ruler.needles import NOISE

_N_VARIABLES = 5  # four hops
_EXAMPLE_LINES = 10  # what fits into RULER's 500 tokens
_QUESTION = (
    "Memorize and track the chain(s) of variable assignment hidden in the following text.\n\n{context}\nQuestion: Find "
    "all variables that are assigned the value {value} in the text above."
)
# The misspelling is RULER's.
_PREFIX = (
    " Answer: According to the chain(s) of variable assignment in the text above, {n} variables are assgined the value "
    "{value}, they are: "
)


def variable_tracking(rng: Random, n_tokens: int, sources: Sources) -> Draft:
    """One chain of five variables."""
    example, prefix, names = _chain(rng, 3)
    shown = example(_EXAMPLE_LINES) + prefix + " " + " ".join(names) + "\n\n\n\n"
    text, prefix, names = _chain(rng, 5)
    return Draft(lambda n: shown + text(n), prefix, names, n_generate=30, least=_N_VARIABLES)


def _chain(rng: Random, n_letters: int) -> tuple[Callable[[int], str], str, tuple[str, ...]]:
    """The question as a function of the number of lines, what the answer begins with, and the answer."""
    names: dict[str, None] = {}
    while len(names) < _N_VARIABLES:
        names["".join(rng.choices(ascii_uppercase, k=n_letters))] = None
    variables, value, seed = tuple(names), rng.randrange(10_000, 99_999), rng.random()
    sources = [str(value), *(f"VAR {name} " for name in variables[:-1])]
    chain = [f"VAR {name} = {source}" for name, source in zip(variables, sources, strict=True)]

    def question(n: int) -> str:
        lines = [NOISE + "\n"] * n
        for place, assignment in zip(
            sorted(Random(seed).sample(range(n), len(chain)), reverse=True), reversed(chain), strict=True
        ):
            lines.insert(place, assignment)
        return _QUESTION.format(context=" ".join(lines), value=value)

    return question, _PREFIX.format(n=_N_VARIABLES, value=value), variables
