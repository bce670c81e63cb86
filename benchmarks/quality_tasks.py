"""What quality.py measures besides the tasks of `h2o_llama.eval`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

import numpy as np

import machine
from h2o_llama import H2OConfig, Llama
from h2o_llama.eval import Setting
from h2o_llama.eval.lockstep import Reader, read_windows
from h2o_llama.eval.settings import DENSE
from h2o_llama.eval.subject import Subject
from h2o_llama.eval.task import Progress, Row
from h2o_llama.llama import DENSE_TAIL
from h2o_llama.report.history import memory_history
from h2o_llama.report.measures import chance_of_chunk_start, chunk_start_share


@dataclass(frozen=True)
class Text:
    """As the task "perplexity", but what every window costs is kept: "added", in nats per token over dense attention.

    So two settings can be compared window by window, and errors are those of windows: tokens of one text are alike.
    """

    windows: int
    name: str = "text"
    contexts_each = 1

    def variants(self, subject: Subject, n_tokens: int) -> list[Row]:
        """One row."""
        return [subject.text.identity(n_tokens, self.windows)]

    def measure(
        self, subject: Subject, settings: Sequence[Setting], n_tokens: int, progress: Progress
    ) -> Mapping[str, Sequence[Row]]:
        """Results by the settings' names."""
        windows = subject.text.windows(n_tokens, self.windows)
        with ExitStack() as stack:
            dense = stack.enter_context(subject.open(DENSE, n_tokens))
            readers = {s.name: Reader(stack.enter_context(subject.open(s, n_tokens))) for s in settings}
            readings = read_windows(dense, readers, windows, 0, subject.chunk_size, progress)
        rows = {}
        for name, reading in readings.items():
            scored = reading.losses[:, n_tokens // 2 :]
            added = (scored.nats - scored.nats_dense).mean(axis=1)
            rows[name] = [{**scored.summary(), "added": [round(float(nats), 6) for nats in added]}]
        return rows


@dataclass(frozen=True)
class ChunkStarts:
    """Share of the heavy hitters that are among the first 8 tokens of their chunk, over all heads and memory sets.

    "share" counts all of them, "share_later" those that are not of the first chunk, whose first tokens are the
    sequence's.
    """

    windows: int
    n_threads: int
    name = "chunk starts"
    contexts_each = 1

    def variants(self, subject: Subject, n_tokens: int) -> list[Row]:
        """One row."""
        return [subject.text.identity(n_tokens, self.windows)]

    def measure(
        self, subject: Subject, settings: Sequence[Setting], n_tokens: int, progress: Progress
    ) -> Mapping[str, Sequence[Row]]:
        """Results by the settings' names."""
        windows = subject.text.windows(n_tokens, self.windows)
        rows = {}
        for i, setting in enumerate(settings):
            shares, later = [], []
            with Llama(
                subject.weights,
                n_ctx=n_tokens,
                n_ubatch=subject.chunk_size,
                n_threads=self.n_threads,
                h2o=setting.h2o,
                record=True,
            ) as llm:
                for window in windows:
                    llm.reset()
                    llm.eval(window)
                    history = memory_history(llm)
                    is_later = history.heavy >= subject.chunk_size
                    shares.append(np.nanmean(chunk_start_share(history)))
                    later.append(
                        np.nanmean(chunk_start_share(replace(history, heavy=np.where(is_later, history.heavy, -1))))
                    )
            rows[setting.name] = [
                {
                    "share": float(np.mean(shares)),
                    "share_later": float(np.mean(later)),
                    "chance": chance_of_chunk_start(history),
                }
            ]
            progress(i + 1, len(settings))
        return rows


def tail_time(model: Path, n_tokens: int, repeats: int, n_threads: int) -> Row:
    """What a dense tail takes of a prefill, with `H2OConfig`'s and `Llama`'s defaults: medians of several prefills."""
    h2o = H2OConfig()
    with Llama(model, n_ctx=n_tokens, n_threads=n_threads, h2o=h2o) as llm:
        prompt = np.random.default_rng(0).integers(0, 256, n_tokens)
        tail_ms, total_ms = [], []
        for _ in range(repeats):
            llm.reset()
            llm.eval(prompt, dense_tail=DENSE_TAIL)
            stats = llm.kv.stats
            tail_ms.append(stats.tail_ms)
            total_ms.append(stats.single_pass_ms + stats.tail_ms)
        return {
            "tail_ms": median(tail_ms),
            "total_ms": median(total_ms),
            "share": median(tail / total for tail, total in zip(tail_ms, total_ms, strict=True)),
            "chunk_size": llm.kv.chunk_size,
            "machine": machine.describe(),
        }
