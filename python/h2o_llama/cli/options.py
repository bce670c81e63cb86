"""Arguments and options that `run` and `inspect` share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from h2o_llama import H2OConfig

DEFAULTS = H2OConfig()
CHUNK_SIZE = 1024

Model = Annotated[str, typer.Argument(metavar="MODEL", help="A GGUF file, or 'demo' for the model in this package.")]
File = Annotated[Path | None, typer.Option("--file", "-f", help="Text file to read; - is standard input.")]
Prompt = Annotated[str, typer.Option("--prompt", "-p", help="Text after that of the file, or alone.")]
Local = Annotated[int, typer.Option(min=0, help="L: tokens before a chunk that its memory set always holds.")]
Heavy = Annotated[int, typer.Option(min=0, help="H: heavy hitters that a memory set holds.")]
Sinks = Annotated[int, typer.Option(min=0, help="A: first tokens of the prompt that every memory set holds.")]
Schedule = Annotated[
    Literal["single_pass", "two_phase"],
    typer.Option(help="Each chunk once, with its memory set; or all chunks alone, then again with the memory sets."),
]
Chunk = Annotated[int, typer.Option(min=1, help="S: tokens per chunk.")]
Threads = Annotated[int | None, typer.Option("--threads", "-t", min=1, help="CPU threads; all cores by default.")]
GpuLayers = Annotated[int, typer.Option("--gpu-layers", min=-1, help="Layers to keep on the GPU; -1 is all.")]
