"""`h2o-llama inspect`: which tokens of a document each layer and head kept."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.style import Style
from rich.table import Table
from rich.text import Text

from h2o_llama import H2OConfig, Llama
from h2o_llama._cli.options import Options
from h2o_llama._cli.prompt import open_model, progress_bars, read_prompt
from h2o_llama._internal.atomic import check_target
from h2o_llama._internal.terminal import echo
from h2o_llama.inspect._report import (
    HeadMemory,
    MemoryReport,
    Piece,
    memory_report,
    shades,
    top_texts,
    visible,
    write_html,
)

_SHADE_COLOURS = ("#fdeecb", "#fbd98f", "#f6b950", "#e98d22", "#c9540a")
_SHADE_STYLES = tuple(Style(color="#1d1c1a", bgcolor=colour) for colour in _SHADE_COLOURS)
_REGION_STYLES = {"open": Style(), "local": Style(color="blue"), "sinks": Style(color="green"), "old": Style(dim=True)}


def inspect(
    o: Options,
    layer: Annotated[int | None, typer.Option(min=0, help="Only this layer.")] = None,
    head: Annotated[int | None, typer.Option(min=0, help="Only this KV head.")] = None,
    html: Annotated[Path | None, typer.Option(help="Write an HTML page here too, with all layers and heads.")] = None,
) -> None:
    """Show which tokens of a text each layer and head kept.

    A table of the heads, then the text with the heavy hitters highlighted: by score for a single head (--layer and
    --head), else by how many heads keep them. A setting without heavy hitters shows the extra keys that the last
    chunk read.
    """
    config = o.attention
    if config is None or (isinstance(config, H2OConfig) and config.evict):
        raise typer.BadParameter("there is nothing to look at with --h2o off, or when it was evicted")
    if html is not None:
        check_target(html)
    text = read_prompt(o)
    with open_model(o) as weights:
        tokens = weights.tokenize(text)
        if not tokens:
            raise ValueError("the text is empty")
        # on a GPU "auto" is dense where that is faster: here it is for what H2O keeps
        llm = Llama(weights, n_ctx=len(tokens), n_threads=o.threads, h2o="balanced" if config == "auto" else config)
    title = o.file.name if o.file and str(o.file) != "-" else "the text"
    with llm, progress_bars() as update:
        llm.eval(tokens, progress=lambda n_done, n_total: update("text", n_done, n_total))
        report = memory_report(llm, tokens, title)
        description, h2o = llm.desc, llm.h2o

    assert h2o is not None  # it was asked for
    console = Console()
    print_report(console, report, report.select(layer, head), h2o.chunk_size)
    if html is not None:
        by = h2o.scorer if h2o.heavy_budget else "the share of tiles"
        facts = [(report.marked.capitalize(), f"ranked by {by}, schedule {h2o.schedule}"), ("Model", description)]
        write_html(html, report, facts)
        echo(f"Written: {html}")


def print_report(console: Console, report: MemoryReport, heads: Sequence[HeadMemory], chunk: int) -> None:
    """A table of the heads, and the text with their marked tokens."""
    if report.memory_end == 0:
        console.print(
            f"The text has {report.n_tokens:,} tokens and fits into one chunk of {chunk:,}: every token reads all "
            "before it, without a memory set. With smaller chunks it has some: --h2o-set chunk_size=N."
        )
        return
    brackets = console.color_system is None
    console.print(head_table(report, heads))
    console.print(legend(report, brackets))
    console.print(highlighted(report, heads, brackets), soft_wrap=True)


def head_table(report: MemoryReport, heads: Sequence[HeadMemory]) -> Table:
    """One row per head: numbers of kept and of marked tokens, and the most frequent texts of the marked ones."""
    marked = report.marked.capitalize()
    table = Table("Layer", "KV head", "Kept", marked, f"{marked}' texts, most frequent first")
    for column in table.columns[:-1]:
        column.justify = "right"
    always = len(report.local) + len(report.sinks)
    for h in heads:
        tops = "  ".join(f"{visible(text)} ×{n}" for text, n in top_texts(report, h, 6))
        kept = always + (len(h.positions) if report.marked == "heavy hitters" else 0)
        table.add_row(str(h.layer), str(h.head), str(kept), str(len(h.positions)), Text(tops))
    return table


def highlighted(report: MemoryReport, heads: Sequence[HeadMemory], brackets: bool = False) -> Text:
    """The document with the marked tokens of `heads` on a shade of orange.

    `brackets` puts them into ⟦ ⟧ as well, for an output without colours.
    """
    shade_of = shades(heads)

    def look_of(piece: Piece) -> tuple[int, str]:
        return max(shade_of.get(p, 0) for p in range(piece.start, piece.end)), report.region(piece.start)

    text = Text()
    inside = False
    for (shade, region), pieces in groupby(report.pieces, look_of):
        if brackets and bool(shade) != inside:
            inside = not inside
            text.append("⟦" if inside else "⟧")
        run = "".join(piece.text for piece in pieces)
        if shade:
            text.append(run.replace("\n", "⏎\n"), _SHADE_STYLES[shade - 1])
        else:
            text.append(run, _REGION_STYLES[region])
    if inside:
        text.append("⟧")
    return text


def legend(report: MemoryReport, brackets: bool = False) -> Text:
    """What the colours, or brackets, of `highlighted` mean."""
    if brackets:
        return Text(f"⟦{report.marked}⟧")
    text = Text()
    for style in _SHADE_STYLES:
        text.append("  ", style)
    text.append(f" {report.marked}   ")
    for name, region, shown in (
        ("local window", "local", bool(report.local)),
        ("sinks", "sinks", bool(report.sinks)),
        ("not kept", "old", True),
        ("last chunk, read directly", "open", True),
    ):
        if shown:
            text.append(name, _REGION_STYLES[region])
            text.append("   ")
    return text
