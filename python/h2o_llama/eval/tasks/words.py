"""The most frequent words of a long list (RULER's CWE task, arXiv:2404.06654, section 3.3)."""

from __future__ import annotations

from itertools import cycle, islice
from random import Random

from h2o_llama.eval.tasks.draft import Draft, Maker
from h2o_llama.eval.tasks.english import ask
from h2o_llama.eval.tasks.filler import Filler
from h2o_llama.eval.tasks.names import ADJECTIVES, COLOURS, NOUNS

_N_FREQUENT = 5
_PER_LINE = 8


def words(rng: Random, depth: float, filler: Filler) -> Draft:
    """Each frequent word is one word in twenty; they are all over the list, so it has no depth and no filler."""
    vocabulary = [w.encode() for w in (*ADJECTIVES, *COLOURS, *NOUNS)]
    rng.shuffle(vocabulary)
    frequent, others = vocabulary[:_N_FREQUENT], vocabulary[_N_FREQUENT:]
    seed = rng.random()

    def document(n: int) -> bytes:
        n_words = n * _PER_LINE
        text = frequent * (n_words // 20)
        text += islice(cycle(others), n_words - len(text))
        Random(seed).shuffle(text)
        return b"".join(b" ".join(text[i : i + _PER_LINE]) + b"\n" for i in range(0, n_words, _PER_LINE))

    question = ask(
        b"Which %d words are the most frequent ones in the text?" % _N_FREQUENT,
        b"The %d most frequent words are:" % _N_FREQUENT,
        tuple(frequent),
    )
    # From 40 words on a frequent word comes twice, the others once.
    return Draft(document, (question,), least=40 // _PER_LINE)


MAKERS: dict[str, Maker] = {"words": words}
