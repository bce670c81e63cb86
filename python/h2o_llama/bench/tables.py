"""A benchmark's figures as tables, for a terminal or in Markdown."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from rich.table import Table as RichTable

from h2o_llama._internal.terminal import plain
from h2o_llama.bench.report import Report
from h2o_llama.bench.rows import Row, of_groups

MB, GB = 1e6, 1e9

# Below this share of the CPU time that its threads could have had, a figure says little.
_MIN_CPU_SHARE = 0.9


@dataclass(frozen=True)
class Table:
    """A title, the columns' names after the first column (which is text), lines of cells, and what explains them."""

    title: str
    columns: Sequence[str]
    lines: Sequence[Sequence[str]]
    note: str

    def markdown(self) -> str:
        lines = [[self.title, *self.columns], ["---", *("--:" for _ in self.columns)], *self.lines]
        table = "\n".join("| " + " | ".join(cells) + " |" for cells in lines)
        return f"{table}\n\n{self.note}" if self.note else table

    def rich(self) -> RichTable:
        table = RichTable(caption=plain(self.note) if self.note else None, caption_justify="left")
        table.add_column(plain(self.title))
        for name in self.columns:
            table.add_column(plain(name), justify="right")
        for cells in self.lines:
            table.add_row(*map(plain, cells))
        return table


def facts(report: Report) -> str:
    """On what, of what and how it was measured, in a sentence or two."""
    machine, model, plan = report.machine, report.model, report.plan
    gpu = f", {plan['n_gpu_layers']} layers on the GPU" if plan["n_gpu_layers"] else ""
    text = (
        f"{machine['cpu']}, {_threads(report)}{gpu}, {machine['date'][:10]}. {model['desc']} ({model['file']}), K and "
        f"V in F16, chunks of {plan['chunk_size']:,} tokens. Medians of up to {plan['repetitions']} samples; * is one."
    )
    if report.cpu_share is not None and report.cpu_share < _MIN_CPU_SHARE:
        text += f" Doubtful: other processes left as little as {report.cpu_share:.0%} of its CPU time to a prefill."
    return text


def tables(report: Report) -> Iterator[Table]:
    """Those for which there are figures: prefill, generation, memory."""

    def speed(row: Row) -> str:
        return _speed(row, report)

    rows = of_groups(report.rows)
    prefill = [row for row in rows if row["test"] == "prefill"]
    generation = [row for row in rows if row["test"] == "generation"]
    if prefill:
        yield _by_length("Prefill, tokens/s", prefill, speed, _over_dense(prefill))
    if generation:
        yield _by_length("Generation after N tokens, tokens/s", generation, speed, _over_dense(generation))
        yield _reading(report, generation)
    if prefill:  # of each way to be dense
        prefill = [row for row in report.rows if row["test"] == "prefill"]
        yield _by_length(
            "Peak memory of a process, MB",
            prefill,
            _memory,
            "Of one that does nothing else, with Python; the weights count as far as they were read. In brackets: K "
            "and V as allocated; the index of keys, scores, memory sets and what phase 1 leaves.",
        )


def _by_length(title: str, rows: Sequence[Row], cell: Callable[[Row], str], note: str) -> Table:
    """A line for each mode, a column for each length."""
    lengths = sorted({row["n_tokens"] for row in rows})
    modes = list(dict.fromkeys(row["mode"] for row in rows))
    cells = {(row["mode"], row["n_tokens"]): cell(row) for row in rows}
    lines = [[mode, *(cells.get((mode, n), "–") for n in lengths)] for mode in modes]
    return Table(title, [f"{n:,}" for n in lengths], lines, note)


def _over_dense(rows: Sequence[Row]) -> str:
    if all(row["over_dense"] is None for row in rows):
        return ""
    return (
        "Dense is the better of flash attention on and off. In brackets: over dense with upstream's products, which is "
        "plain llama.cpp; of H2O also, behind the semicolon, over dense with our own: what attention alone makes."
    )


def _speed(row: Row, report: Report) -> str:
    once = "*" if row["n"] == 1 < report.plan["repetitions"] else ""
    ratios = "; ".join(f"{r:.2f}" for r in (row["over_dense"], row["over_own_dense"]) if r is not None)
    return f"{_number(row['tokens_per_s'])}{once}" + (f" ({ratios})" if ratios else "")


def _memory(row: Row) -> str:
    peak = "–" if row["peak_rss"] is None else f"{row['peak_rss'] / MB:,.0f}"
    return f"{peak} ({row['kv_bytes'] / MB:,.1f} + {row['state_bytes'] / MB:,.1f})"


def _reading(report: Report, rows: Sequence[Row]) -> Table:
    """What generated tokens read, beside what the machine can read."""
    bandwidth = report.bandwidth
    lines = []
    for row in rows:
        share = "–" if row["of_bandwidth"] is None else f"{row['of_bandwidth']:.0%}"
        cells = [f"{row['read_bytes'] / MB:,.1f}", f"{row['read_per_s'] / GB:.1f}", share]
        lines.append([f"{row['mode']}, {row['n_tokens']:,}", *cells])
    note = f"Weights ({report.model['read_bytes'] / MB:,.1f} MB), K and V."
    if bandwidth is not None:
        note += (
            f" {_threads(report)} can read {bandwidth / GB:.1f} GB/s from memory (the best of several reads). What "
            "fits into a cache is read faster."
        )
    return Table("A generated token reads", ["MB", "GB/s", "of the bandwidth"], lines, note)


def _number(value: float) -> str:
    """With three digits or more."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _threads(report: Report) -> str:
    n = report.plan["n_threads"]
    return f"{n} thread{'s' if n > 1 else ''}"
