"""Tasks for the demo model: lines `k17=4829;` anywhere in a document, the question `k17?` after it.

The formats are those it was trained on (data/MODEL_CARD.md): a key has two digits, a value four.
"""

from __future__ import annotations

from random import Random

from h2o_llama.eval.tasks.draft import Ask, Draft, Maker
from h2o_llama.eval.tasks.filler import Filler, hide, spread

# general.name in the metadata of the model that knows this format.
MODEL_NAME = "h2o-llama demo (Qwen3, 2M)"

_N_ASKED = 4
_N_OTHERS = 7  # as in the model card's measurement
_KEYS = range(10, 100)


def single(rng: Random, depth: float, filler: Filler) -> Draft:
    """One key."""
    return _draft(rng, filler, [depth], [])


def multi_key(rng: Random, depth: float, filler: Filler) -> Draft:
    """One of several keys, the others anywhere."""
    return _draft(rng, filler, [depth], [rng.random() for _ in range(_N_OTHERS)])


def multi_query(rng: Random, depth: float, filler: Filler) -> Draft:
    """Several keys, asked one after the other."""
    return _draft(rng, filler, spread(depth, _N_ASKED), [])


def pairs(rng: Random, depth: float, filler: Filler) -> Draft:
    """All keys that there are, evenly over the document."""
    n_others = len(_KEYS) - 1
    return _draft(rng, filler, [depth], [i / (n_others - 1) for i in range(n_others)])


def _draft(rng: Random, filler: Filler, asked: list[float], others: list[float]) -> Draft:
    """Keys at these depths, of which the first ones are asked in a random order."""
    depths = asked + others
    keys = rng.sample(_KEYS, len(depths))
    # First digits are uniform. What is guessed where no head sees the value is right once in nine times.
    values = [rng.randrange(1000, 10_000) for _ in depths]
    facts = list(zip(keys, values, strict=True))
    needles = [(depth, b"k%d=%d;\n" % fact) for depth, fact in zip(depths, facts, strict=True)]
    asks = [_ask(key, value) for key, value in facts[: len(asked)]]
    rng.shuffle(asks)

    def document(n: int) -> bytes:
        first, *rest = filler(n)  # in training a definition always followed a line
        return first + hide(rest, needles)

    return Draft(document, tuple(asks))


def _ask(key: int, value: int) -> Ask:
    cue = b"k%d?" % key
    # No slack: the answer must be the bytes right after the question.
    return Ask(preface=cue + b"\n", question=cue, cue=cue, answers=(b"%d;" % value,), slack=0)


MAKERS: dict[str, Maker] = {"single": single, "multi-key": multi_key, "multi-query": multi_query, "pairs": pairs}
