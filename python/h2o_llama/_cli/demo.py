"""`h2o-llama demo`: H2O's gain and loss, measured here and now."""

import time
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Annotated

from rich.console import Console
from rich.table import Table
from rich.text import Text

from h2o_llama import H2OConfig, Llama, demo_model_path
from h2o_llama._cli.options import option
from h2o_llama._cli.progress import progress_bars
from h2o_llama._demo.document import Needle, build_document
from h2o_llama._internal.atomic import check_target
from h2o_llama._internal.machine import available_cpus
from h2o_llama._internal.terminal import echo, plain
from h2o_llama.inspect._report import MemoryReport, memory_report, write_html
from h2o_llama.sequence.generating import DENSE_TAIL

# A chunk reads itself, a memory set of 128 tokens, and up to 128 that are looked up.
CHUNK_SIZE = 512
H2O = H2OConfig(local_window=60, heavy_budget=64, sink_tokens=4, lookup_budget=128, chunk_size=CHUNK_SIZE)
DENSE, SPARSE, TAIL = "dense", "H2O", "H2O, dense tail"

_VALUE_DIGITS = 4
_ROOM = 16  # for a question and its answer after a document


def ask(
    model: Path,
    text: bytes,
    needles: Sequence[Needle],
    n_threads: int,
    progress: Callable[[str, int, int], object] = lambda *_: None,
) -> tuple[dict[str, list[bytes]], dict[str, float], MemoryReport]:
    """Read the document with each needle's question after it, and generate an answer.

    Returns the answers by the way to compute, the medians of the tokens that were read in a second, and what H2O,
    without a dense tail, kept of the last prompt.
    """
    said: dict[str, list[bytes]] = {}
    speeds: dict[str, float] = {}
    for name, h2o, dense_tail in ((DENSE, None, 0), (SPARSE, H2O, 0), (TAIL, H2O, DENSE_TAIL)):
        taken = list[float]()
        with Llama(model, n_ctx=len(text) + _ROOM, n_threads=n_threads, h2o=h2o) as llm:
            for i, needle in enumerate(needles):
                progress(f"questions: {name}", i, len(needles))
                tokens = llm.tokenize(text + b"k%d?" % needle.key)
                llm.reset()
                start = time.perf_counter()
                llm.eval(tokens, dense_tail=dense_tail)
                taken.append(time.perf_counter() - start)
                if name == SPARSE:
                    report = memory_report(llm, tokens, "the demo's document")
                answer = llm.detokenize(list(islice(llm.generate([], temperature=0), _VALUE_DIGITS)))
                said.setdefault(name, []).append(answer)
        speeds[name] = len(tokens) / median(taken)
    return said, speeds, report


NOTE = (
    "H2O: the question reads its own chunk, the memory sets, and tokens that it looks up by their keys. The digits "
    "after the first are generated, which reads the whole cache.\n"
    f"{TAIL}: the last {DENSE_TAIL} tokens of the prompt read everything, as llm(prompt) and h2o-llama run have it."
)


def answer_table(
    n_bytes: int, needles: Sequence[Needle], said: Mapping[str, Sequence[bytes]], speeds: Mapping[str, float]
) -> Table:
    """The answers to every key's question, and how fast the document was read."""
    table = Table("key", "tokens back", "value", *said)
    table.title, table.title_justify = "Which value has the key?", "left"
    table.columns[1].justify = "right"
    for needle, *answers in zip(needles, *said.values(), strict=True):
        verdicts = (_verdict(answer, needle) for answer in answers)
        table.add_row(f"k{needle.key}", f"{n_bytes - needle.start:,}", str(needle.value), *verdicts)
    table.add_section()
    table.add_row("tokens/s", "", "", *(f"{speed:,.0f}" for speed in speeds.values()))
    return table


def _verdict(answer: bytes, needle: Needle) -> Text:
    """An answer, marked as right or wrong."""
    text = answer.decode("ascii", "replace").replace("\n", "⏎").replace("\t", "⇥").replace(" ", "␣")
    return plain(f"{text} right", "green") if answer == b"%d" % needle.value else plain(f"{text} wrong", "red")


# The model was trained on up to 8,192 tokens; this leaves room for questions and answers.
DOCUMENT_BYTES = 8100
# Three in older chunks, one in the last memory set's local window, one in the last chunk.
DEPTHS = (0.05, 0.3, 0.6, 0.935, 0.98)


def demo(
    html: Annotated[Path, option("Where to write the highlighted document.")] = Path("h2o-demo.html"),
    threads: Annotated[int | None, option("CPU threads; half by default.", "--threads", "-t", min=1)] = None,
) -> None:
    """Compare dense attention and H2O on a document.

    Keys are hidden in it, and asked for. Needs no arguments and no network: the document is source code of this
    Python's standard library, the model is in this package.
    """
    check_target(html)
    console = Console()
    # Threads wait for each other by spinning, so that all are as slow as the busiest CPU.
    n_threads = threads or max(1, available_cpus() // 2)
    text, needles = build_document(DOCUMENT_BYTES, DEPTHS)
    console.print(
        f"{len(needles)} keys are hidden in {DOCUMENT_BYTES:,} bytes of standard library source (one token "
        "each), then asked for after its end. Every question is a new prefill, by dense attention and by H2O, on "
        f"{n_threads} thread{'s' if n_threads > 1 else ''}.",
        f"H2O: chunks of {CHUNK_SIZE} tokens; memory sets of {H2O.memory_size} (the first {H2O.sink_tokens}, the last "
        f"{H2O.local_window} and {H2O.heavy_budget} heavy hitters, ranked by {H2O.scorer}) for every layer and KV "
        f"head; and tokens that are looked up by their keys.",
        sep="\n",
    )
    with progress_bars() as update:
        said, speeds, report = ask(demo_model_path(), text, needles, n_threads, update)
    console.print("", answer_table(len(text), needles, said, speeds), NOTE, "", sep="\n")
    write_html(html, report, [(f"k{needle.key}", f"{needle.value} at position {needle.start:,}") for needle in needles])
    echo(f"What each head kept, highlighted in the document: {html}")
