"""`h2o-llama inspect`: what a question reads of a document, or what each layer and head kept."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from h2o_llama import H2OConfig, Llama, Model, shared_prefix
from h2o_llama._cli.options import Options
from h2o_llama._cli.prompt import open_model, progress_bars, read_prompt, read_text, tokenize
from h2o_llama._internal.atomic import check_target
from h2o_llama._internal.terminal import counted, echo, plain
from h2o_llama.documents import document_messages
from h2o_llama.inspect._report import (
    HEAVY,
    HeadMemory,
    MemoryReport,
    memory_report,
    passages,
    write_html,
)
from h2o_llama.sequence._prompt import Tokens

_LAST = 32
"""Last tokens of a text without a question, whose attention is shown."""

_N_PASSAGES = 20


def inspect(
    o: Options,
    layer: Annotated[int | None, typer.Option(min=0, help="Only this layer.")] = None,
    head: Annotated[int | None, typer.Option(min=0, help="Only this KV head.")] = None,
    html: Annotated[Path | None, typer.Option(help="Write an HTML page here too, with all layers and heads.")] = None,
) -> None:
    """Show which passages of a text a question reads most.

    Passages are ranked by the attention weight of the question's tokens, of all heads or of --layer and --head.

    The question is --prompt after a --file; without one it is the last tokens of the text. A setting with heavy hitters
    shows the memory sets instead. --html writes a page with all layers and heads.
    """
    config = o.attention
    if config is None or (isinstance(config, H2OConfig) and config.evict):
        raise typer.BadParameter("there is nothing to look at with --h2o off, or when it was evicted")
    if html is not None:
        check_target(html)
    with open_model(o) as weights:
        tokens, document = _asked(o, weights)
        # on a GPU "auto" is dense where that is faster: here it is for what H2O keeps
        llm = Llama(weights, n_ctx=len(tokens), n_threads=o.threads, h2o="balanced" if config == "auto" else config)
    title = o.file.name if o.file and str(o.file) != "-" else "the text"
    with llm:
        report = read_report(llm, tokens, title, document)
        description, h2o = llm.desc, llm.h2o
    assert h2o is not None  # it was asked for
    print_report(Console(), report, report.select(layer, head))
    if html is not None:
        by = [("Heavy hitters", f"ranked by {h2o.scorer}")] if report.marked == HEAVY else []
        write_html(html, report, [("Model", description), *by], (), layer, head)
        echo(f"Written: {html}")


def _asked(o: Options, weights: Model) -> tuple[Tokens, range]:
    """A document and a question in the form that all commands use, or a text; and the document's positions."""
    if o.file is None or not o.prompt or weights.chat_template is None:
        tokens = tokenize(weights, read_prompt(o))
        n_asked = len(weights.tokenize(o.prompt)) if o.file and o.prompt else _LAST
        return tokens, range(max(0, len(tokens) - n_asked))
    text = read_text(o.file)
    asked, other, empty = (
        weights.chat_tokens(document_messages(*said)) for said in ((text, o.prompt), (text, "…"), ("…", "…"))
    )
    return asked, range(shared_prefix(asked, empty), shared_prefix(asked, other))


def read_report(llm: Llama, tokens: Tokens, title: str, document: range) -> MemoryReport:
    """Read the tokens; those after the document attend to all of it. The report shows how much."""
    question = document.stop
    kept = llm.reuse(tokens[:question])
    has_heavy = llm.h2o is not None and llm.h2o.heavy_budget > 0
    with progress_bars() as update:
        if kept < question:
            llm.eval(tokens[kept:question], progress=lambda n_done, n_total: update("text", n_done, n_total))
        asked = tokens[question:]
        llm.eval(asked, dense_tail=0 if has_heavy else len(asked), keep_attention=not has_heavy)
    return memory_report(llm, tokens, title, document)


def print_report(console: Console, report: MemoryReport, heads: Sequence[HeadMemory]) -> None:
    """The passages that were read or kept most, their places and shares."""
    if report.memory_end == 0:
        console.print(
            f"The text has {report.n_tokens:,} tokens and fits into one chunk of {report.chunk_size:,}: every token "
            "reads all before it, without a memory set. With smaller chunks it has some: --h2o-set chunk_size=N."
        )
        return
    table = Table("Tokens", "Weight", "Passage")
    for column in table.columns[:-1]:
        column.justify = "right"
    for passage in passages(report, heads, _N_PASSAGES):
        place = f"{passage.start:,}-{passage.end - 1:,}"
        table.add_row(place, f"{passage.share:.1%}", plain(" ".join(passage.text.split())))
    console.print(table)
    console.print(
        f"Weight is the share of the {report.marked}, in {counted(len(heads), 'head')}. The first tokens and the last "
        f"{len(report.local)} before the {'last chunk' if report.marked == HEAVY else 'question'} are left out.",
        highlight=False,
    )
