"""Prefill speed and memory of H2O's schedules and of dense attention: tables, JSON and a plot.

    python benchmarks/prefill.py --json prefill.json --plot prefill.png     # everything, about a quarter of an hour
    python benchmarks/prefill.py 4096 16384 --repeats 5                     # these lengths only
    python benchmarks/prefill.py --from-json prefill.json --plot prefill.svg

The model is random, with 4 layers of Qwen3-0.6B's shape. All settings prefill the same prompt with the same model file
and the same number of threads. The goals are printed next to what was measured.
"""

from __future__ import annotations

import sys
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.live import Live

import machine
from kernel_share import measure_kernels
from measure import Bench, Plan
from output import check_output
from random_model import ModelSpec, make_prompt, model_file
from results import Run
from settings import CHUNK_SIZE
from tables import print_tables

LENGTHS = [1024, 4096, 8192, 16384, 32768, 65536, 131072]
PIPE_WIDTH = 120


def main(
    lengths: Annotated[list[int], typer.Argument(help="Prompt lengths N.", min=2)] = LENGTHS,
    repeats: Annotated[int, typer.Option(help="Prefills of each setting and length.", min=1)] = 3,
    once_above: Annotated[float, typer.Option(help="Do not repeat prefills that take more seconds.", min=0)] = 20,
    dense_max: Annotated[int, typer.Option(help="Leave dense attention out of longer prompts.", min=1024)] = 32768,
    threads: Annotated[int | None, typer.Option(help="Threads; by default one for each CPU.", min=1)] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write all figures here.")] = None,
    plot_file: Annotated[
        Path | None, typer.Option("--plot", help="Draw tokens/s against N here, .png or .svg.")
    ] = None,
    from_json: Annotated[
        Path | None, typer.Option(help="Measure nothing: show an earlier run.", exists=True, dir_okay=False)
    ] = None,
) -> None:
    """Prefill speed and memory of H2O's schedules and of dense attention."""
    check_output("--json", json_file)
    check_output("--plot", plot_file)
    if plot_file is not None and plot_file.suffix not in (".png", ".svg"):
        raise typer.BadParameter(f"{plot_file} is neither .png nor .svg", param_hint="--plot")
    if plot_file is not None and find_spec("matplotlib") is None:
        raise typer.BadParameter('needs matplotlib: pip install "h2o-llama[bench]"', param_hint="--plot")

    if from_json is not None:
        run = Run.load(from_json)
    else:
        run = measure(Plan(sorted(set(lengths)), repeats, once_above, dense_max, threads or machine.n_cores()))
    if json_file is not None:
        run.save(json_file)
    print_tables(run, Console(width=None if sys.stdout.isatty() else PIPE_WIDTH))
    if plot_file is not None:
        from plot import plot

        plot(run, plot_file)


def measure(plan: Plan) -> Run:
    spec = ModelSpec()
    description = machine.describe()
    prompt = make_prompt(spec, max(CHUNK_SIZE, *plan.lengths))
    # The line changes between prefills only: a thread that redraws it would take time from them.
    with Live(console=Console(stderr=True), auto_refresh=False, transient=True) as live:

        def report(line: str) -> None:
            live.update(line, refresh=True)

        report("attention kernels")
        kernels = measure_kernels(plan.n_threads)
        bench = Bench(model_file(spec), prompt, plan, report)
        bench.run()
    return Run(description, asdict(spec), asdict(plan), bench.results, kernels)


if __name__ == "__main__":
    typer.run(main)
