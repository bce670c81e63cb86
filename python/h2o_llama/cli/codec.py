"""`h2o-llama codec`: how small a model's K and V become, and how fast."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from h2o_llama.bench.codec import CodecPlan, CodecReport, KVType, Row, measure, read_tensors
from h2o_llama.bench.codec_tables import facts, tables
from h2o_llama.cli import options, sweeps
from h2o_llama.cli.progress import progress_bars
from h2o_llama.cli.prompt import model_file, open_weights, read_text
from h2o_llama.machine import describe
from h2o_llama.params import available_cpus
from h2o_llama.report.html import check_target

_STDOUT = Path("-")


def codec(
    model: options.Model,
    text: sweeps.Text = None,
    n_tokens: Annotated[int, typer.Option(min=1, help="First tokens of the text to read.")] = 4096,
    chunk: Annotated[int, typer.Option(min=1, help="Tokens of a chunk: a frame each.")] = 256,
    group: Annotated[int, typer.Option(min=1, help="Chunks of a group: a frame each.")] = 8,
    kv_type: Annotated[KVType, typer.Option("--type", help="What the cache holds.")] = "f16",
    repetitions: Annotated[int, typer.Option("--repetitions", "-r", min=1, help="Samples of each time.")] = 3,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Write all figures to this file; -: to standard output, not tables.")
    ] = None,
    plot: sweeps.Plot = None,
    threads: options.Threads = None,
    gpu_layers: options.GpuLayers = 0,
) -> None:
    """Measure how small the lossless codec makes a model's K and V, and how fast it is.

    A text is read once. K and V of every layer are encoded as one frame, in chunks, and in groups of chunks, with the
    predictors and codes that are chosen and with each that could be; every frame is decoded and compared. Tables are
    Markdown unless they go to a terminal.
    """
    if json_file is not None and json_file != _STDOUT:
        check_target(json_file)
    draw = None if plot is None else _drawing(plot)
    plan = CodecPlan(n_tokens, chunk, group, kv_type, repetitions)
    started = describe()
    path = model_file(model)
    with open_weights(model, gpu_layers) as weights:
        model_facts = {"file": Path(weights.model_path).name, "desc": weights.desc}
    tensors = read_tensors(
        path, None if text is None else read_text(text), plan, threads or available_cpus(), gpu_layers
    )
    with progress_bars(auto_refresh=False) as update:
        rows = measure(tensors, plan, update)
    model_facts["text"] = "Python's sources" if text is None else text.name
    _write(CodecReport(started, model_facts, asdict(plan), rows), json_file, draw)


def _write(report: CodecReport, json_file: Path | None, draw: Callable[[list[Row]], list[Path]] | None) -> None:
    written = []
    if json_file is not None and json_file != _STDOUT:
        json_file.write_text(report.to_json(), encoding="utf-8")
        written.append(json_file)
    if draw is not None:
        written += draw(report.rows)
    if json_file == _STDOUT:
        sys.stdout.write(report.to_json())
        return
    console = Console()
    if console.is_terminal:
        console.print(facts(report), "", highlight=False, markup=False)
        for table in tables(report):
            console.print(table.rich(), "")
    else:
        print(facts(report), *(table.markdown() for table in tables(report)), sep="\n\n")
    for path in written:
        console.print(f"Written: {path}", soft_wrap=True, highlight=False, markup=False)


def _drawing(folder: Path) -> Callable[[list[Row]], list[Path]]:
    """What draws rows into a folder. Fails here, before anything is measured, if matplotlib or the folder cannot be."""
    from h2o_llama.plots import codec_plots

    folder.mkdir(parents=True, exist_ok=True)
    return lambda rows: codec_plots(rows, folder)
