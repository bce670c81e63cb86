"""Prefills of several lengths in several settings, and what they cost."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from h2o_llama import Llama
from machine import peak_rss
from results import Case, Result, Sample
from settings import CHUNK_SIZE, DENSE, SETTINGS, SHORT, SINGLE_PASS, Setting

Tokens = NDArray[np.int32]
Report = Callable[[str], None]


@dataclass(frozen=True)
class Plan:
    """What to measure.

    Attributes
    ----------
    lengths : sequence of int
        Prompt lengths N.
    repeats : int
        Prefills of each setting and length: the first in a process of its own, the others alternate in this one.
    once_above : float
        Seconds; a prefill that takes longer is not repeated, unless it is single_pass.
    dense_max : int
        Dense attention is left out of longer prompts.
    n_threads : int
    """

    lengths: Sequence[int]
    repeats: int
    once_above: float
    dense_max: int
    n_threads: int

    def settings(self, n_tokens: int) -> list[Setting]:
        return [s for s in SETTINGS if not s.is_dense or n_tokens <= self.dense_max]


class Bench:
    """Measures what a plan says; the figures are in `results`."""

    def __init__(self, model: Path, prompt: Tokens, plan: Plan, report: Report) -> None:
        self._model = model
        self._prompt = prompt
        self._plan = plan
        self._report = report
        self.results: dict[Case, Result] = {}

    def run(self) -> None:
        # What the others are compared with: dense attention's first chunk, and single_pass at a short length. They are
        # measured again next to every N, so that they stand for the whole run.
        references = [*(Case(setting, CHUNK_SIZE) for setting in DENSE), Case(SINGLE_PASS, SHORT)]
        for case in references:
            self._alone(case)
        for n_tokens in self._plan.lengths:
            cases = [Case(setting, n_tokens) for setting in self._plan.settings(n_tokens)]
            for case in cases:
                if case not in references:
                    self._alone(case)
            # single_pass is the one whose speed must stay constant up to the longest prompt.
            again = [c for c in cases if c.setting is SINGLE_PASS or self._is_short(c)]
            self._alternate(list(dict.fromkeys(references + again)))
            for case in again:
                if not case.setting.is_dense:
                    self._profile(case)

    def _is_short(self, case: Case) -> bool:
        return self.results[case].samples[0].seconds <= self._plan.once_above

    def _alone(self, case: Case) -> None:
        """The first prefill, in a new process that does nothing else."""
        self._report(f"{case}: by itself")
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(1, mp_context=context) as pool:
            arguments = self._model, self._prompt[: case.n_tokens], case.setting, self._plan.n_threads
            sample, rss = pool.submit(prefill_once, *arguments).result()
        self.results[case] = Result(case, [sample], rss)

    def _alternate(self, cases: Sequence[Case]) -> None:
        """The other prefills, taking turns, so that a slow minute hits all settings."""
        if self._plan.repeats == 1:
            return
        with ExitStack() as stack:
            llms = {case: stack.enter_context(self._open(case)) for case in cases}
            for i in range(1, self._plan.repeats):
                for case, llm in llms.items():
                    self._report(f"{case}: {i + 1} of {self._plan.repeats}")
                    sample = prefill(llm, self._prompt[: case.n_tokens], self._plan.n_threads)
                    self.results[case].samples.append(sample)

    def _profile(self, case: Case) -> None:
        self._report(f"{case}: profile")
        with self._open(case, profile=True) as llm:
            self.results[case].profile = prefill(llm, self._prompt[: case.n_tokens], self._plan.n_threads)

    def _open(self, case: Case, profile: bool = False) -> Llama:
        prompt = self._prompt[: case.n_tokens]
        return open_warm(self._model, prompt, case.setting, self._plan.n_threads, profile)


def prefill(llm: Llama, prompt: Tokens, n_threads: int) -> Sample:
    """Time one prefill from an empty cache."""
    llm.reset()
    cpu, wall = time.process_time(), time.perf_counter()
    llm.eval(prompt)
    seconds = time.perf_counter() - wall
    return Sample(seconds, (time.process_time() - cpu) / seconds / n_threads, llm.kv.stats)


def prefill_once(model: Path, prompt: Tokens, setting: Setting, n_threads: int) -> tuple[Sample, int]:
    """One prefill, and the peak resident set of this process in bytes."""
    with open_warm(model, prompt, setting, n_threads) as llm:
        return prefill(llm, prompt, n_threads), peak_rss()


def open_warm(model: Path, prompt: Tokens, setting: Setting, n_threads: int, profile: bool = False) -> Llama:
    """A Llama for the prompt that has already computed two chunks: the first call allocates and touches memory."""
    llm = setting.open(model, len(prompt), n_threads, profile)
    llm.eval(prompt[: 2 * CHUNK_SIZE])
    return llm
