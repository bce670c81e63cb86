"""The task "ruler": RULER's texts and questions, prompts, generated answers and their scores."""

from __future__ import annotations

import hashlib
import re
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import pi
from random import Random
from string import ascii_lowercase, ascii_uppercase
from typing import Literal
from uuid import UUID

import numpy as np

from h2o_llama._internal import check
from h2o_llama.eval._settings import DENSE, Setting
from h2o_llama.eval._subject import Progress, Row, Subject, answer
from h2o_llama.llama import Llama
from h2o_llama.model import Model
from h2o_llama.models._find import find_text
from h2o_llama.sequence.generating import DENSE_TAIL

WORDS, ESSAYS = "english-words", "war-and-peace"
"""Names of the texts that RULER's words and its essays are taken from."""


@dataclass(frozen=True)
class Draft:
    """A question about a text that is still to be cut. Up to `n_generate` tokens after `prefix` must have the answers.

    question(n) has n units (sentences, words), from `least` to `most`; keys and answers do not depend on n.
    """

    question: Callable[[int], str]
    prefix: str
    answers: tuple[str, ...]
    n_generate: int
    least: int = 1
    most: int = 2**31


@dataclass(frozen=True)
class Sources:
    """Words and essays, read when a task needs them. Raises FileNotFoundError if they have not been fetched."""

    read: Callable[[str], str] = field(default=lambda name: find_text(name).read_text(encoding="utf-8"))

    @cached_property
    def adjectives_nouns_verbs(self) -> list[list[str]]:
        """Three lists of English words."""
        return [group.split("\n") for group in self.read(WORDS).strip().split("\n\n")]

    @cached_property
    def essays(self) -> list[str]:
        """Words of a long English text."""
        return self.read(ESSAYS).split()


# --- needles in a haystack: eight tasks

NOISE = "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again."

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


@dataclass(frozen=True)
class Needles:
    """RULER's configuration of a task: numbers of keys, of values of each, and of keys in the question."""

    haystack: Literal["noise", "essay", "needle"]
    keys: Literal["words", "uuids"] = "words"
    values: Literal["numbers", "uuids"] = "numbers"
    n_keys: int = 1
    n_values: int = 1
    n_asked: int = 1

    def draft(self, rng: Random, n_tokens: int, sources: Sources) -> Draft:
        """Draw the needles and where they go."""
        facts = [
            (key, [_draw(self.values, rng, sources) for _ in range(self.n_values)])
            for key in (_draw(self.keys, rng, sources) for _ in range(self.n_keys))
        ]
        needles = [self._needle(key, value) for key, values in facts for value in values]
        rng.shuffle(needles)
        asked = rng.sample(facts, self.n_asked)
        query = ", and ".join(filter(None, [", ".join(key for key, _ in asked[:-1]), asked[-1][0]]))
        hide = (self._in_essays if self.haystack == "essay" else self._in_lines)(needles, rng, sources)
        question, prefix, kind = _NEEDLE_QUESTION, _NEEDLE_PREFIX, str(self.values)
        if self.n_asked * self.n_values == 1:
            question, prefix = (
                t.replace("Some", "A").replace("are all", "is").replace("are", "is") for t in (question, prefix)
            )
            kind = kind[:-1]
        return Draft(
            lambda n: question.format(kind=kind, query=query, context=hide(n)),
            prefix.format(kind=kind, query=query),
            tuple(value for _, values in asked for value in values),
            n_generate=128,
            least=len(needles),
        )

    def _needle(self, key: str, value: str) -> str:
        return _NEEDLE.format(kind=self.values, key=key, value=value)

    def _in_lines(self, needles: list[str], rng: Random, sources: Sources) -> Callable[[int], str]:
        """In n lines, of noise or of other needles."""
        seed = rng.random()

        def drawn_needle(rng: Random) -> str:
            return self._needle(_draw(self.keys, rng, sources), _draw(self.values, rng, sources))

        def hide(n: int) -> str:
            others, places = Random(f"{seed} lines"), Random(f"{seed} places")
            lines = [NOISE if self.haystack == "noise" else drawn_needle(others) for _ in range(n)]
            for place, needle in zip(sorted(places.sample(range(n), len(needles)), reverse=True), needles, strict=True):
                lines.insert(place, needle)
            return "\n".join(lines)

        return hide

    def _in_essays(self, needles: list[str], rng: Random, sources: Sources) -> Callable[[int], str]:
        """Between the sentences of the first n words, over again from the start when they end."""
        depths = sorted(rng.sample(_DEPTHS, len(needles)))

        def hide(n: int) -> str:
            words = sources.essays
            sentences = _BETWEEN_SENTENCES.split(" ".join((words * (n // len(words) + 1))[:n]))
            places = [int(len(sentences) * depth / 100) for depth in depths]
            for place, needle in zip(reversed(places), reversed(needles), strict=True):
                sentences.insert(place, needle)
            return " ".join(sentences)

        return hide


def _draw(kind: str, rng: Random, sources: Sources) -> str:
    if kind == "numbers":
        return str(rng.randint(1_000_000, 9_999_999))
    if kind == "uuids":
        return str(UUID(int=rng.getrandbits(128), version=4))
    adjectives, nouns, _ = sources.adjectives_nouns_verbs
    return f"{rng.choice(adjectives)}-{rng.choice(nouns)}"


NEEDLES = {
    "niah_single_1": Needles("noise"),
    "niah_single_2": Needles("essay"),
    "niah_single_3": Needles("essay", values="uuids"),
    "niah_multikey_1": Needles("essay", n_keys=4),
    "niah_multikey_2": Needles("needle"),
    "niah_multikey_3": Needles("needle", keys="uuids", values="uuids"),
    "niah_multivalue": Needles("essay", n_values=4),
    "niah_multiquery": Needles("essay", n_keys=4, n_asked=4),
}


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
        return _CHAIN_QUESTION.format(context=" ".join(lines), value=value)

    return question, _CHAIN_PREFIX.format(n=_N_VARIABLES, value=value), variables


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
    """Made-up words with a Zeta distribution; the most frequent one is noise. A unit is one word of text."""
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


DRAFTS: dict[str, Callable[[Random, int, Sources], Draft]] = {
    **{name: needles.draft for name, needles in NEEDLES.items()},
    "vt": variable_tracking,
    "cwe": common_words,
    "fwe": frequent_words,
}
"""By RULER's names, without the two tasks that ask about data sets."""


_OWNER = "eval"

KINDS = tuple(DRAFTS)
"""RULER's names of its tasks."""


@dataclass(frozen=True)
class Item:
    """A prompt as tokens, and answers expected in up to `n_generate` tokens after it."""

    tokens: tuple[int, ...]
    answers: tuple[str, ...]
    n_generate: int


def make_item(kind: str, n_tokens: int, seed: int | str, model: Model | Llama, sources: Sources) -> Item:
    """Draw a task: prompt and answer have at most n_tokens tokens, and as many as a sentence or word more allows.

    The question is a user's message in the model's chat template, if it has one, and the answer begins with RULER's
    prefix. All arguments count in the drawing.

    Raises ValueError if the kind is unknown, or n_tokens is too short for it.
    """
    draft = DRAFTS[check.choice(_OWNER, "ruler", kind, KINDS)](Random(f"{seed} {kind} {n_tokens}"), n_tokens, sources)
    before, after = _around(model)

    def tokens(n: int) -> list[int]:
        text = before + draft.question(n) + after + draft.prefix
        return model.tokenize(text, parse_special=bool(before or after))

    def fits(n: int) -> bool:
        return len(tokens(n)) + draft.n_generate <= n_tokens

    n = _largest(fits, draft.least, draft.most)
    if n is None:
        least = len(tokens(draft.least)) + draft.n_generate
        raise ValueError(f"[{_OWNER}] {n_tokens} tokens are too short for RULER's {kind!r}: it takes at least {least}")
    return Item(tuple(tokens(n)), draft.answers, draft.n_generate)


def score(said: str, answers: Sequence[str]) -> float:
    """RULER's string_match_all: the share of answers in the generated text, in either case."""
    text = re.sub(r"[\x00-\x1f]", "\n", said).lower()
    return sum(answer.lower() in text for answer in answers) / len(answers)


def _around(model: Model | Llama) -> tuple[str, str]:
    """What the chat template puts before and after a user's message; nothing without a template."""
    if "tokenizer.chat_template" not in model.metadata:
        return "", ""
    mark = "THE MESSAGE"
    before, _, after = model.apply_chat_template([{"role": "user", "content": mark}]).partition(mark)
    return before, after


def _largest(fits: Callable[[int], bool], least: int, most: int) -> int | None:
    """The largest n from `least` to `most` that fits; None if none does."""
    if not fits(least):
        return None
    low = least
    while 2 * low <= most and fits(2 * low):
        low *= 2
    return low + bisect_left(range(low + 1, min(2 * low, most + 1)), True, key=lambda n: not fits(n))


@dataclass(frozen=True)
class Ruler:
    """One of the tasks of RULER that need no data set, with its wording, lengths and score.

    Hsieh et al. 2024, "RULER: What's the Real Context Size of Your Long-Context Language Models?", arXiv:2404.06654.
    Essays are "war-and-peace" instead of Paul Graham's, cut into sentences at full stops.

    Parameters
    ----------
    kind : str
        RULER's name of the task: "niah_single_1" to "niah_single_3", "niah_multikey_1" to "niah_multikey_3",
        "niah_multivalue", "niah_multiquery", "vt", "cwe" or "fwe".
    samples : int, default 5
        Prompts.
    dense_tail : int, default 128
        The last tokens of a prompt attend to everything kept; 0: the question is nothing but the end of the prompt.
        Dense attention ignores it.
    """

    kind: str
    samples: int = 5
    dense_tail: int = DENSE_TAIL
    sources: Sources = field(default_factory=Sources, repr=False, compare=False)
    name = "ruler"
    contexts_each = 1

    def variants(self, subject: Subject, n_tokens: int) -> list[Row]:
        """One row."""
        check.integer("eval", "samples", self.samples, 1)
        check.integer("eval", "dense_tail", self.dense_tail, 0)
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
        n_done, n_total = 0, len(items) * (1 + len(settings))

        def scores_of(setting: Setting) -> list[float]:
            nonlocal n_done
            scores = []
            with subject.open(setting, n_tokens) as llm:
                for item in items:
                    llm.reset()
                    said = answer(llm, list(item.tokens), item.n_generate, self.dense_tail).decode(errors="replace")
                    scores.append(score(said, item.answers))
                    n_done += 1
                    progress(n_done, n_total)
            return scores

        dense = scores_of(DENSE)
        rows: dict[str, list[Row]] = {}
        for setting in settings:
            scores = scores_of(setting)
            rows[setting.name] = [
                {
                    "score": float(np.mean(scores)),
                    "score_dense": float(np.mean(dense)),
                    "scores": scores,
                    "scores_dense": dense,
                }
            ]
        return rows

    def _item(self, subject: Subject, n_tokens: int, sample: int) -> Item:
        return make_item(self.kind, n_tokens, f"{subject.seed} {sample}", subject.weights, self.sources)
