"""The demo's measurements: the same prompts through the same model, dense and with H2O."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Literal

from h2o_llama import H2OConfig, KVStats, Llama
from h2o_llama.demo.document import Document
from h2o_llama.inspect.extra_keys import last_tiles
from h2o_llama.inspect.history import memory_history
from h2o_llama.inspect.memory import MemoryReport, memory_report
from h2o_llama.sequence._params import available_cpus
from h2o_llama.sequence.generating import DENSE_TAIL

# A chunk reads itself, a memory set of 128 tokens, and up to 128 that are looked up.
CHUNK_SIZE = 512
H2O = H2OConfig(
    local_window=60, heavy_budget=64, sink_tokens=4, lookup_budget=128, retrieval="ngrams", chunk_size=CHUNK_SIZE
)

VALUE_DIGITS = 4
ROOM = 16  # for a question and its answer after a document

# Called with a variant's name, the tokens that it has done and those that it will do altogether.
Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Variant:
    """One way to compute attention."""

    name: str
    flash_attn: Literal["on", "off"]
    h2o: H2OConfig | None = None
    dense_tail: int = 0


DENSE = (Variant("dense with flash attention", "on"), Variant("dense without flash attention", "off"))
SPARSE = Variant("H2O", "on", H2O)
TAIL = Variant("H2O, dense tail", "on", H2O, DENSE_TAIL)


@dataclass
class Result:
    """What one variant took and said. `seconds`, `answers` and `looked_up` have one entry per prompt.

    `looked_up` are the positions that the prompt's last token saw by lookup; only H2O without a dense tail has them.
    """

    variant: Variant
    n_tokens: int
    stats: KVStats = field(default_factory=KVStats)
    seconds: list[float] = field(default_factory=list)
    answers: list[bytes] = field(default_factory=list)
    looked_up: list[frozenset[int]] = field(default_factory=list)

    @property
    def best_seconds(self) -> float:
        """Time of the fastest prefill: other work on the machine only ever adds to it."""
        return min(self.seconds)

    @property
    def tokens_per_second(self) -> float:
        """Prompt tokens per second at the best time."""
        return self.n_tokens / self.best_seconds


@dataclass(frozen=True)
class Comparison:
    """Dense (the faster variant), and H2O without and with a dense tail.

    `report` is what H2O without one kept of the last prompt.
    """

    dense: Result
    sparse: Result
    tail: Result
    report: MemoryReport


def default_threads() -> int:
    """Half of the CPUs: threads wait for each other by spinning, so that all are as slow as the busiest CPU."""
    return max(1, available_cpus() // 2)


def compare(
    model: Path, document: Document, n_threads: int, progress: Progress, dense: Sequence[Variant] = DENSE
) -> Comparison:
    """Prefill the document with each needle's question after it, or alone if it has none, with all variants in turn.

    Of several dense variants, the fastest at the first prompt goes on.
    """
    prompts = [document.text + needle.question for needle in document.needles] or [document.text]
    variants = [*dense, SPARSE, TAIL]
    with ExitStack() as stack:
        llms = {v: stack.enter_context(_open(model, v, len(document.text) + ROOM, n_threads)) for v in variants}
        results = {v: Result(v, len(llms[v].tokenize(prompts[0]))) for v in variants}
        for i, prompt in enumerate(prompts):
            for variant in variants:
                llm, result = llms[variant], results[variant]
                tokens = llm.tokenize(prompt)
                llm.reset()
                start = time.perf_counter()
                report_progress = _advance(progress, variant.name, i, len(prompts))
                llm.eval(tokens, progress=report_progress, dense_tail=variant.dense_tail)
                result.seconds.append(time.perf_counter() - start)
                result.stats = llm.kv.stats
                if variant == SPARSE:
                    report = memory_report(llm, tokens, "the demo's document", memory_history(llm))
                    looked_up = llm.kv.extra_keys(llm.kv.layers[0], 0, last_tiles(llm)[-1])
                    result.looked_up.append(frozenset(looked_up.tolist()))
                if document.needles:
                    result.answers.append(_greedy(llm))
            if i == 0:
                fastest = min(dense, key=lambda v: results[v].best_seconds)
                variants = [fastest, SPARSE, TAIL]
    return Comparison(results[fastest], results[SPARSE], results[TAIL], report)


def _open(model: Path, variant: Variant, n_ctx: int, n_threads: int) -> Llama:
    return Llama(
        model,
        n_ctx=n_ctx,
        n_threads=n_threads,
        flash_attn=variant.flash_attn,
        h2o=variant.h2o,
        record=variant == SPARSE,
    )


def _advance(progress: Progress, name: str, n_before: int, n_prompts: int) -> Callable[[int, int], None]:
    """Progress over all prompts from that of one. The first counts alone: for one variant it is the only one."""
    n_planned = n_prompts if n_before > 0 else 1
    return lambda n_done, n_total: progress(name, n_before * n_total + n_done, n_planned * n_total)


def _greedy(llm: Llama) -> bytes:
    """The most probable answer, as long as a value is."""
    return llm.detokenize(list(islice(llm.generate([], temperature=0), VALUE_DIGITS)))
