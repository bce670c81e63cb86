"""`h2o-llama inspect`: what a question reads of a document, or what each layer and head kept."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from h2o_llama import H2OConfig, Llama
from h2o_llama._cli.ask import open_about, open_for, read_first
from h2o_llama._cli.inputs import open_model, read_prompt, read_text, title_of
from h2o_llama._cli.options import Options, default_config, option
from h2o_llama._internal.atomic import check_target
from h2o_llama._internal.terminal import echo, plain, printable
from h2o_llama._prompt import Tokens
from h2o_llama.chat._question import OTHER, Question, check_length
from h2o_llama.inspect import _report

_LAST = 32
"""Last tokens of a text without a question, whose attention is shown."""


def inspect(
    o: Options,
    layer: Annotated[int | None, option("Only this layer.", min=0)] = None,
    head: Annotated[int | None, option("Only this KV head.", min=0)] = None,
    html: Annotated[Path | None, option("Write the coloured text here too, as an HTML page.")] = None,
) -> None:
    """Show which passages of a text a question reads most.

    Passages are ranked by the attention weight of the question's tokens, of all heads or of --layer and --head, beyond
    twice what a question without content reads.

    The question is --prompt after a --file; without one it is the last tokens of the text, and a setting with heavy
    hitters shows the memory sets instead. --html writes the text as a page, in which these tokens are coloured.
    """
    config = o.attention
    if config is None or (isinstance(config, H2OConfig) and config.evict):
        raise typer.BadParameter("there is nothing to look at with --h2o off, or when it was evicted")
    if html is not None:
        check_target(html)
    if config == "auto":  # which is dense on a GPU where that is faster: here it is for what H2O keeps
        o = replace(o, h2o_set=[f"chunk_size={default_config(o).chunk_size}"])
    has_question = o.file is not None and bool(o.prompt)
    text = read_text(o.file, o.library) if o.file is not None and has_question else read_prompt(o)
    title = title_of(o.file) if o.file else "the text"
    with open_model(o) as weights:
        if has_question:
            question = Question.about("inspect", weights, text, o.prompt)
            with open_about(o, question, title, text) as (llm, question):
                other = question.again(OTHER).prompt
                report = read_report(llm, question.prompt, title, question.document, other)
        else:
            tokens = weights.tokenize(text)
            n = max(0, len(tokens) - _LAST)
            check_length(weights, o.attention, title, text, n, 1, o.n_ctx)
            with open_for(o, weights, title, n) as llm:
                read_first(llm, tokens[:n], title)
                report = read_report(llm, tokens, title, range(n))
        description = weights.desc
    if html is not None:  # first: `| head` ends the printing
        _report.write_html(html, report, [("Model", description)], layer, head)
    print_report(Console(), report, report.select(layer, head))
    if html is not None:
        echo(f"Written: {html}")


def read_report(
    llm: Llama, tokens: Tokens, title: str, document: range, other: Tokens | None = None
) -> _report.MemoryReport:
    """Read the tokens; those after the document attend to all of it. The report shows how much.

    What any question reads is left out: `other` is the prompt with a question without content.
    """
    if other is None and llm.h2o is not None and llm.h2o.heavy_budget > 0:
        llm.eval(tokens[llm.reuse(tokens) :], dense_tail=0)
        return _report.memory_report(llm, tokens, title, document)
    usual = None if other is None else _attention(llm, other, document.stop)
    _attention(llm, tokens, document.stop)
    return _report.memory_report(llm, tokens, title, document, usual)


def _attention(llm: Llama, tokens: Tokens, end: int) -> list[NDArray[np.float32]]:
    """What the tokens from `end` on read of those before, by layer and KV head."""
    kept = llm.reuse(tokens[:end])
    if kept < end:
        llm.eval(tokens[kept:end])
    llm.eval(tokens[end:], dense_tail=len(tokens) - end, keep_attention=True)
    kv = llm.kv
    return [kv.attention(layer, head) for layer in kv.layers for head in range(len(kv.memory_indices(layer)))]


def print_report(console: Console, report: _report.MemoryReport, heads: Sequence[_report.HeadMemory]) -> None:
    """The passages that were read or kept most, their places and shares. Raises ValueError if nothing was before."""
    if report.memory_end == 0:
        raise ValueError(
            f"the text has {report.n_tokens:,} tokens, which fit into one chunk: take a longer one, or smaller chunks "
            "with --h2o-set chunk_size=N"
        )
    found = _report.passages(report, heads)
    if report.local:
        last = "last chunk" if report.marked == _report.HEAVY else "question"
        console.print(f"The first tokens and the last {len(report.local)} before the {last} are left out.")
    if not _report.stands_out(report, found):
        console.print(_report.SPREAD)
    has_pages = any(passage.page for passage in found)
    table = Table("Place" if has_pages else "Tokens", "Weight", "Passage")
    for column in table.columns[:-1]:
        column.justify = "right"
    for passage in found:
        place = passage.page if has_pages else f"{passage.start:,}-{passage.end - 1:,}"
        table.add_row(printable(place), f"{passage.share:.1%}", plain(" ".join(passage.text.split())))
    console.print(table)
    marked = "attention to" if report.marked == _report.READ_MOST else "number of"
    console.print(f"Weight is a passage's share of the {marked} the {report.marked}.", highlight=False)
