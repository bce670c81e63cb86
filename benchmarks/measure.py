"""Prefill of one prompt in several settings, and what it costs."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np
from numpy.typing import NDArray

from h2o_llama import H2OConfig, KVStats, Llama
from machine import peak_rss

CHUNK_SIZE = 1024
LOCAL_WINDOW = 256
HEAVY_BUDGET = 256
N_BATCH = 4096

Tokens = NDArray[np.int32]
Report = Callable[[str], None]


@dataclass(frozen=True)
class Setting:
    """A way to prefill a prompt."""

    name: str
    flash_attn: str
    h2o: H2OConfig | None

    @property
    def is_dense(self) -> bool:
        return self.h2o is None

    def open(self, model: Path, n_ctx: int, n_threads: int) -> Llama:
        return Llama(
            model,
            n_ctx=n_ctx,
            n_batch=N_BATCH,
            n_ubatch=CHUNK_SIZE,
            n_threads=n_threads,
            flash_attn=self.flash_attn,
            h2o=self.h2o,
        )


DENSE_FLASH = Setting("dense, flash attention on", "on", None)
DENSE_PLAIN = Setting("dense, flash attention off", "off", None)
TWO_PHASE = Setting("two_phase", "auto", H2OConfig(LOCAL_WINDOW, HEAVY_BUDGET))
SETTINGS = (DENSE_FLASH, DENSE_PLAIN, TWO_PHASE)


@dataclass(frozen=True)
class Sample:
    """One prefill.

    Attributes
    ----------
    seconds : float
        Wall time.
    cpu_share : float
        CPU time over wall time and threads. Clearly below 1, other processes took part of the machine.
    stats : KVStats
        What `Llama.kv.stats` said after it.
    """

    seconds: float
    cpu_share: float
    stats: KVStats


def prefill(llm: Llama, prompt: Tokens, n_threads: int) -> Sample:
    """Time one prefill from an empty cache."""
    llm.reset()
    cpu, wall = time.process_time(), time.perf_counter()
    llm.eval(prompt)
    seconds = time.perf_counter() - wall
    return Sample(seconds, (time.process_time() - cpu) / seconds / n_threads, llm.kv.stats)


def alternate(
    model: Path, prompt: Tokens, settings: Sequence[Setting], repeats: int, n_threads: int, report: Report
) -> dict[Setting, list[Sample]]:
    """Prefill the prompt `repeats` times in each setting, taking turns, so that a slow minute hits all of them."""
    samples: dict[Setting, list[Sample]] = {setting: [] for setting in settings}
    with ExitStack() as stack:
        llms = {s: stack.enter_context(s.open(model, len(prompt), n_threads)) for s in settings}
        for llm in llms.values():
            # The first call allocates and touches memory.
            llm.eval(prompt[:N_BATCH])
        for _ in range(repeats):
            for setting, llm in llms.items():
                sample = prefill(llm, prompt, n_threads)
                samples[setting].append(sample)
                report(f"N = {len(prompt):,}, {setting.name}: {sample.seconds:.2f} s")
    return samples


def peak_rss_of(model: Path, prompt: Tokens, setting: Setting, n_threads: int) -> int:
    """Peak resident set, in bytes, of a new process that prefills the prompt once and does nothing else."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        return pool.submit(_prefill_once, model, prompt, setting, n_threads).result()


def _prefill_once(model: Path, prompt: Tokens, setting: Setting, n_threads: int) -> int:
    with setting.open(model, len(prompt), n_threads) as llm:
        llm.eval(prompt)
        return peak_rss()


def dense_layers_seconds(model: Path, prompt: Tokens, repeats: int, n_threads: int, report: Report) -> float:
    """Seconds per token of everything but attention, in a dense prefill.

    Without flash attention, llama.cpp computes all N × N attention logits of a prompt of one ubatch, so the time is
    aN + bN². Two prompts, of half a ubatch and of a whole one, give a.
    """
    half, whole = prompt[: CHUNK_SIZE // 2], prompt[:CHUNK_SIZE]
    t_half, t_whole = (
        median(s.seconds for s in alternate(model, p, [DENSE_PLAIN], repeats, n_threads, report)[DENSE_PLAIN])
        for p in (half, whole)
    )
    return (4 * t_half - t_whole) / CHUNK_SIZE
