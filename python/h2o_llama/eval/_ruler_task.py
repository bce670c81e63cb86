"""The task "ruler": RULER's texts and questions, prompts, generated answers and their scores."""

import hashlib
import re
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from itertools import islice
from math import pi
from pathlib import Path
from random import Random
from string import ascii_lowercase, ascii_uppercase
from uuid import UUID

import numpy as np

from h2o_llama._internal import check
from h2o_llama.eval._settings import DENSE, Setting
from h2o_llama.eval._subject import Progress, Row, Subject
from h2o_llama.model import Model
from h2o_llama.models._find import find_text
from h2o_llama.sequence._drawing import DENSE_TAIL

_OWNER = "eval"

WORDS, ESSAYS = "english-words", "war-and-peace"
"""Names of the texts that RULER's words and its essays are taken from."""

Drawn = tuple[str, str, Sequence[str]]
"""A question, what the answer begins with, and the words that the rest of it must have."""

NOISE = "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again."


@cache
def _lists(path: Path) -> list[list[str]]:
    """Adjectives, nouns, verbs."""
    return [group.split("\n") for group in path.read_text(encoding="utf-8").strip().split("\n\n")]


@cache
def _words(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").split()


def _insert(units: list[str], places: Sequence[int], inserted: Sequence[str]) -> None:
    """Each before the unit at its place. Places ascend."""
    for place, unit in zip(reversed(places), reversed(inserted), strict=True):
        units.insert(place, unit)


# --- needles in a haystack: eight tasks

_NEEDLE = "One of the special magic {kind} for {key} is: {value}."
_NEEDLE_QUESTION = (
    "Some special magic {kind} are hidden within the following text. Make sure to memorize it. I will quiz you about "
    "the {kind} afterwards.\n{context}\nWhat are all the special magic {kind} for {query} mentioned in the provided "
    "text?"
)
_NEEDLE_PREFIX = " The special magic {kind} for {query} mentioned in the provided text are"
_DEPTHS = [int(depth) for depth in np.round(np.linspace(0, 100, 40))]
# After a full stop or a closing quote, and before a capital letter.
_BETWEEN_SENTENCES = re.compile(r"(?:(?<=[.!?])|(?<=[.!?][\"')])) (?=[\"'(]?[A-Z])")


def _needles(
    rng: Random,
    n: int,
    n_tokens: int,
    *,
    haystack: str = "essay",
    keys: str = "words",
    values: str = "numbers",
    n_keys: int = 1,
    n_values: int = 1,
    n_asked: int = 1,
) -> Drawn:
    """Keys with values, between the sentences of n words of an essay, or in n lines of noise or of other needles."""
    facts = [(key, [_draw(values, rng) for _ in range(n_values)]) for key in (_draw(keys, rng) for _ in range(n_keys))]
    needles = [_NEEDLE.format(kind=values, key=key, value=value) for key, found in facts for value in found]
    rng.shuffle(needles)
    asked = rng.sample(facts, n_asked)
    if haystack == "essay":
        depths, words = sorted(rng.sample(_DEPTHS, len(needles))), _words(find_text(ESSAYS))
        units = _BETWEEN_SENTENCES.split(" ".join((words * (n // len(words) + 1))[:n]))
        places = [int(len(units) * depth / 100) for depth in depths]
    else:
        seed = rng.random()
        others = Random(f"{seed} lines")
        units = [
            NOISE
            if haystack == "noise"
            else _NEEDLE.format(kind=values, key=_draw(keys, others), value=_draw(values, others))
            for _ in range(n)
        ]
        places = sorted(Random(f"{seed} places").sample(range(n), len(needles)))
    _insert(units, places, needles)
    texts, kind = [_NEEDLE_QUESTION, _NEEDLE_PREFIX], values
    if n_asked * n_values == 1:
        texts = [t.replace("Some", "A").replace("are all", "is").replace("are", "is") for t in texts]
        kind = values[:-1]
    query = ", and ".join(filter(None, [", ".join(key for key, _ in asked[:-1]), asked[-1][0]]))
    context = (" " if haystack == "essay" else "\n").join(units)
    question, prefix = (text.format(kind=kind, query=query, context=context) for text in texts)
    return question, prefix, [value for _, found in asked for value in found]


def _draw(kind: str, rng: Random) -> str:
    if kind == "numbers":
        return str(rng.randint(1_000_000, 9_999_999))
    if kind == "uuids":
        return str(UUID(int=rng.getrandbits(128), version=4))
    adjectives, nouns, _ = _lists(find_text(WORDS))
    return f"{rng.choice(adjectives)}-{rng.choice(nouns)}"


# --- variable tracking: a chain of assignments, with a worked example in front

_N_VARIABLES = 5  # four hops
_EXAMPLE_LINES = 10  # what fits into RULER's 500 tokens
_CHAIN_QUESTION = (
    "Memorize and track the chain(s) of variable assignment hidden in the following text.\n\n{context}\nQuestion: Find "
    "all variables that are assigned the value {value} in the text above."
)
# The misspelling is RULER's.
_CHAIN_PREFIX = (
    " Answer: According to the chain(s) of variable assignment in the text above, {n} variables are assgined the value "
    "{value}, they are: "
)


def _variable_tracking(rng: Random, n: int, n_tokens: int) -> Drawn:
    """One chain of five variables in n lines."""
    example, begun, names = _chain(rng, _EXAMPLE_LINES, 3)
    text, prefix, variables = _chain(rng, n, 5)
    return example + begun + " " + " ".join(names) + "\n\n\n\n" + text, prefix, variables


def _chain(rng: Random, n: int, n_letters: int) -> Drawn:
    variables = _made_up(rng, _N_VARIABLES, ascii_uppercase, n_letters)
    value, seed = rng.randrange(10_000, 99_999), rng.random()
    sources = [str(value), *(f"VAR {name} " for name in variables[:-1])]
    lines = [NOISE + "\n"] * n
    places = sorted(Random(seed).sample(range(n), _N_VARIABLES))
    _insert(lines, places, [f"VAR {name} = {source}" for name, source in zip(variables, sources, strict=True)])
    question = _CHAIN_QUESTION.format(context=" ".join(lines), value=value)
    return question, _CHAIN_PREFIX.format(n=_N_VARIABLES, value=value), variables


def _made_up(rng: Random, n: int, letters: str, n_letters: int) -> list[str]:
    """Different words."""
    words: dict[str, None] = {}
    while len(words) < n:
        words["".join(rng.choices(letters, k=n_letters))] = None
    return list(words)


# --- common words extraction and frequent words extraction

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
_ZETA_2 = pi * pi / 6


def _common_words(rng: Random, n: int, n_tokens: int) -> Drawn:
    """Ten words of n that come ten times as often as the others, with a worked example in front."""
    words = sorted({word for group in _lists(find_text(WORDS)) for word in group})
    is_long = n_tokens >= _LONG
    shown = rng.sample(words, 40 if is_long else 20)
    example = _COMMON_QUESTION.format(context=_list(shown, *((10, 3) if is_long else (3, 1)), rng.random()))
    example += _COMMON_PREFIX + _numbered(shown[:_N_COMMON]) + "\n"
    drawn, seed = rng.sample(words, len(words)), rng.random()
    context = _list(drawn[:n], *((30, 3) if is_long else (6, 1)), seed)
    return example + _COMMON_QUESTION.format(context=context), _COMMON_PREFIX, drawn[:_N_COMMON]


def _list(words: list[str], n_common: int, n_others: int, seed: float) -> str:
    """The first words so often, the others so often, in a random order."""
    repeated = words[:_N_COMMON] * n_common + words[_N_COMMON:] * n_others
    Random(seed).shuffle(repeated)
    return _numbered(repeated)


def _numbered(words: list[str]) -> str:
    return " ".join(f"{i}. {word}" for i, word in enumerate(words, 1))


def _frequent_words(rng: Random, n: int, n_tokens: int) -> Drawn:
    """About n made-up words with a Zeta distribution; the most frequent one is noise."""
    words = ["...", *_made_up(rng, max(n_tokens // 50, 5), ascii_lowercase, 6)[1:]]
    text = [word for k, word in enumerate(words, 1) for _ in range(int(n * k**-2 / _ZETA_2))]
    Random(rng.random()).shuffle(text)
    return _FREQUENT_QUESTION.format(context=" ".join(text)), _FREQUENT_PREFIX, words[1:4]


_NEEDLES: dict[str, Callable[[Random, int, int], Drawn]] = {
    "niah_single_1": partial(_needles, haystack="noise"),
    "niah_single_2": _needles,
    "niah_single_3": partial(_needles, values="uuids"),
    "niah_multikey_1": partial(_needles, n_keys=4),
    "niah_multikey_2": partial(_needles, haystack="needle"),
    "niah_multikey_3": partial(_needles, haystack="needle", keys="uuids", values="uuids"),
    "niah_multivalue": partial(_needles, n_values=4),
    "niah_multiquery": partial(_needles, n_keys=4, n_asked=4),
}
_TASKS = {
    **{name: (draw, 128, 4) for name, draw in _NEEDLES.items()},
    "vt": (_variable_tracking, 30, _N_VARIABLES),
    "cwe": (_common_words, 120, _N_COMMON + 1),
    "fwe": (_frequent_words, 50, 200),  # with 200 words each of the three is there more often than the next one
}
"""By RULER's names, without the two tasks that ask about data sets: how to draw n units (lines, words) for a prompt of
n_tokens, tokens of the answer, and the fewest units."""

KINDS = tuple(_TASKS)
"""RULER's names of its tasks."""


@dataclass(frozen=True)
class Item:
    """A prompt as tokens, and answers expected in up to `n_generate` tokens after it."""

    tokens: list[int]
    answers: tuple[str, ...]
    n_generate: int


def make_item(kind: str, n_tokens: int, seed: int | str, model: Model) -> Item:
    """Draw a task: prompt and answer have at most n_tokens tokens, and as many as a sentence or word more allows.

    The question is a user's message in the model's chat template, if it has one, and the answer begins with RULER's
    prefix. All arguments count in the drawing.

    Raises ValueError if the kind is unknown, or n_tokens is too short for it; OSError if its words or essays cannot be
    fetched.
    """
    draw, n_generate, least = _TASKS[check.choice(_OWNER, "ruler", kind, KINDS)]
    before = after = ""
    if "tokenizer.chat_template" in model.metadata:
        mark = "THE MESSAGE"
        before, _, after = model.apply_chat_template([{"role": "user", "content": mark}]).partition(mark)

    def drawn(n: int) -> tuple[list[int], Sequence[str]]:
        question, prefix, answers = draw(Random(f"{seed} {kind} {n_tokens}"), n, n_tokens)
        text = before + question + after + prefix
        return model.tokenize(text, parse_special=bool(before or after)), answers

    def is_too_long(n: int) -> bool:
        return len(drawn(n)[0]) + n_generate > n_tokens

    if is_too_long(least):
        shortest = len(drawn(least)[0]) + n_generate
        raise ValueError(
            f"[{_OWNER}] {n_tokens} tokens are too short for RULER's {kind!r}: it takes at least {shortest}"
        )
    n = least
    while 2 * n <= n_tokens and not is_too_long(2 * n):  # a unit has a token at least
        n *= 2
    tokens, answers = drawn(n + bisect_left(range(n + 1, min(2 * n, n_tokens + 1)), True, key=is_too_long))
    return Item(tokens, tuple(answers), n_generate)


def score(said: str, answers: Sequence[str]) -> float:
    """RULER's string_match_all: the share of answers in the generated text, in either case."""
    text = re.sub(r"[\x00-\x1f]", "\n", said).lower()
    return sum(answer.lower() in text for answer in answers) / len(answers)


@dataclass(frozen=True)
class Ruler:
    """One of the tasks of RULER that need no data set, with its wording, lengths and score.

    Hsieh et al. 2024, "RULER: What's the Real Context Size of Your Long-Context Language Models?", arXiv:2404.06654.
    Essays are "war-and-peace" instead of Paul Graham's, cut into sentences at full stops.

    `kind` is RULER's name of the task: "niah_single_1" to "niah_single_3", "niah_multikey_1" to "niah_multikey_3",
    "niah_multivalue", "niah_multiquery", "vt", "cwe" or "fwe". `samples` is the number of prompts. The last
    `dense_tail` tokens of a prompt attend to everything kept; with 0 the question is nothing but its end. Dense
    attention ignores it.
    """

    kind: str
    samples: int = 5
    dense_tail: int = DENSE_TAIL
    name = "ruler"
    contexts_each = 1

    def variants(self, subject: Subject, n_tokens: int) -> list[Row]:
        """One row."""
        check.integer(_OWNER, "samples", self.samples, 1)
        check.integer(_OWNER, "dense_tail", self.dense_tail, 0)
        first = self._item(subject, n_tokens, 0)
        digest = hashlib.sha256(np.array(first.tokens, dtype=np.int32).tobytes()).hexdigest()
        return [
            {"kind": self.kind, "samples": self.samples, "dense_tail": self.dense_tail, "first_prompt_sha256": digest}
        ]

    def measure(
        self, subject: Subject, settings: Sequence[Setting], n_tokens: int, progress: Progress
    ) -> Mapping[str, Sequence[Row]]:
        """Results by the settings' names."""
        items = [self._item(subject, n_tokens, i) for i in range(self.samples)]
        scores: dict[str, list[float]] = {s.name: [] for s in (DENSE, *settings)}
        for i, setting in enumerate((DENSE, *settings)):
            with subject.open(setting, n_tokens) as llm:
                for j, item in enumerate(items):
                    llm.reset()
                    llm.eval(item.tokens, dense_tail=self.dense_tail)
                    said = llm.detokenize(list(islice(llm.generate([], temperature=0), item.n_generate)))
                    scores[setting.name].append(score(said.decode(errors="replace"), item.answers))
                    progress(i * len(items) + j + 1, len(scores) * len(items))
        dense = {"score_dense": float(np.mean(scores[DENSE.name])), "scores_dense": scores[DENSE.name]}
        return {
            s.name: [{"score": float(np.mean(scores[s.name])), "scores": scores[s.name], **dense}] for s in settings
        }

    def _item(self, subject: Subject, n_tokens: int, sample: int) -> Item:
        return make_item(self.kind, n_tokens, f"{subject.seed} {sample}", subject.weights)
