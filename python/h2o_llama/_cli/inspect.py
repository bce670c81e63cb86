"""`h2o-llama inspect`: which tokens of a document each layer and head kept, and which the last chunk read besides."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from h2o_llama import H2OConfig
from h2o_llama._cli import options
from h2o_llama._cli.progress import progress_bars
from h2o_llama._cli.prompt import open_context, open_model, read_prompt, tokenize
from h2o_llama._cli.weights import NONE, Changes, with_changes
from h2o_llama._internal.atomic import check_target
from h2o_llama._internal.terminal import echo
from h2o_llama.inspect._history import memory_history
from h2o_llama.inspect._html import write_html
from h2o_llama.inspect._memory import HeadMemory, MemoryReport, memory_report
from h2o_llama.inspect._terminal import extra_table, head_table, highlighted, legend


@with_changes
@options.with_h2o
def inspect(
    model: options.Model,
    file: options.File = None,
    prompt: options.Prompt = "",
    h2o: H2OConfig | None = None,
    layer: Annotated[int | None, typer.Option(min=0, help="Only this layer.")] = None,
    head: Annotated[int | None, typer.Option(min=0, help="Only this KV head.")] = None,
    html: Annotated[Path | None, typer.Option(help="Write an HTML page here too, with all layers and heads.")] = None,
    threads: options.Threads = None,
    gpu_layers: options.GpuLayers = 0,
    changes: Changes = NONE,
) -> None:
    """Show which tokens of a text each layer and head kept.

    A table of the heads, the distant tokens that the last chunk read most (unless lookup_budget is 0), then the text
    with the heavy hitters highlighted: by score for a single head (--layer and --head), else by how many heads keep
    them.
    """
    if h2o is None or h2o.evict:
        raise typer.BadParameter("there is nothing to look at with --h2o off, or when it was evicted")
    if html is not None:
        check_target(html)
    text = read_prompt(file, prompt)
    with open_model(model, gpu_layers, changes=changes) as weights:
        tokens = tokenize(weights, text)
        llm = open_context(weights, len(tokens), threads, h2o, keep_history=True)
    title = file.name if file and str(file) != "-" else "the text"
    with llm, progress_bars() as update:
        llm.eval(tokens, progress=lambda n_done, n_total: update("text", n_done, n_total))
        report = memory_report(llm, tokens, title, memory_history(llm))
        description = llm.desc

    console = Console()
    print_report(console, report, report.select(layer, head), h2o.chunk_size)
    if html is not None:
        ranked = f"ranked by {h2o.scorer}, schedule {h2o.schedule}"
        write_html(html, report, [("Heavy hitters", ranked), ("Model", description)])
        echo(f"Written: {html}")


def print_report(console: Console, report: MemoryReport, heads: Sequence[HeadMemory], chunk: int) -> None:
    """Tables of the heads and of the distant tokens that they read most, and the text with their heavy hitters."""
    if report.memory_end == 0:
        console.print(
            f"The text has {report.n_tokens:,} tokens and fits into one chunk of {chunk:,}: every token reads all "
            "before it, without a memory set. With smaller chunks it has some: --h2o-set chunk_size=N."
        )
        return
    brackets = console.color_system is None
    console.print(head_table(report, heads))
    if (extra := extra_table(report, heads)) is not None:
        console.print(extra)
    console.print(legend(report, brackets))
    console.print(highlighted(report, heads, brackets), soft_wrap=True)
