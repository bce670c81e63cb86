"""The demo's questions: answers of dense attention and of H2O, and the heads that still had the value."""

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
from h2o_llama.inspect._extra_keys import last_tiles
from h2o_llama.inspect._history import memory_history
from h2o_llama.inspect._memory import MemoryReport, memory_report
from h2o_llama.inspect._pieces import visible
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

    `looked_up` are the positions that the prompt's last token saw by lookup with H2O, without a dense tail. `report` is
    what this one kept of the last prompt.
    """

    report: MemoryReport
    said: dict[str, list[bytes]] = field(default_factory=dict)
    looked_up: list[frozenset[int]] = field(default_factory=list)


def ask(
    model: Path, document: Document, n_threads: int, progress: Callable[[str, int, int], object] | None = None
) -> Answers:
    """Read the document with each needle's question after it, and generate an answer. There is one needle at least."""
    said: dict[str, list[bytes]] = {}
    looked_up = []
    for name, h2o, dense_tail in ((DENSE, None, 0), (SPARSE, H2O, 0), (TAIL, H2O, DENSE_TAIL)):
        n_ctx = len(document.text) + _ROOM
        with Llama(model, n_ctx=n_ctx, n_threads=n_threads, h2o=h2o, record=name == SPARSE) as llm:
            for i, needle in enumerate(document.needles):
                if progress is not None:
                    progress(f"questions: {name}", i, len(document.needles))
                tokens = llm.tokenize(document.text + needle.question)
                llm.reset()
                llm.eval(tokens, dense_tail=dense_tail)
                if name == SPARSE:
                    report = memory_report(llm, tokens, "the demo's document", memory_history(llm))
                    seen = llm.kv.extra_keys(llm.kv.layers[0], 0, last_tiles(llm)[-1])
                    looked_up.append(frozenset(seen.tolist()))
                answer = llm.detokenize(list(islice(llm.generate([], temperature=0), _VALUE_DIGITS)))
                said.setdefault(name, []).append(answer)
    return Answers(report, said, looked_up)


NOTE = (
    f"H2O: the question reads its own chunk, the memory sets, and up to {H2O.lookup_budget} tokens that are looked up "
    "by the text, around earlier occurrences of its own tokens; a * marks the ones that its end still sees. It cannot "
    "tell a value that none of these holds. Digits after the first are generated, which reads the whole cache: they "
    "may be right where the first is wrong.\n"
    f"{TAIL}: the last {DENSE_TAIL} tokens of the prompt, the question among them, read everything, as llm(prompt) and "
    "h2o-llama run have it."
)


def answer_table(document: Document, answers: Answers) -> Table:
    """Every key's question: the answers, and how many heads still had the value."""
    n_heads = len(answers.report.heads)
    table = Table("key", "tokens back", "value", *answers.said, f"of {n_heads} heads keep each digit, * looked up")
    table.title, table.title_justify = "Which value has the key?", "left"
    table.columns[1].justify = "right"
    for i, needle in enumerate(document.needles):
        table.add_row(
            f"k{needle.key}",
            f"{len(document.text) - needle.start:,}",
            str(needle.value),
            *(_verdict(said[i], needle) for said in answers.said.values()),
            _kept(answers, i, needle),
        )
    return table


def _verdict(answer: bytes, needle: Needle) -> Text:
    """An answer, marked as right or wrong."""
    text = visible(answer.decode("ascii", "replace"))
    return plain(f"{text} right", "green") if answer == needle.answer else plain(f"{text} wrong", "red")


def _kept(answers: Answers, i: int, needle: Needle) -> str:
    """How many heads still had each digit of the value when its question was read, and * if it was looked up."""
    report = answers.report
    if needle.start >= report.memory_end:
        return "in last chunk"
    return " ".join(
        f"{report.n_heads_keeping(p)}{'*' if p in answers.looked_up[i] else ''}" for p in needle.value_positions
    )


def html_facts(document: Document, answers: Answers) -> list[tuple[str, str]]:
    """Lines for the HTML page: how heavy hitters were ranked, and the hidden keys."""
    facts = [("Heavy hitters", f"ranked by {H2O.scorer}, schedule {H2O.schedule}")]
    for i, needle in enumerate(document.needles):
        where = f"{needle.value} at position {needle.start:,}, framed below"
        kept = f"heads that keep each digit, * looked up: {_kept(answers, i, needle)}"
        said = (f"{name}: {_verdict(answers.said[name][i], needle)}" for name in (SPARSE, TAIL))
        facts.append((f"k{needle.key}", "; ".join([where, kept, *said])))
    return facts
