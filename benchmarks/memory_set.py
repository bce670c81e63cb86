"""Time of building one layer's memory set: 8 KV heads, sizes as in `H2OConfig`.

    python benchmarks/memory_set.py

By itself, chunk after chunk with random scores of scorer "sum", through `KVCache`; and inside a prefill with the
default scorer, from `Llama.kv.stats`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from statistics import median
from typing import Annotated

import numpy as np
import typer
from rich.console import Console
from rich.table import Table

from h2o_llama import KVCache, Llama
from h2o_llama.machine import cpu_model
from h2o_llama.params import available_cpus
from random_model import ModelSpec, make_prompt, model_file
from settings import CHUNK_SIZE, DEFAULT, SIZES

GOAL_US = 100


def main(
    chunks: Annotated[int, typer.Option(help="Chunks to build memory sets of, in each way.", min=2)] = 16,
    threads: Annotated[int | None, typer.Option(help="Threads of the prefill; by default all.", min=1)] = None,
) -> None:
    """Time of building one layer's memory set."""
    spec = ModelSpec()
    alone, call = stand_alone(spec, chunks)
    inside = in_prefill(spec, chunks, threads or available_cpus())

    table = Table("memory set of one layer")
    table.add_column("µs", justify="right")
    table.add_row("KVCache.build_memory_set, median", f"{alone:.1f}")
    table.add_row("  of that, a Python call that builds nothing", f"{call:.1f}")
    table.add_row("in a prefill, mean", f"{inside:.1f}", end_section=True)
    table.add_row("goal", f"< {GOAL_US}")
    console = Console()
    console.print(f"{cpu_model()}, {spec.n_head_kv} KV heads, {SIZES}")
    console.print(table)


def stand_alone(spec: ModelSpec, chunks: int) -> tuple[float, float]:
    """Microseconds of `build_memory_set`, and of a call that checks its argument and returns."""
    rng = np.random.default_rng(0)
    budgets = DEFAULT.local_window, DEFAULT.heavy_budget, DEFAULT.sink_tokens
    cache = KVCache(model_file(spec), chunks * CHUNK_SIZE, CHUNK_SIZE, *budgets)
    builds, calls = [], []
    for chunk in range(chunks):
        start, end = chunk * CHUNK_SIZE, (chunk + 1) * CHUNK_SIZE
        cache.next_chunk(CHUNK_SIZE)
        for layer in cache.layers:
            # Few tokens get most of the attention.
            scores = rng.pareto(1.5, (spec.n_head_kv, CHUNK_SIZE)).astype(np.float32)
            cache.init_chunk_scores(layer, start, scores)
            builds.append(_microseconds(partial(cache.build_memory_set, layer, end)))
            calls.append(_microseconds(partial(cache.next_chunk, 0)))
    return median(builds), median(calls)


def in_prefill(spec: ModelSpec, chunks: int, n_threads: int) -> float:
    """Microseconds that a prefill spends per memory set."""
    prompt = make_prompt(spec, chunks * CHUNK_SIZE)
    with Llama(model_file(spec), n_ctx=len(prompt), n_ubatch=CHUNK_SIZE, n_threads=n_threads, h2o=DEFAULT) as llm:
        llm.eval(prompt)
        stats = llm.kv.stats
    return 1000 * stats.select_ms / stats.selections


def _microseconds(function: Callable[[], object]) -> float:
    start = time.perf_counter()
    function()
    return 1e6 * (time.perf_counter() - start)


if __name__ == "__main__":
    typer.run(main)
