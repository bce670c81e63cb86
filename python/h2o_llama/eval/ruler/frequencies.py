"""Common words extraction and frequent words extraction."""

from __future__ import annotations

from math import pi
from random import Random
from string import ascii_lowercase

from h2o_llama.eval.ruler.draft import Draft, Sources

_COMMON_QUESTION = (
    "Below is a numbered list of words. In these words, some appear more often than others. Memorize the ones that "
    "appear most often.\n{context}\nQuestion: What are the 10 most common words in the above list?"
)
_COMMON_PREFIX = " Answer: The top 10 words that appear most often in the list are:"
_N_COMMON = 10
_LONG = 4096  # tokens, from which on words are repeated more often

_FREQUENT_QUESTION = (
    "Read the following coded text and track the frequency of each coded word. Find the three most frequently appeared "
    "coded words. {context}\nQuestion: Do not provide any explanation. Please ignore the dots '....'. What are the "
    "three most frequently appeared words in the above coded text?"
)
_FREQUENT_PREFIX = " Answer: According to the coded text above, the three most frequently appeared words are:"
_N_LETTERS = 6
_ZETA_2 = pi * pi / 6


def common_words(rng: Random, n_tokens: int, sources: Sources) -> Draft:
    """Ten words that come ten times as often as others, with a worked example in front. A unit is a different word."""
    words = sorted({word for group in sources.adjectives_nouns_verbs for word in group})
    is_long = n_tokens >= _LONG
    shown = rng.sample(words, 40 if is_long else 20)
    example = _COMMON_QUESTION.format(context=_list(shown, *((10, 3) if is_long else (3, 1)), rng.random()))
    example += _COMMON_PREFIX + _numbered(shown[:_N_COMMON]) + "\n"
    drawn, seed = rng.sample(words, len(words)), rng.random()
    repeats = (30, 3) if is_long else (6, 1)
    return Draft(
        lambda n: example + _COMMON_QUESTION.format(context=_list(drawn[:n], *repeats, seed)),
        _COMMON_PREFIX,
        tuple(drawn[:_N_COMMON]),
        n_generate=120,
        least=_N_COMMON + 1,
        most=len(words),
    )


def _list(words: list[str], n_common: int, n_others: int, seed: float) -> str:
    """The first words so often, the others so often, in a random order."""
    repeated = words[:_N_COMMON] * n_common + words[_N_COMMON:] * n_others
    Random(seed).shuffle(repeated)
    return _numbered(repeated)


def _numbered(words: list[str]) -> str:
    return " ".join(f"{i}. {word}" for i, word in enumerate(words, 1))


def frequent_words(rng: Random, n_tokens: int, sources: Sources) -> Draft:
    """Made-up words with a Zeta distribution, of which the most frequent one is noise. A unit is one word of text."""
    vocabulary: dict[str, None] = {}
    while len(vocabulary) < max(n_tokens // 50, 5):
        vocabulary["".join(rng.choices(ascii_lowercase, k=_N_LETTERS))] = None
    words, seed = ["...", *list(vocabulary)[1:]], rng.random()

    def question(n: int) -> str:
        text = [word for k, word in enumerate(words, 1) for _ in range(int(n * k**-2 / _ZETA_2))]
        Random(seed).shuffle(text)
        return _FREQUENT_QUESTION.format(context=" ".join(text))

    # With 200 words each of the three is there more often than the next one.
    return Draft(question, _FREQUENT_PREFIX, tuple(words[1:4]), n_generate=50, least=200)
