"""The demo's tables."""

from __future__ import annotations

from rich.filesize import decimal
from rich.table import Table
from rich.text import Text

from h2o_llama.demo.document import Document, Needle
from h2o_llama.demo.measure import CHUNK_SIZE, H2O, Comparison
from h2o_llama.report.memory import MemoryReport
from h2o_llama.report.pieces import visible

LOSSES = (
    "Asked in the prompt: the question reads its own chunk and the memory sets; a digit that no head keeps is lost to "
    "it. Later digits are generated, which reads the whole cache: they may be right where the first is wrong. A right "
    "answer whose first digit no head keeps is a lucky guess.",
    "Asked after it: the document alone is prefilled with H2O; the question follows token by token, and every token "
    "reads the whole cache.",
)
LONG_NOTE = "Time and bytes only: the model was not trained for this length, so nothing is asked."


def cost_table(comparison: Comparison) -> Table:
    """Time and bytes side by side."""
    dense, h2o = comparison.dense, comparison.sparse
    dense_bytes, h2o_bytes = dense.stats, h2o.stats
    table = Table("", "dense", h2o.variant.name, "")
    table.title, table.title_justify = f"Prefill of {dense.n_tokens:,} tokens ({dense.variant.name})", "left"
    table.columns[1].justify = table.columns[2].justify = "right"
    for row in (
        ("time", f"{dense.best_seconds:.2f} s", f"{h2o.best_seconds:.2f} s", _speed_in_words(comparison)),
        ("tokens/s", f"{dense.tokens_per_second:,.0f}", f"{h2o.tokens_per_second:,.0f}", ""),
        ("tokens each one reads", f"{dense.n_tokens:,}", f"{CHUNK_SIZE + H2O.memory_size:,}", "at most"),
        ("KV cache", decimal(dense_bytes.kv_bytes), decimal(h2o_bytes.kv_bytes), "nothing is dropped"),
        ("scores, memory sets", "-", decimal(h2o_bytes.score_bytes + h2o_bytes.memory_bytes), ""),
    ):
        table.add_row(*row)
    return table


def _speed_in_words(comparison: Comparison) -> str:
    """Which is faster, and how much."""
    ratio = comparison.dense.best_seconds / comparison.sparse.best_seconds
    return f"H2O is {ratio:.2f}x faster" if ratio >= 1 else f"H2O is {1 / ratio:.2f}x slower"


def answer_table(document: Document, comparison: Comparison) -> Table:
    """Every key's question: what was said, and who still had the value."""
    asked = ("dense", "H2O, asked in the prompt", "H2O, asked after it")
    n_heads = len(comparison.report.heads)
    table = Table("key", "tokens back", "value", *asked, f"of {n_heads} heads keep each digit")
    table.title, table.title_justify = "Which value has the key?", "left"
    table.columns[1].justify = "right"
    for i, needle in enumerate(document.needles):
        table.add_row(
            f"k{needle.key}",
            f"{len(document.text) - needle.start:,}",
            str(needle.value),
            _said(comparison.dense.answers[i], needle),
            _said(comparison.sparse.answers[i], needle),
            _said(comparison.late_answers[i], needle),
            _kept(comparison.report, needle),
        )
    return table


def _said(answer: bytes, needle: Needle) -> Text:
    """An answer, marked as right or wrong."""
    text = visible(answer.decode("ascii", "replace"))
    return Text(f"{text} right", "green") if answer == needle.answer else Text(f"{text} wrong", "red")


def _kept(report: MemoryReport, needle: Needle) -> str:
    """How many heads still had each digit of the value when its question was read."""
    if needle.start >= report.memory_end:
        return "in last chunk"
    return " ".join(str(report.n_heads_keeping(p)) for p in needle.value_positions)


def html_facts(document: Document, comparison: Comparison) -> list[tuple[str, str]]:
    """Lines about the hidden keys for the HTML page."""
    facts = []
    for needle, answer in zip(document.needles, comparison.sparse.answers, strict=True):
        where = f"{needle.value} at position {needle.start:,}, framed below"
        kept = f"heads that keep each digit: {_kept(comparison.report, needle)}"
        facts.append((f"k{needle.key}", f"{where}; {kept}; asked in the prompt: {_said(answer, needle)}"))
    return facts
