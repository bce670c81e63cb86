"""Prefill speed and memory with H2O on and off: a table, and JSON.

    python benchmarks/prefill.py                          # 1,024 to 16,384 tokens
    python benchmarks/prefill.py 4096 --repeats 5 --json prefill.json

The model is random, with 4 layers of Qwen3-0.6B's shape. All settings run in one process, in turn, on the same model
file with the same number of threads. "Dense" in a ratio is the faster of flash attention on and off.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

import machine
from h2o_llama import KVStats
from measure import (
    CHUNK_SIZE,
    N_BATCH,
    SETTINGS,
    TWO_PHASE,
    Sample,
    Setting,
    Tokens,
    alternate,
    dense_layers_seconds,
    peak_rss_of,
)
from random_model import ModelSpec, make_prompt, model_file

# Below this share of the CPU time that its threads could have had, a figure says little.
MIN_CPU_SHARE = 0.9
LENGTHS = [1024, 4096, 8192, 16384]
MB = 1e6


@dataclass(frozen=True)
class Result:
    """All prefills of N tokens in one setting."""

    n_tokens: int
    setting: Setting
    samples: list[Sample]
    peak_rss: int

    @property
    def seconds(self) -> float:
        return median(s.seconds for s in self.samples)

    @property
    def speed(self) -> float:
        """Tokens per second."""
        return self.n_tokens / self.seconds

    def median_of(self, stat: Callable[[KVStats], float]) -> float:
        return median(stat(s.stats) for s in self.samples)


def main(
    lengths: Annotated[list[int], typer.Argument(help="Prompt lengths N.", min=2)] = LENGTHS,
    repeats: Annotated[int, typer.Option(help="Prefills of each setting and length.", min=1)] = 3,
    threads: Annotated[int | None, typer.Option(help="Threads; by default one for each CPU.", min=1)] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write all figures here.")] = None,
) -> None:
    """Prefill speed and memory with H2O on and off."""
    if json_file is not None and not json_file.absolute().parent.is_dir():
        raise typer.BadParameter(f"{json_file} is in no folder", param_hint="--json")
    spec = ModelSpec()
    model = model_file(spec)
    n_threads = threads or machine.n_cores()
    description = machine.describe()
    console = Console()

    results: list[Result] = []
    for n_tokens in lengths:
        results += measure(model, make_prompt(spec, n_tokens), repeats, n_threads)
    layers_seconds = dense_layers_seconds(model, make_prompt(spec, CHUNK_SIZE), 2 * repeats, n_threads, _report)

    console.print(f"{description['cpu']}, threads: {n_threads}, repeats: {repeats}, {spec}")
    console.print(speed_table(results))
    console.print(two_phase_table(results))
    if any(n_tokens > CHUNK_SIZE for n_tokens in lengths):
        console.print(bound_table(results, spec, layers_seconds))
    cpu_share = min(s.cpu_share for r in results for s in r.samples)
    if cpu_share < MIN_CPU_SHARE:
        console.print(f"Doubtful: other processes left as little as {cpu_share:.0%} of its CPU time to a prefill.")

    if json_file is not None:
        parameters = {"threads": n_threads, "repeats": repeats, "n_batch": N_BATCH, "n_ubatch": CHUNK_SIZE}
        content = {
            "machine": description,
            "model": asdict(spec),
            "parameters": parameters,
            "dense_layers_seconds_per_token": layers_seconds,
            "results": [asdict(r) | {"tokens_per_second": r.speed} for r in results],
        }
        json_file.write_text(json.dumps(content, indent=2) + "\n")


def measure(model: Path, prompt: Tokens, repeats: int, n_threads: int) -> list[Result]:
    """All settings at one prompt length."""
    samples = alternate(model, prompt, SETTINGS, repeats, n_threads, _report)
    results = []
    for setting in SETTINGS:
        _report(f"N = {len(prompt):,}, {setting.name}: peak RSS")
        results.append(Result(len(prompt), setting, samples[setting], peak_rss_of(model, prompt, setting, n_threads)))
    return results


def dense_speed(results: list[Result], n_tokens: int) -> float:
    """Tokens per second of the better dense setting."""
    return max(r.speed for r in results if r.setting.is_dense and r.n_tokens == n_tokens)


def speed_table(results: list[Result]) -> Table:
    table = _table("Prefill", "setting", "N", "tokens/s", "over dense", "peak RSS, MB")
    for r in results:
        ratio = f"{r.speed / dense_speed(results, r.n_tokens):.2f}"
        is_last = r.setting is SETTINGS[-1]
        table.add_row(
            r.setting.name, f"{r.n_tokens:,}", f"{r.speed:.0f}", ratio, f"{r.peak_rss / MB:,.0f}", end_section=is_last
        )
    return table


def two_phase_table(results: list[Result]) -> Table:
    """Where two_phase spends time and memory, one column for each N."""
    columns = [r for r in results if r.setting is TWO_PHASE]
    held = [r.samples[0].stats for r in columns]
    extra = [s.score_bytes + s.memory_bytes for s in held]
    table = _table("two_phase", "N", *(f"{r.n_tokens:,}" for r in columns))
    table.add_row("phase 1, ms", *(f"{r.median_of(lambda s: s.phase1_ms):,.0f}" for r in columns))
    table.add_row("phase 2, ms", *(f"{r.median_of(lambda s: s.phase2_ms):,.0f}" for r in columns))
    table.add_row("selection, ms", *(f"{r.median_of(lambda s: s.select_ms):.2f}" for r in columns), end_section=True)
    table.add_row("K and V, MB", *(f"{s.kv_bytes / MB:.1f}" for s in held))
    table.add_row("scores and memory sets, MB", *(f"{n / MB:.2f}" for n in extra))
    table.add_row("  of K and V", *(f"{n / s.kv_bytes:.2%}" for n, s in zip(extra, held, strict=True)))
    table.add_row("(m, l, o) of a call, MB", *(f"{s.intra_bytes / MB:.1f}" for s in held))
    return table


def bound_table(results: list[Result], spec: ModelSpec, layers_seconds: float) -> Table:
    """What two_phase could reach if its attention cost nothing: its dense layers run almost twice."""
    columns = [r for r in results if r.setting is TWO_PHASE and r.n_tokens > CHUNK_SIZE]
    work = spec.two_phase_work / spec.dense_work
    layers_ms = work * layers_seconds * 1000
    total_ms = [1000 / r.speed for r in columns]
    dense_ms = [1000 / dense_speed(results, r.n_tokens) for r in columns]
    table = _table("two_phase, ms per token", "N", *(f"{r.n_tokens:,}" for r in columns))
    table.add_row(f"dense layers, {work:.2f} × {layers_seconds * 1000:.2f}", *(f"{layers_ms:.2f}" for _ in columns))
    table.add_row("attention and the rest", *(f"{ms - layers_ms:.2f}" for ms in total_ms))
    table.add_row("better dense, in all", *(f"{ms:.2f}" for ms in dense_ms), end_section=True)
    table.add_row("over dense", *(f"{d / t:.2f}" for d, t in zip(dense_ms, total_ms, strict=True)))
    table.add_row("over dense if attention were free", *(f"{ms / layers_ms:.2f}" for ms in dense_ms))
    return table


def _table(title: str, first: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left")
    table.add_column(first)
    for column in columns:
        table.add_column(column, justify="right")
    return table


def _report(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    typer.run(main)
