"""Questions from a file of JSON lines."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np

from h2o_llama import Llama, _check
from h2o_llama.eval.answering import answer
from h2o_llama.eval.metrics import check_metrics
from h2o_llama.sequence import DENSE_TAIL

_OWNER = "measure_jsonl"

_TEMPLATE = "{context}\n\nQuestion: {question}\nAnswer:"


@dataclass(frozen=True)
class Record:
    """One line of the file. RULER's prompts are complete questions: they have no context."""

    context: str
    question: str
    answers: tuple[str, ...]
    answer_prefix: str = ""

    def prompt(self, template: str | None) -> str:
        """The text to go on from. Without a template, a question without context is a prompt by itself."""
        if template is None:
            template = _TEMPLATE if self.context else "{question}"
        return template.format(context=self.context, question=self.question, input=self.question) + self.answer_prefix


def read_jsonl(path: str | os.PathLike[str], limit: int | None = None) -> list[Record]:
    """Read lines of {"context", "question" or "input", "answers" or "outputs"}.

    That is what LongBench's published files have ("input", "context", "answers") and RULER's ("input", "outputs", and
    perhaps "answer_prefix"). A context or a question may be missing or empty, but not both; other fields and empty
    lines are ignored.

    Raises
    ------
    OSError
        If the file cannot be read.
    ValueError
        If a line is not such an object; the message has its number. If there are no lines.
    """
    records = []
    with open(path, "rb") as file:
        lines = ((i, line) for i, line in enumerate(file, 1) if line.strip())
        for i, line in islice(lines, limit):
            try:
                records.append(_record(line))
            except ValueError as error:
                raise ValueError(f"[{_OWNER}] {os.fspath(path)}, line {i}: {error}") from None
    if not records:
        raise ValueError(f"[{_OWNER}] {os.fspath(path)} has no lines")
    return records


def _record(line: bytes) -> Record:
    try:
        fields = json.loads(line)
    except ValueError as error:  # no JSON, or no UTF-8
        raise ValueError(f"not JSON in UTF-8: {error}") from None
    if not isinstance(fields, dict):
        raise ValueError(f"must be an object, got {type(fields).__name__}")
    context, prefix = _text(fields, "context"), _text(fields, "answer_prefix")
    question = _text(fields, "question") or _text(fields, "input")
    if not context and not question:
        raise ValueError("needs a 'context', or a 'question' (or 'input')")
    answers = fields.get("answers", fields.get("outputs"))
    answers = [answers] if isinstance(answers, str) else answers
    if not isinstance(answers, list) or not answers or not all(isinstance(a, str) and a for a in answers):
        raise ValueError("needs 'answers' (or 'outputs'): a text, or a list of texts, none of them empty")
    return Record(context, question, tuple(answers), prefix)


def _text(fields: Mapping[str, Any], name: str) -> str:
    value = fields.get(name, "")
    if not isinstance(value, str):
        raise ValueError(f"{name!r} must be a text, got {type(value).__name__}")
    return value


def measure_jsonl(
    llms: Mapping[str, Llama],
    path: str | os.PathLike[str],
    *,
    metrics: Sequence[str],
    max_tokens: int = 64,
    dense_tail: int = DENSE_TAIL,
    limit: int | None = None,
    template: str | None = None,
    progress: Callable[[int, int], object] | None = None,
) -> dict[str, dict[str, float]]:
    """Ask every model the questions of a file; answers are greedy.

    A prompt that is too long loses tokens from its middle, as in LongBench (Bai et al. 2023, arXiv:2308.14508).

    Parameters
    ----------
    llms : mapping of str to Llama
        Open contexts of one model by name. What they hold is lost. A prompt and its answer fit into the smallest n_ctx.
    path : str or os.PathLike
        See `read_jsonl`.
    metrics : sequence of str
        "exact-match", "contains" and "f1" and "rouge-l" against the best answer; "contains-all": the share of answers
        that are in the text. "f1" and "rouge-l" need the extra "eval".
    max_tokens : int, default 64
        The longest answer.
    dense_tail : int, default 128
        The last so many tokens of a prompt attend to everything kept. Models without H2O ignore it.
    limit : int, optional
        Only so many lines, the first.
    template : str, optional
        The prompt, with {context}, and {question} or {input}, as in LongBench's files of prompts. By default
        "{context}\\n\\nQuestion: {question}\\nAnswer:", and where a line has no context, its question alone.
    progress : callable, optional
        Called as progress(n_done, n) after every prompt of every model.

    Returns
    -------
    dict of str to dict
        For each name the mean of each metric, "n" (prompts) and "n_cut" (prompts that were too long).

    Raises
    ------
    ValueError
        If an argument or a line of the file is bad.
    OSError
        If the file cannot be read.
    ImportError
        If a metric needs the extra "eval".
    """
    if not llms:
        raise _check.bad_argument(_OWNER, "llms", "at least one model", llms)
    chosen = check_metrics(_OWNER, metrics)
    max_tokens = _check.integer(_OWNER, "max_tokens", max_tokens, 1)
    dense_tail = _check.integer(_OWNER, "dense_tail", dense_tail, 0)
    if limit is not None:
        limit = _check.integer(_OWNER, "limit", limit, 1)
    if template is not None:
        _check_template(template)
    n_most = min(llm.n_ctx for llm in llms.values()) - max_tokens
    if n_most < 2:
        raise ValueError(f"[{_OWNER}] a context has no room for a prompt besides {max_tokens} tokens of answer")

    records = read_jsonl(path, limit)
    n_done = n_cut = 0
    scores: dict[str, dict[str, list[float]]] = {name: {metric: [] for metric in chosen} for name in llms}
    for record in records:
        prompt = next(iter(llms.values())).tokenize(record.prompt(template))
        n_cut += len(prompt) > n_most
        prompt = cut_middle(prompt, n_most)
        for name, llm in llms.items():
            llm.reset()
            text = answer(llm, prompt, max_tokens, dense_tail).decode(errors="replace")
            for metric, score in chosen.items():
                scores[name][metric].append(score(text, record.answers))
            n_done += 1
            if progress is not None:
                progress(n_done, len(records) * len(llms))
    counts = {"n": len(records), "n_cut": n_cut}
    return {name: {**{m: float(np.mean(s)) for m, s in by.items()}, **counts} for name, by in scores.items()}


def cut_middle(tokens: list[int], most: int) -> list[int]:
    """The first and the last tokens, `most` together."""
    if len(tokens) <= most:
        return tokens
    n_last = most // 2
    return tokens[: most - n_last] + tokens[-n_last:]


def _check_template(template: str) -> None:
    try:
        Record("", "", ()).prompt(template)
    except (LookupError, ValueError, AttributeError) as error:
        raise ValueError(
            f"[{_OWNER}] template must be a text with {{context}}, and {{question}} or {{input}}; "
            f"other braces are doubled: {error!r}"
        ) from None
