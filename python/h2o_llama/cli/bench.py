"""`h2o-llama bench`: how fast a model reads and generates, dense and with H2O, and in how much memory."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Annotated

import typer

from h2o_llama._internal.machine import describe
from h2o_llama.bench import Bench, Plan, Report, beside_dense
from h2o_llama.bench.rows import of_groups
from h2o_llama.bench.tables import facts, tables
from h2o_llama.cli import findings, options, sweeps
from h2o_llama.cli.progress import progress_bars
from h2o_llama.cli.prompt import model_file, read_text
from h2o_llama.cli.sweeps import values
from h2o_llama.cli.weights import NONE, Changes, with_changes
from h2o_llama.eval import Setting
from h2o_llama.sequence._params import available_cpus


@with_changes
@sweeps.with_settings(schedule="single_pass,two_phase", decode="full,memory")
def bench(
    model: options.Model,
    n_prompt: Annotated[str, typer.Option(help="Prompt lengths N to read.")] = "1024,4096,8192",
    n_gen: Annotated[int, typer.Option(min=1, help="Tokens to generate after a prompt.")] = 32,
    depth: Annotated[str, typer.Option(help="Prompt lengths to generate after.")] = "4096,8192",
    repetitions: Annotated[int, typer.Option("--repetitions", "-r", min=1, help="Samples of each figure.")] = 3,
    dense_max: Annotated[
        int | None, typer.Option(min=0, help="Leave dense attention out of longer prompts; 0: measure H2O only.")
    ] = None,
    text: sweeps.Text = None,
    json_file: sweeps.JsonFile = None,
    csv_file: Annotated[
        Path | None, typer.Option("--csv", help="Write a line for each figure to this file; - as with --json.")
    ] = None,
    plot: sweeps.Plot = None,
    settings: Sequence[Setting] = (),
    chunk: options.Chunk = options.DEFAULTS.chunk_size,
    threads: options.Threads = None,
    gpu_layers: options.GpuLayers = 0,
    changes: Changes = NONE,
) -> None:
    """Measure how fast a model reads prompts and generates, with dense attention and with H2O.

    Dense attention is measured twice: as llama.cpp computes it, and with our own products with weights, as H2O has
    them. So the table tells what is attention and what is not.

    All modes read the same tokens with the same weights, in turns; figures are medians. A prefill of more than 20
    seconds is measured once. What generated tokens read is set beside what this machine's memory delivers. Options that
    take several values give all combinations. Ctrl-C ends it with what was measured so far. Tables are Markdown unless
    they go to a terminal.
    """
    plan = Plan(
        beside_dense(settings),
        n_prompt=values("--n-prompt", n_prompt, int),
        depths=values("--depth", depth, int),
        n_gen=n_gen,
        repetitions=repetitions,
        dense_max=dense_max,
        chunk_size=chunk,
        n_threads=threads or available_cpus(),
        n_gpu_layers=gpu_layers,
        changes=changes,
    )
    if json_file == findings.STDOUT and csv_file == findings.STDOUT:
        raise typer.BadParameter("--json and --csv cannot both go to standard output")
    findings.check_files(json_file, csv_file)
    draw = None if plot is None else findings.drawing("bench_plots", plot)

    started = describe()
    with closing(Bench(model_file(model), plan, None if text is None else read_text(text))) as measured:
        try:
            with progress_bars(auto_refresh=False) as update:
                measured.run(update)
        finally:  # what was measured before Ctrl-C or an error counts too
            if measured.rows():
                report = Report.of(measured, started)
                files = [(json_file, report.to_json()), (csv_file, report.to_csv())]
                findings.write(files, of_groups(report.rows), draw, facts(report), tables(report))
