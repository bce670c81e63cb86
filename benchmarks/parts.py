"""Where a prefill spends its time, with the default configuration and each schedule.

    python benchmarks/parts.py                   # 8,192 tokens
    python benchmarks/parts.py 4096 65536

From one prefill each with profile=True, of the random model. A fused operator gathers K and V and adds up the columns
by itself, inside attention.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Annotated

import typer

from h2o_llama import Llama
from h2o_llama._internal.machine import cpu_model
from h2o_llama.bench.tables import Table
from h2o_llama.sequence._params import available_cpus
from random_model import ModelSpec, make_prompt, model_file
from settings import CHUNK_SIZE, DEFAULT

LENGTHS = [8192]
COLUMNS = ("ms per token", "layers", "attention", "gather", "scores", "selection", "memory set, ms", "graphs reused")


def main(
    lengths: Annotated[list[int], typer.Argument(help="Prompt lengths N.", min=2 * CHUNK_SIZE)] = LENGTHS,
    threads: Annotated[int | None, typer.Option(help="Threads; by default one for each CPU.", min=1)] = None,
) -> None:
    """Where a prefill spends its time."""
    print(f"{cpu_model()}\n\n{table(parts(lengths, threads or available_cpus()))}")


def table(lines: Iterable[list[str]]) -> str:
    """What `parts` gives, in Markdown."""
    return Table("N, schedule", COLUMNS, list(lines), "").markdown()


def parts(lengths: Sequence[int], n_threads: int) -> Iterator[list[str]]:
    """N and schedule, then the cells of `COLUMNS`. A memory set's time is that of one layer and chunk."""
    spec = ModelSpec()
    for schedule in ("single_pass", "two_phase"):
        h2o = replace(DEFAULT, schedule=schedule, chunk_size=CHUNK_SIZE)
        for n in lengths:
            prompt = make_prompt(spec, n)
            with Llama(model_file(spec), n_ctx=n, n_threads=n_threads, h2o=h2o, profile=True) as llm:
                llm.eval(prompt[: 2 * CHUNK_SIZE])  # the first calls allocate memory
                llm.reset()
                start = time.perf_counter()
                llm.eval(prompt)
                ms = 1000 * (time.perf_counter() - start)
                s = llm.kv.stats
            found = (s.attention_ms, s.gather_ms, s.score_ms, s.select_ms)
            shares = [f"{part / ms:.1%}" for part in (ms - sum(found), *found)]
            reused = f"{s.graphs_reused} of {s.single_pass_runs + s.phase1_runs + s.phase2_runs}"
            yield [f"{n:,}, {schedule}", f"{ms / n:.3f}", *shares, f"{s.select_ms / s.selections:.2f}", reused]


if __name__ == "__main__":
    typer.run(main)
