"""Rows as tables for the terminal, dense attention in the first line of each."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
from rich.table import Table

from h2o_llama.eval.task import Row

_OVER = {"full": "all K/V", "memory": "memory set"}

_NOTES = {
    "perplexity": "The second half of every window is scored. Loss is the mean negative log-probability of a token in "
    "nats, so +0.01 is 1 % of perplexity; ± is a standard error, of tokens paired with dense attention's. KL is the "
    "divergence from dense attention's distribution in nats, same top the share of tokens for which both find the same "
    "one most probable. Tokens/s are those of reading, all logits computed.",
    "continuation": "The text after the prompt, given, not generated: reading all K/V that the prompt left, as "
    "generated tokens do, or its chunk's memory set.",
    "recall": "Share of hidden values that are answered, by how deep in the document they were hidden.",
}


def tables(rows: Sequence[Row]) -> Iterator[Table | str]:
    """For each task its tables with titles, and what explains them."""
    for task, note in _NOTES.items():
        groups: dict[tuple[int, str | None], list[Row]] = {}
        for row in rows:
            if row["task"] == task:
                groups.setdefault((row["n_tokens"], row.get("kind")), []).append(row)
        for group in groups.values():
            yield from _TABLES[task](group)
        if groups:
            yield note + "\n"


def _table(*columns: str) -> Table:
    table = Table("", *columns)
    for column in table.columns[1:]:
        column.justify = "right"
    return table


def _perplexity(rows: list[Row]) -> Iterator[Table | str]:
    first = rows[0]
    yield f"Perplexity of {first['windows']} × {first['n_tokens']:,} tokens, S {first['chunk_size']:,}"
    table = _table(*_LOSS_COLUMNS, "tokens/s")
    table.add_row("dense", f"{first['ppl_dense']:.3f}", "", "", "", f"{first['tokens_per_s_dense']:,.0f}")
    for row in rows:
        table.add_row(row["setting"], *_losses(row), f"{row['tokens_per_s']:,.0f}")
    yield table

    buckets = first["buckets"]
    yield "Loss over dense by position"
    by_position = _table(*(f"{b['start']:,} to {b['stop']:,}" for b in buckets))
    by_position.add_row("dense", *(f"{np.log(b['ppl_dense']):.4f}" for b in buckets))
    for row in rows:
        by_position.add_row(row["setting"], *(_nats(np.log(b["ppl"] / b["ppl_dense"])) for b in row["buckets"]))
    yield by_position


def _continuation(rows: list[Row]) -> Iterator[Table | str]:
    first = rows[0]
    yield f"{first['length']:,} tokens after prompts of {first['prompt_tokens']:,}, {first['windows']} texts"
    table = _table("reading", *_LOSS_COLUMNS)
    table.add_row("dense", "all K/V", f"{first['ppl_dense']:.3f}", "", "", "")
    for row in rows:
        table.add_row(row["setting"], _OVER[row["over"]], *_losses(row))
    yield table


_LOSS_COLUMNS = ("perplexity", "loss over dense", "KL", "same top")


def _losses(row: Row) -> list[str]:
    """The cells of `_LOSS_COLUMNS`."""
    return [
        f"{row['ppl']:.3f}",
        f"{_nats(row['nats_added'])} ± {row['nats_added_se']:.4f}",
        f"{row['kld_mean']:.4f} ± {row['kld_mean_se']:.4f}",
        f"{row['same_top']:.1%}",
    ]


def _nats(value: float) -> str:
    """With a sign, but no negative zero."""
    return f"{round(value, 4) + 0.0:+.4f}"


def _recall(rows: list[Row]) -> Iterator[Table | str]:
    first = rows[0]
    tail = f"dense tail {first['dense_tail']}" if first["dense_tail"] else "no dense tail"
    yield f"Recall, {first['kind']}, {first['n_tokens']:,} tokens, question {first['question']} the document, {tail}"
    cells = first["cells"]
    table = _table(*("any" if c["depth"] is None else f"{c['depth']:.0%}" for c in cells), "mean")
    table.add_row("dense", *(f"{c['recall_dense']:.2f}" for c in cells), f"{first['recall_dense']:.2f}")
    for row in rows:
        table.add_row(row["setting"], *(f"{c['recall']:.2f}" for c in row["cells"]), f"{row['recall']:.2f}")
    yield table


_TABLES: dict[str, Callable[[list[Row]], Iterator[Table | str]]] = {
    "perplexity": _perplexity,
    "continuation": _continuation,
    "recall": _recall,
}
