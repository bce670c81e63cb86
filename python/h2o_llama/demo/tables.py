"""The demo's tables."""

from __future__ import annotations

from rich.filesize import decimal
from rich.table import Table
from rich.text import Text

from h2o_llama._internal.terminal import plain
from h2o_llama.demo.document import Document, Needle
from h2o_llama.demo.measure import CHUNK_SIZE, H2O, SPARSE, TAIL, Comparison, Result
from h2o_llama.inspect.pieces import visible

LOSSES = (
    f"H2O: the question reads its own chunk, the memory sets, and up to {H2O.lookup_budget} tokens that are looked up "
    "by the text, around earlier occurrences of its own tokens; those that its end still sees have a *. It cannot tell "
    "a value that none of these holds. Digits after the first are generated, which reads the whole cache: they may be "
    "right where the first is wrong.",
    f"H2O, dense tail: the last {TAIL.dense_tail} tokens of the prompt, the question among them, read everything, as "
    "llm(prompt) and h2o-llama run have it.",
)
LONG_NOTE = "Time and bytes only: the model was not trained for this length, so nothing is asked."


def cost_table(comparison: Comparison) -> Table:
    """Time and bytes side by side."""
    dense, h2o, tail = comparison.dense, comparison.sparse, comparison.tail
    n_read = f"{CHUNK_SIZE + H2O.memory_size + H2O.lookup_budget:,}"
    n_last = f"; the last {TAIL.dense_tail}: {tail.n_tokens:,}"
    table = Table("", "dense", SPARSE.name, TAIL.name)
    table.title, table.title_justify = f"Prefill of {dense.n_tokens:,} tokens ({dense.variant.name})", "left"
    for column in table.columns[1:]:
        column.justify = "right"
    table.add_row("time", *(f"{r.best_seconds:.2f} s" for r in (dense, h2o, tail)))
    table.add_row("tokens/s", *(f"{r.tokens_per_second:,.0f}" for r in (dense, h2o, tail)))
    table.add_row("against dense", "", *(_speed_in_words(r, dense) for r in (h2o, tail)))
    table.add_row("tokens each one reads, at most", f"{dense.n_tokens:,}", n_read, n_read + n_last)
    table.add_row("KV cache: nothing is dropped", *(decimal(r.stats.kv_bytes) for r in (dense, h2o, tail)))
    table.add_row("scores, memory sets", "-", *(decimal(_own_bytes(r)) for r in (h2o, tail)))
    return table


def _speed_in_words(result: Result, dense: Result) -> str:
    """How much faster or slower than dense."""
    ratio = dense.best_seconds / result.best_seconds
    return f"{ratio:.2f}x faster" if ratio >= 1 else f"{1 / ratio:.2f}x slower"


def _own_bytes(result: Result) -> int:
    """What H2O holds besides K and V."""
    return result.stats.score_bytes + result.stats.memory_bytes


def answer_table(document: Document, comparison: Comparison) -> Table:
    """Every key's question: what was said, and who still had the value."""
    n_heads = len(comparison.report.heads)
    results = (comparison.dense, comparison.sparse, comparison.tail)
    names = ("dense", SPARSE.name, TAIL.name)
    table = Table("key", "tokens back", "value", *names, f"of {n_heads} heads keep each digit, * looked up")
    table.title, table.title_justify = "Which value has the key?", "left"
    table.columns[1].justify = "right"
    for i, needle in enumerate(document.needles):
        table.add_row(
            f"k{needle.key}",
            f"{len(document.text) - needle.start:,}",
            str(needle.value),
            *(_said(result.answers[i], needle) for result in results),
            _kept(comparison, i, needle),
        )
    return table


def _said(answer: bytes, needle: Needle) -> Text:
    """An answer, marked as right or wrong."""
    text = visible(answer.decode("ascii", "replace"))
    return plain(f"{text} right", "green") if answer == needle.answer else plain(f"{text} wrong", "red")


def _kept(comparison: Comparison, i: int, needle: Needle) -> str:
    """How many heads still had each digit of the value when its question was read, and * if it was looked up."""
    report, looked_up = comparison.report, comparison.sparse.looked_up[i]
    if needle.start >= report.memory_end:
        return "in last chunk"
    return " ".join(f"{report.n_heads_keeping(p)}{'*' if p in looked_up else ''}" for p in needle.value_positions)


def html_facts(document: Document, comparison: Comparison) -> list[tuple[str, str]]:
    """Lines for the HTML page: how heavy hitters were ranked, and the hidden keys."""
    facts = [("Heavy hitters", f"ranked by {H2O.scorer}, schedule {H2O.schedule}")]
    for i, needle in enumerate(document.needles):
        where = f"{needle.value} at position {needle.start:,}, framed below"
        kept = f"heads that keep each digit, * looked up: {_kept(comparison, i, needle)}"
        said = (f"{r.variant.name}: {_said(r.answers[i], needle)}" for r in (comparison.sparse, comparison.tail))
        facts.append((f"k{needle.key}", "; ".join([where, kept, *said])))
    return facts
