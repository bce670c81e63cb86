"""`h2o-llama demo`: H2O's gain and loss, measured here and now."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from h2o_llama import demo_model_path
from h2o_llama._bench import DENSE, LLAMA_CPP, Bench, Mode
from h2o_llama._bench import NOTE as BENCH_NOTE
from h2o_llama._bench import tables as bench_tables
from h2o_llama._cli.progress import progress_bars
from h2o_llama._demo.answers import CHUNK_SIZE, H2O, NOTE, answer_table, ask, html_facts
from h2o_llama._demo.document import build_document
from h2o_llama._internal.atomic import check_target
from h2o_llama._internal.cpus import available_cpus
from h2o_llama._internal.terminal import echo
from h2o_llama.inspect._html import write_html

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
    """Compare dense attention and H2O on a document.

    Keys are hidden in it, and asked for. Needs no arguments and no network: the document is source code of this
    Python's standard library, the model is in this package.
    """
    check_target(html)
    console = Console()
    # Threads wait for each other by spinning, so that all are as slow as the busiest CPU.
    n_threads = threads or max(1, available_cpus() // 2)
    document = build_document(DOCUMENT_BYTES, DEPTHS)
    console.print(
        f"{len(document.needles)} keys are hidden in {DOCUMENT_BYTES:,} bytes of standard library source (one token "
        "each), then asked for after its end. Every question is a new prefill, by dense attention and by H2O, on "
        f"{n_threads} thread{'s' if n_threads > 1 else ''}.",
        f"H2O: chunks of {CHUNK_SIZE} tokens; memory sets of {H2O.memory_size} (the first {H2O.sink_tokens}, the last "
        f"{H2O.local_window} and {H2O.heavy_budget} heavy hitters, ranked by {H2O.scorer}) for every layer and KV "
        f"head; up to {H2O.lookup_budget} tokens that are looked up by the text, the same for all.",
        sep="\n",
    )
    measured = Bench(
        demo_model_path(),
        [*(mode for mode in DENSE if mode.name == LLAMA_CPP), Mode("H2O", H2O)],
        [DOCUMENT_BYTES, *([LONG_BYTES] if long else [])],
        repetitions=1,
        chunk_size=CHUNK_SIZE,
        n_threads=n_threads,
        text=build_document(LONG_BYTES).text,
    )
    with progress_bars() as update:
        answers = ask(demo_model_path(), document, n_threads, update)
        measured.run(update)
    console.print("", answer_table(document, answers), NOTE, *bench_tables(measured.rows()), BENCH_NOTE, "", sep="\n")
    write_html(html, answers.report, html_facts(document, answers), [n.line_positions for n in document.needles])
    echo(f"What each head kept, highlighted in the document: {html}")
