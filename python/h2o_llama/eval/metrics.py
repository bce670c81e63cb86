"""How well a text answers a question: metrics by name, each from 0 to 1."""

from __future__ import annotations

import string
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

from h2o_llama import _check

# metric(text, answers): the answers are what counts as right.
Metric = Callable[[str, Sequence[str]], float]

_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalised(text: str) -> str:
    """Lower case, without punctuation, one space between words."""
    return " ".join(text.lower().translate(_PUNCTUATION).split())


def exact_match(text: str, answers: Sequence[str]) -> float:
    """Whether the text is one of the answers, both normalised."""
    return float(normalised(text) in map(normalised, answers))


def contains(text: str, answers: Sequence[str]) -> float:
    """Whether one of the answers is in the text, both normalised."""
    return float(any(normalised(answer) in normalised(text) for answer in answers))


def contains_all(text: str, answers: Sequence[str]) -> float:
    """Share of the answers that are in the text, both normalised (RULER's string_match_all)."""
    return sum(normalised(answer) in normalised(text) for answer in answers) / len(answers)


def f1(text: str, answers: Sequence[str]) -> float:
    """F1 of words against the best answer, as SQuAD and LongBench's English question answering compute it.

    Raises ImportError if the extra "eval" is missing.
    """
    try:
        from lm_eval.tasks.qasper.metrics import f1_abstractive  # SQuAD's own script, copied
    except ImportError as error:
        raise _missing("f1") from error
    return float(max(f1_abstractive([text], [answer]) for answer in answers))


def rouge_l(text: str, answers: Sequence[str]) -> float:
    """F-measure of the longest common subsequence of words against the best answer (Lin 2004), no stemming.

    Raises ImportError if the extra "eval" is missing.
    """
    return float(_rouge_scorer().score_multi(answers, text)["rougeL"].fmeasure)


@lru_cache(maxsize=1)
def _rouge_scorer() -> Any:
    try:
        from rouge_score.rouge_scorer import RougeScorer
    except ImportError as error:
        raise _missing("rouge-l") from error
    return RougeScorer(["rougeL"])


def _missing(name: str) -> ImportError:
    return ImportError(f'the metric "{name}" needs pip install "h2o-llama[eval]"')


METRICS: dict[str, Metric] = {
    "exact-match": exact_match,
    "contains": contains,
    "contains-all": contains_all,
    "f1": f1,
    "rouge-l": rouge_l,
}


def check_metrics(owner: str, names: Sequence[str]) -> dict[str, Metric]:
    """The metrics of these names, tried once, so that a missing library shows before anything is computed.

    Raises ValueError if there is no such metric, or none is named; ImportError if the extra "eval" is missing.
    """
    if not names:
        raise _check.bad_argument(owner, "metrics", "one or more of " + ", ".join(METRICS), names)
    for name in names:
        METRICS[_check.choice(owner, "metric", name, METRICS)]("a", ["a"])
    return {name: METRICS[name] for name in names}
