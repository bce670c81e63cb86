"""The demo's questions, and the answers of dense attention and of H2O."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from rich.table import Table
from rich.text import Text

from h2o_llama import H2OConfig, Llama
from h2o_llama._demo.document import Document, Needle
from h2o_llama._internal.terminal import plain
from h2o_llama.inspect._history import memory_history
from h2o_llama.inspect._memory import MemoryReport, memory_report, visible
from h2o_llama.sequence.generating import DENSE_TAIL

# A chunk reads itself, a memory set of 128 tokens, and up to 128 that are looked up.
CHUNK_SIZE = 512
H2O = H2OConfig(
    local_window=60, heavy_budget=64, sink_tokens=4, lookup_budget=128, retrieval="ngrams", chunk_size=CHUNK_SIZE
)
DENSE, SPARSE, TAIL = "dense", "H2O", "H2O, dense tail"

_VALUE_DIGITS = 4
_ROOM = 16  # for a question and its answer after a document


@dataclass
class Answers:
    """The answers to each needle's question, by the way to compute.

    `report` is what H2O, without a dense tail, kept of the last prompt.
    """

    report: MemoryReport
    said: dict[str, list[bytes]] = field(default_factory=dict)


def ask(
    model: Path, document: Document, n_threads: int, progress: Callable[[str, int, int], object] | None = None
) -> Answers:
    """Read the document with each needle's question after it, and generate an answer. There is one needle at least."""
    said: dict[str, list[bytes]] = {}
    for name, h2o, dense_tail in ((DENSE, None, 0), (SPARSE, H2O, 0), (TAIL, H2O, DENSE_TAIL)):
        n_ctx = len(document.text) + _ROOM
        with Llama(model, n_ctx=n_ctx, n_threads=n_threads, h2o=h2o, keep_history=name == SPARSE) as llm:
            for i, needle in enumerate(document.needles):
                if progress is not None:
                    progress(f"questions: {name}", i, len(document.needles))
                tokens = llm.tokenize(document.text + needle.question)
                llm.reset()
                llm.eval(tokens, dense_tail=dense_tail)
                if name == SPARSE:
                    report = memory_report(llm, tokens, "the demo's document", memory_history(llm))
                answer = llm.detokenize(list(islice(llm.generate([], temperature=0), _VALUE_DIGITS)))
                said.setdefault(name, []).append(answer)
    return Answers(report, said)


NOTE = (
    f"H2O: the question reads its own chunk, the memory sets, and up to {H2O.lookup_budget} tokens that are looked up "
    "by the text, around earlier occurrences of its own tokens. It cannot tell a value that none of these holds. "
    "Digits after the first are generated, which reads the whole cache: they may be right where the first is wrong.\n"
    f"{TAIL}: the last {DENSE_TAIL} tokens of the prompt, the question among them, read everything, as llm(prompt) and "
    "h2o-llama run have it."
)


def answer_table(document: Document, answers: Answers) -> Table:
    """The answers to every key's question."""
    table = Table("key", "tokens back", "value", *answers.said)
    table.title, table.title_justify = "Which value has the key?", "left"
    table.columns[1].justify = "right"
    for i, needle in enumerate(document.needles):
        table.add_row(
            f"k{needle.key}",
            f"{len(document.text) - needle.start:,}",
            str(needle.value),
            *(_verdict(said[i], needle) for said in answers.said.values()),
        )
    return table


def _verdict(answer: bytes, needle: Needle) -> Text:
    """An answer, marked as right or wrong."""
    text = visible(answer.decode("ascii", "replace"))
    return plain(f"{text} right", "green") if answer == needle.answer else plain(f"{text} wrong", "red")


def html_facts(document: Document, answers: Answers) -> list[tuple[str, str]]:
    """Lines for the HTML page: how heavy hitters were ranked, and the hidden keys."""
    facts = [("Heavy hitters", f"ranked by {H2O.scorer}, schedule {H2O.schedule}")]
    for i, needle in enumerate(document.needles):
        where = f"{needle.value} at position {needle.start:,}, framed below"
        said = (f"{name}: {_verdict(answers.said[name][i], needle)}" for name in (SPARSE, TAIL))
        facts.append((f"k{needle.key}", "; ".join([where, *said])))
    return facts
