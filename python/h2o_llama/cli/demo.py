"""`h2o-llama demo`: what H2O gains and what it loses, measured here and now."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from h2o_llama import demo_model_path
from h2o_llama._internal.terminal import echo
from h2o_llama.cli.progress import progress_bars
from h2o_llama.demo.document import build_document
from h2o_llama.demo.measure import CHUNK_SIZE, H2O, compare, default_threads
from h2o_llama.demo.tables import LONG_NOTE, LOSSES, answer_table, cost_table, html_facts
from h2o_llama.inspect.html import check_target, write_html

# The model was trained on up to 8,192 tokens; this leaves room for questions and answers.
DOCUMENT_BYTES = 8100
# Three in older chunks, one in the last memory set's local window, one in the last chunk.
DEPTHS = (0.05, 0.3, 0.6, 0.935, 0.98)
LONG_BYTES = 16_384


def demo(
    html: Annotated[Path, typer.Option(help="Where to write the highlighted document.")] = Path("h2o-demo.html"),
    long: Annotated[bool, typer.Option(help="Also measure a prompt that is twice as long.")] = True,
    threads: Annotated[int | None, typer.Option("--threads", "-t", min=1, help="CPU threads; half by default.")] = None,
) -> None:
    """Hide keys in a document, ask for them with dense attention and with H2O, and show what that costs.

    Needs no arguments and no network: the document is source code of this Python's standard library, the model is in
    this package.
    """
    check_target(html)
    console = Console()
    n_threads = threads or default_threads()
    document = build_document(DOCUMENT_BYTES, DEPTHS)
    console.print(
        f"{len(document.needles)} keys are hidden in {DOCUMENT_BYTES:,} bytes of standard library source (one token "
        "each), then asked for after its end. Every question is a new prefill, by dense attention and by H2O in turn, "
        f"on {n_threads} thread{'s' if n_threads > 1 else ''}.",
        f"H2O: chunks of {CHUNK_SIZE} tokens; memory sets of {H2O.memory_size} (the first {H2O.sink_tokens}, the last "
        f"{H2O.local_window} and {H2O.heavy_budget} heavy hitters, ranked by {H2O.scorer}) for every layer and KV "
        f"head; up to {H2O.lookup_budget} tokens that are looked up by the text, the same for all.",
        sep="\n",
    )
    with progress_bars() as update:
        short = compare(demo_model_path(), document, n_threads, update)
    console.print("", cost_table(short), "", answer_table(document, short), *LOSSES, "", sep="\n")
    if long:
        with progress_bars() as update:
            longer = compare(demo_model_path(), build_document(LONG_BYTES), n_threads, update, [short.dense.variant])
        console.print(cost_table(longer), LONG_NOTE, "", sep="\n")
    write_html(html, short.report, html_facts(document, short), [n.line_positions for n in document.needles])
    echo(f"What each head kept, highlighted in the document: {html}")
