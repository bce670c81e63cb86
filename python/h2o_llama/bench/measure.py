"""Runs a plan."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import ExitStack

from h2o_llama._internal.memory import kv_bytes_at_least, physical_memory
from h2o_llama.bench.alone import measure_alone
from h2o_llama.bench.bandwidth import read_bandwidth
from h2o_llama.bench.case import Case
from h2o_llama.bench.plan import Plan
from h2o_llama.bench.prompt import prompt_tokens
from h2o_llama.bench.rows import Result, Row, rows
from h2o_llama.bench.token_bytes import weights_read
from h2o_llama.model import Model

# A prefill that takes longer, in seconds, is measured once.
ONCE_ABOVE = 20.0

Progress = Callable[[str, int, int], object]


class Bench:
    """Measures what a plan says, of one model; every mode reads the same tokens with the same weights.

    What is read is `h2o_llama.bench.prompt.prompt_tokens` of the text. `results` are what has been measured so far, of
    a run that was interrupted too. `weights` is the model. `weight_bytes` are
    those that a generated token reads. `bandwidth` is the bytes per second that the CPU reads from memory, the best so
    far; None before the first, and with layers on a GPU.

    Raises ValueError if an argument is bad, the text is too short, or memory does not suffice; H2OError if a mode
    cannot work with the model.
    """

    def __init__(self, model: str | os.PathLike[str], plan: Plan, text: bytes | None = None) -> None:
        self.plan = plan
        self.results: list[Result] = []
        self.bandwidth: float | None = None
        self._weights: dict[str, Model] = {}  # by products: upstream's have some types in a layout of their own
        try:
            cases = [case for n in plan.lengths for case in plan.cases(n)]
            for products in dict.fromkeys(case.mode.resolved_products for case in cases):
                self._weights[products] = Model(
                    model, n_gpu_layers=plan.n_gpu_layers, products=products, **plan.changes
                )
            self.weight_bytes = weights_read(self.weights._handle.weight_bytes, self.weights.metadata)
            self._tokens = prompt_tokens(self.weights, text, max(case.n_used for case in cases))
            self._check_memory()
            for case in {case.mode: case for case in cases}.values():  # of each mode the longest
                case.open(self._weights_of(case)).close()
        except BaseException:
            self.close()
            raise

    @property
    def weights(self) -> Model:
        """The model, for whoever asks about it."""
        return next(iter(self._weights.values()))

    def _weights_of(self, case: Case) -> Model:
        return self._weights[case.mode.resolved_products]

    def close(self) -> None:
        """Free the weights."""
        for weights in self._weights.values():
            weights.close()

    def rows(self) -> list[Row]:
        """The figures so far, see `h2o_llama.bench.rows.rows`."""
        return rows(self.results, self.weight_bytes, self.bandwidth)

    def run(self, progress: Progress | None = None) -> None:
        """Measure everything.

        Every case first runs in a process of its own, which tells its peak memory. That is its only sample if it takes
        longer than `ONCE_ABOVE`. The samples of the others are taken in this process, where they alternate: a slow
        minute hits all modes.

        `progress` is called as progress(name, n_done, n), with a name for each length, and never while something is
        measured.
        """
        for n_tokens in self.plan.lengths:
            self._run_length(n_tokens, progress or (lambda name, n_done, n: None))

    def _run_length(self, n_tokens: int, progress: Progress) -> None:
        cases = self.plan.cases(n_tokens)
        name, n_done, n = f"{n_tokens:,} tokens", 0, len(cases) * (1 + self.plan.repetitions)
        progress(name, n_done, n)
        if self.plan.n_gpu_layers == 0:
            self.bandwidth = max(self.bandwidth or 0.0, read_bandwidth(self.plan.n_threads))
        repeated: list[Result] = []
        for case in cases:
            alone = measure_alone(case, self.weights.model_path, self._tokens, **self.plan.changes)
            is_prompt = n_tokens in self.plan.n_prompt and not case.mode.only_generates
            result = Result(case, is_prompt, alone.stats, alone.peak_rss)
            self.results.append(result)
            if alone.sample.prefill_s > ONCE_ABOVE:
                result.samples.append(alone.sample)
                n -= self.plan.repetitions
            else:
                repeated.append(result)
            progress(name, n_done := n_done + 1, n)
        with ExitStack() as stack:
            llms = [stack.enter_context(result.case.open(self._weights_of(result.case))) for result in repeated]
            for result, llm in zip(repeated, llms, strict=True):
                result.case.warm(llm, self._tokens)
            for _ in range(self.plan.repetitions):
                for result, llm in zip(repeated, llms, strict=True):
                    result.samples.append(result.case.measure(llm, self._tokens))
                    progress(name, n_done := n_done + 1, n)

    def _check_memory(self) -> None:
        """All modes of a length are open at the same time."""
        available = physical_memory()
        if available is None or self.plan.n_gpu_layers != 0:
            return
        for n_tokens in self.plan.lengths:
            cases = self.plan.cases(n_tokens)
            needed = len(self._weights) * self.weights.model_bytes + sum(self._kv_bytes(case) for case in cases)
            if needed > available:
                raise ValueError(
                    f"[bench] {n_tokens:,} tokens in {len(cases)} modes need {needed / 2**30:.1f} GiB for weights, K "
                    f"and V, but this machine has {available / 2**30:.1f} GiB of memory: use smaller lengths or fewer "
                    "modes"
                )

    def _kv_bytes(self, case: Case) -> int:
        has_index = case.mode.h2o is not None and case.mode.h2o.has_key_index
        return kv_bytes_at_least(self.weights._handle, case.n_ctx, "f16", "f16", has_index)
