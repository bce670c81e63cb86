"""A document of nothing but key-value pairs (Liu et al. 2023, "Lost in the Middle", arXiv:2307.03172, section 3)."""

from __future__ import annotations

from random import Random

from h2o_llama.eval.tasks.draft import Draft, Maker
from h2o_llama.eval.tasks.english import ask
from h2o_llama.eval.tasks.filler import Filler
from h2o_llama.eval.tasks.names import N_NAMES, distinct_names, number


def pairs(rng: Random, depth: float, filler: Filler) -> Draft:
    """One pair of a long JSON object. It needs no filler."""
    key, *others = distinct_names(rng, N_NAMES)
    value, seed = number(rng), rng.random()

    def document(n: int) -> bytes:
        # The values of a shorter document are the first ones of a longer.
        values = Random(seed)
        lines = [_line(other, number(values)) for other in others[: n - 1]]
        lines.insert(round(depth * len(lines)), _line(key, value))
        return b"{\n" + b",\n".join(lines) + b"\n}\n"

    question = ask(
        b'Which value has the key "%s" in the JSON object?' % key,
        b'The value of the key "%s" is:' % key,
        (value,),
    )
    return Draft(document, (question,), most=N_NAMES)


def _line(key: bytes, value: bytes) -> bytes:
    return b'"%s": "%s"' % (key, value)


MAKERS: dict[str, Maker] = {"pairs": pairs}
