"""Speed and memory of dense attention and of H2O: `h2o-llama bench`."""

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.table import Table

from h2o_llama._demo.document import default_text
from h2o_llama._internal import check
from h2o_llama._internal.apart import call_apart, resident_bytes
from h2o_llama._internal.machine import available_cpus
from h2o_llama._internal.terminal import counted, plain
from h2o_llama.config import H2OConfig
from h2o_llama.llama import Llama
from h2o_llama.model import Model

_OWNER = "bench"

# A case whose prefill takes longer, in seconds, is measured once.
ONCE_ABOVE = 20.0

Tokens = NDArray[np.int32]
Row = dict[str, Any]
Progress = Callable[[str, int, int], object]


@dataclass(frozen=True)
class Mode:
    """A way to compute. Without `h2o` attention is dense; `flash_attn` and `matmul_kernels` as in `Llama`.

    Of several modes with one name, the fastest counts.
    """

    name: str
    h2o: H2OConfig | None
    flash_attn: str = "auto"
    matmul_kernels: str = "auto"


LLAMA_CPP = "llama.cpp"
DENSE = tuple(
    Mode(name, None, flash_attn, matmul_kernels)
    for name, matmul_kernels in ((LLAMA_CPP, "upstream"), ("dense, our kernels", "own"))
    for flash_attn in ("on", "off")
)
"""The second name has H2O's kernels for weights: the difference between it and H2O is attention."""


@dataclass(frozen=True)
class Sample:
    """Seconds of a prefill and of the tokens generated after it, and bytes held by the process and its context.

    `cpu_share` is the prefill's CPU time over wall time and the threads that can run at once. Clearly below 1,
    something else was running too. `peak_rss` is None where the system does not tell. It includes the weights that were
    read: they are pages of the model's file.
    """

    prefill_s: float
    generation_s: float | None
    cpu_share: float
    peak_rss: int | None
    kv_bytes: int
    state_bytes: int


@dataclass(frozen=True)
class Case:
    """A prompt of `n_tokens` in one mode, then `n_gen` generated tokens, which may be none."""

    mode: Mode
    n_tokens: int
    n_gen: int

    @property
    def n_used(self) -> int:
        """Tokens that a sample needs: the prompt, a generated token that is not timed, and the timed ones."""
        return self.n_tokens + (self.n_gen + 1 if self.n_gen > 0 else 0)

    def open(self, model: str | Model, chunk_size: int, **options: Any) -> Llama:
        """A context of a whole chunk at least. `chunk_size` is S with H2O, and llama.cpp's n_ubatch."""
        return Llama(
            model,
            n_ctx=max(self.n_used, chunk_size),
            n_batch=max(4096, chunk_size),
            n_ubatch=chunk_size,
            flash_attn=self.mode.flash_attn,
            matmul_kernels=self.mode.matmul_kernels,
            h2o=self.mode.h2o,
            **options,
        )

    def sample(self, model: str, tokens: Tokens, n_threads: int, chunk_size: int, **options: Any) -> Sample:
        """Measure once, in this process, which should have done nothing else."""
        with self.open(model, chunk_size, n_threads=n_threads, **options) as llm:
            llm.eval(tokens[: min(2 * chunk_size, self.n_tokens)])  # the first calls allocate memory and touch it
            llm.reset()
            cpu, wall = time.process_time(), time.perf_counter()
            llm.eval(tokens[: self.n_tokens])
            prefill_s = time.perf_counter() - wall
            cpu_share = (time.process_time() - cpu) / prefill_s / min(n_threads, available_cpus())
            generation_s = None
            if self.n_gen > 0:
                # The first one makes a graph, and memory sets if a chunk has just ended: once in S tokens.
                llm.eval(tokens[self.n_tokens : self.n_tokens + 1], decode=True)
                start = time.perf_counter()
                for i in range(self.n_tokens + 1, self.n_used):
                    llm.eval(tokens[i : i + 1], decode=True)
                generation_s = time.perf_counter() - start
            stats = llm.kv.stats
            return Sample(
                prefill_s, generation_s, cpu_share, resident_bytes(peak=True), stats.kv_bytes, stats.state_bytes
            )


class Bench:
    """Measures modes of one model: every mode reads the same tokens.

    Prompts of the lengths `n_prompt` and `depths` are read, and `n_gen` tokens generated after the latter.
    `chunk_size` is S, that of all modes. `changes` are arguments of `Model`: adapters, RoPE options. An interrupted run
    keeps its `samples`.

    Raises ValueError if an argument is bad or the text is too short; H2OError if a mode cannot work with the model.
    """

    def __init__(
        self,
        model: str | os.PathLike[str],
        modes: Sequence[Mode],
        n_prompt: Sequence[int],
        depths: Sequence[int] = (),
        *,
        n_gen: int = 32,
        repetitions: int = 3,
        chunk_size: int = H2OConfig.chunk_size,
        n_threads: int | None = None,
        n_gpu_layers: int = 0,
        text: bytes | None = None,
        changes: Mapping[str, Any] | None = None,
    ) -> None:
        self.repetitions = check.integer(_OWNER, "repetitions", repetitions, 1)
        self.n_threads = n_threads or available_cpus()
        self.chunk_size, self.n_gpu_layers = chunk_size, n_gpu_layers
        changes = {"n_gpu_layers": n_gpu_layers, **(changes or {})}
        self._options = {"n_threads": self.n_threads, "chunk_size": chunk_size, **changes}
        self.samples: dict[Case, list[Sample]] = {
            Case(
                mode,
                check.integer(_OWNER, "n_prompt" if n in n_prompt else "depths", n, 1),
                n_gen if n in depths else 0,
            ): []
            for n in sorted({*n_prompt, *depths})
            for mode in modes
        }
        if not self.samples:
            raise ValueError(f"[{_OWNER}] there is nothing to measure: give a prompt length or a depth")
        with Model(model, matmul_kernels="own", **changes) as weights:
            self.model_path, self.desc = weights.model_path, weights.desc
            self._tokens = prompt_tokens(weights, text, max(case.n_used for case in self.samples))
            for case in {case.mode: case for case in self.samples if case.mode.matmul_kernels != "upstream"}.values():
                # The longest case of each mode: what cannot work is refused now.
                case.open(weights, chunk_size, n_threads=self.n_threads, n_gpu_layers=n_gpu_layers).close()

    def run(self, progress: Progress = lambda *_: None, report: Callable[[str], object] = lambda line: None) -> None:
        """Measure everything: every sample in a process of its own, so that its peak memory is that of one mode.

        The modes of a length take turns: a slow minute hits all of them. `progress` is called as
        progress(name, n_done, n), with a name for each length, and never while something is measured. `report` gets a
        line for each sample.
        """
        for n_tokens in dict.fromkeys(case.n_tokens for case in self.samples):
            cases = [case for case in self.samples if case.n_tokens == n_tokens]
            for i in range(self.repetitions * len(cases)):
                case = cases[i % len(cases)]
                progress(f"{n_tokens:,} tokens", i, self.repetitions * len(cases))
                if not (found := self.samples[case]) or found[0].prefill_s < ONCE_ABOVE:
                    name = f"[{_OWNER}] the process that measures {case.mode.name} at {n_tokens:,} tokens"
                    tokens = self._tokens[: case.n_used]
                    found.append(call_apart(name, case.sample, self.model_path, tokens, **self._options))
                    plain = " without flash attention" if case.mode.flash_attn == "off" else ""
                    speed = n_tokens / found[-1].prefill_s
                    report(f"{n_tokens:,} tokens, {case.mode.name}{plain}: {speed:,.0f} tokens/s")
                    if sum(map(len, self.samples.values())) == 1:
                        minutes = self.repetitions * sum(case.n_used for case in self.samples) / speed / 60
                        report(f"at that speed everything takes {minutes:,.1f} minutes, long texts more")

    def rows(self) -> list[Row]:
        """A row for each length and name of a mode that has samples; speeds are of medians, in tokens per second.

        "mode", "n_tokens" (of the prompt), "prefill", "generation" (None if nothing was generated), both with
        "_over_dense" (over llama.cpp's of that length, or None), "peak_rss", "kv_bytes" (as allocated), "state_bytes"
        (index of keys, scores, memory sets, phase 1's results), "samples".
        """
        variants: dict[tuple[int, str], list[Row]] = {}
        for case, samples in self.samples.items():
            if samples:
                seconds = [sample.generation_s for sample in samples if sample.generation_s is not None]
                row = {
                    "mode": case.mode.name,
                    "n_tokens": case.n_tokens,
                    "prefill": case.n_tokens / median(sample.prefill_s for sample in samples),
                    "generation": case.n_gen / median(seconds) if seconds else None,
                    "peak_rss": max(
                        (sample.peak_rss for sample in samples if sample.peak_rss is not None), default=None
                    ),
                    "kv_bytes": samples[0].kv_bytes,
                    "state_bytes": samples[0].state_bytes,
                    "samples": [{"flash_attn": case.mode.flash_attn, **asdict(sample)} for sample in samples],
                }
                variants.setdefault((case.n_tokens, case.mode.name), []).append(row)
        rows = []
        for group in variants.values():
            best = max(group, key=lambda row: row["prefill"])
            generation = max((row["generation"] for row in group if row["generation"] is not None), default=None)
            rows.append({**best, "generation": generation, "samples": [s for row in group for s in row["samples"]]})
        dense = {row["n_tokens"]: row for row in rows if row["mode"] == LLAMA_CPP}
        for row in rows:
            for test in ("prefill", "generation"):
                speed, of_dense = row[test], dense.get(row["n_tokens"], {}).get(test)
                row[f"{test}_over_dense"] = None if speed is None or of_dense is None else speed / of_dense
        return rows

    def facts(self, machine: Mapping[str, Any]) -> str:
        """The machine, the model and the settings, in a sentence or two."""
        threads = counted(self.n_threads, "thread")
        most = max((len(samples) for samples in self.samples.values()), default=1)
        runs = "Single runs" if most < 2 else f"Medians of {most} runs, of one where a prompt took {ONCE_ABOVE:.0f} s"
        gpu = f", {self.n_gpu_layers} layers on the GPU" if self.n_gpu_layers else ""
        return (
            f"{machine['cpu']}, {threads}{gpu}, {machine['date'][:10]}. {self.desc} ({Path(self.model_path).name}), "
            f"chunks of {self.chunk_size:,} tokens. {runs}."
        )

    @property
    def doubt(self) -> str:
        """A sentence if other processes took CPU time from the samples, else nothing."""
        least = min((s.cpu_share for samples in self.samples.values() for s in samples), default=1.0)
        if least >= 0.9 or self.n_gpu_layers:
            return ""
        return (
            f" The machine was busy: other processes left as little as {least:.0%} of its CPU time to a prefill. "
            "Measure again before you believe it."
        )


NOTE = (
    "Tokens per second, in brackets over llama.cpp; of dense attention with and without flash attention, the faster. "
    "Peak memory is that of a process with nothing else, including the weights that were read. K and V are as "
    "allocated: in F16, with H2O in eight bits where it can; H2O's are its index, scores and memory sets."
)


def verdict(rows: Sequence[Row]) -> str:
    """How many times as fast as llama.cpp the first setting of H2O is, and where it is not worth it."""
    dense = {mode.name for mode in DENSE}
    name = next((row["mode"] for row in rows if row["mode"] not in dense), None)
    found = [row for row in rows if row["mode"] == name and row["prefill_over_dense"] is not None]
    if not found:
        return "Dense attention was not measured: there is nothing to compare with."
    times = ", ".join(f"{row['prefill_over_dense']:.1f} times at {row['n_tokens']:,} tokens" for row in found)
    said = f"On this machine H2O ({name}) reads faster than llama.cpp: {times}."
    slower = [row["n_tokens"] for row in found if row["prefill_over_dense"] < 1]
    if len(slower) == len(found):
        said = f"On this machine H2O ({name}) reads more slowly than llama.cpp ({times}): --h2o off is faster."
    elif slower:
        said += f" Up to {max(slower):,} tokens --h2o off is faster."
    last = [row for row in rows if row["mode"] not in dense and row["generation_over_dense"] is not None]
    last = [row for row in last if row["n_tokens"] == last[-1]["n_tokens"]]
    if last:
        first, best = last[0]["generation_over_dense"], max(last, key=lambda row: row["generation_over_dense"])
        is_for_reading = first < 1 and len(slower) < len(found)
        said += f" It generates {first:.1f} times as fast{': use it for long texts' if is_for_reading else ''}."
        options = " ".join(f"--h2o-set {word}" for word in best["mode"].split() if "=" in word)
        if options and best["generation_over_dense"] > 1.1 * first:
            said += f" For long answers add {options}: {best['generation_over_dense']:.1f} times as fast."
    return said


def tables(rows: Sequence[Row]) -> Iterator[Table]:
    """One for each length, of at most 80 columns."""
    for n_tokens in dict.fromkeys(row["n_tokens"] for row in rows):
        table = Table(f"{n_tokens:,} tokens")
        for name in ("prefill", "generation", "peak MB", "K, V MB", "H2O MB"):
            table.add_column(name, justify="right", no_wrap=True)
        for row in (row for row in rows if row["n_tokens"] == n_tokens):
            speeds = (_speed(row[test], row[f"{test}_over_dense"]) for test in ("prefill", "generation"))
            sizes = (row[name] for name in ("peak_rss", "kv_bytes", "state_bytes"))
            table.add_row(plain(row["mode"]), *speeds, *("–" if n is None else f"{n / 1e6:,.0f}" for n in sizes))
        yield table


def _speed(tokens_per_s: float | None, over_dense: float | None) -> str:
    if tokens_per_s is None:
        return "–"
    number = f"{tokens_per_s:,.0f}" if tokens_per_s >= 100 else f"{tokens_per_s:.3g}"
    return number if over_dense is None else f"{number} ({over_dense:.2f})"


def prompt_tokens(model: Model | Llama, text: bytes | None, n_tokens: int) -> Tokens:
    """The first n_tokens of a text, int32 [n_tokens]; by default source of this Python's standard library.

    A short prompt is the beginning of a longer one. Raises ValueError if the text has fewer tokens; H2OError if the
    model has no tokenizer.
    """
    found = model.tokenize(default_text() if text is None else text)
    if len(found) < n_tokens:
        raise ValueError(
            f"[{_OWNER}] the text has {len(found):,} tokens, but {n_tokens:,} are needed: give a longer text or "
            "smaller lengths"
        )
    return np.array(found[:n_tokens], dtype=np.int32)
