"""`python benchmarks/codec_sizes.py`: how small a model's K and V become, and how fast."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from h2o_llama._internal.machine import describe
from h2o_llama.cli import options, sweeps
from h2o_llama.cli.progress import progress_bars
from h2o_llama.cli.prompt import model_file, open_model, read_text
from h2o_llama.sequence._params import available_cpus
from kv_codec.measure import CodecPlan, CodecReport, KVType, measure, read_tensors
from kv_codec.tables import facts, tables

app = typer.Typer(pretty_exceptions_enable=False)


@app.command()
def codec(
    model: options.Model,
    text: sweeps.Text = None,
    n_tokens: Annotated[int, typer.Option(min=1, help="First tokens of the text to read.")] = 4096,
    chunk: Annotated[int, typer.Option(min=1, help="Tokens of a chunk: a frame each.")] = 256,
    group: Annotated[int, typer.Option(min=1, help="Chunks of a group: a frame each.")] = 8,
    kv_type: Annotated[KVType, typer.Option("--type", help="What the cache holds.")] = "f16",
    repetitions: Annotated[int, typer.Option("--repetitions", "-r", min=1, help="Samples of each time.")] = 3,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write all figures to this file.")] = None,
    threads: options.Threads = None,
    gpu_layers: options.GpuLayers = 0,
) -> None:
    """Measure how small the lossless codec makes a model's K and V, and how fast it is.

    A text is read once. K and V of every layer are encoded as one frame, in chunks, in groups of chunks, and row by
    row, with the predictors that are chosen and with each that could be; all of it is decoded and compared.
    """
    plan = CodecPlan(n_tokens, chunk, group, kv_type, repetitions)
    started = describe()
    path = model_file(model)
    with open_model(model, gpu_layers) as weights:
        model_facts = {"file": Path(weights.model_path).name, "desc": weights.desc}
    tensors = read_tensors(
        path, None if text is None else read_text(text), plan, threads or available_cpus(), gpu_layers
    )
    with progress_bars(auto_refresh=False) as update:
        rows = measure(tensors, plan, update)
    model_facts["text"] = "Python's sources" if text is None else text.name
    report = CodecReport(started, model_facts, asdict(plan), rows)
    print("\n\n".join([facts(report), *(table.markdown() for table in tables(report))]))
    if json_file is not None:
        json_file.write_text(report.to_json())


if __name__ == "__main__":
    app()
