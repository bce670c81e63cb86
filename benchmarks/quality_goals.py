"""What the default must reach on the demo model, next to what it reaches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from h2o_llama.eval import Setting
from h2o_llama.eval.task import Row
from h2o_llama.llama import DENSE_TAIL
from quality_plan import DEPTHS, MIDDLE, ONE_KIND, SHORT, compared, default
from quality_rows import Rows
from quality_tables import choice, markdown, percent, signed

AFTER = 0.98
TAIL_SHARE = 0.05
CHUNK_STARTS = 2  # times chance


def goals(rows: Rows, times: Sequence[Row]) -> str:
    """A table. `times` are those of the dense tail on two models."""
    lines = [*_better(rows), _after(rows), *(_tail_share(time) for time in times), _chunk_starts(rows)]
    return markdown(["goal", "measured", ""], lines)


def _better(rows: Rows) -> list[list[str]]:
    """The default against what has the same budgets, in nats per token on the same windows."""
    chosen, *others = compared()
    lines = []
    for other in others:
        added = rows.difference(chosen, other)
        # Less than two standard errors may be chance.
        verdict = "met" if added.mean < -2 * added.error else "missed" if added.mean > 2 * added.error else "undecided"
        difference = f"{signed(added.mean, 4)} ± {added.error:.4f} nats per byte"
        lines.append([f"default better than: {choice(other)}, N {SHORT:,}", difference, verdict])
    return lines


def _after(rows: Rows) -> list[str]:
    """The worst depth, all lengths together: one length alone has too few questions."""
    by_length = [rows.by_depth(Setting.of(default()), n, ONE_KIND[0], DENSE_TAIL) for n in rows.lengths]
    by_depth = list(zip(*by_length, strict=True))
    shares = [sum(c["recall"] for c in cells) / sum(c["recall_dense"] for c in cells) for cells in by_depth]
    worst = min(shares)
    n = sum(cell["n"] for cell in by_depth[0])
    return [
        f"question after the document, dense tail of {DENSE_TAIL}, every depth, N up to {rows.lengths[-1]:,}: "
        f"≥ {AFTER} of dense",
        f"{worst:.2f} at depth {percent(DEPTHS[shares.index(worst)], 0)}, {n} questions",
        _verdict(worst, AFTER, worst >= AFTER),
    ]


def _tail_share(time: Row) -> list[str]:
    share = time["share"]
    return [
        f"dense tail of {DENSE_TAIL} at N {time['n_tokens']:,}: ≤ {percent(TAIL_SHARE, 0)} of prefill's time "
        f"(`{time['model']}`)",
        percent(share),
        _verdict(share, TAIL_SHARE, share <= TAIL_SHARE),
    ]


def _chunk_starts(rows: Rows) -> list[str]:
    setting = Setting.of(replace(default(), schedule="two_phase"))
    row = rows.find("chunk starts", setting, n_tokens=MIDDLE)
    bound = CHUNK_STARTS * row["chance"]
    return [
        f"`two_phase`, first 8 tokens of chunks among heavy hitters: ≤ {CHUNK_STARTS} × chance ({percent(bound)})",
        percent(row["share"]),
        _verdict(row["share"], bound, row["share"] <= bound),
    ]


def _verdict(measured: float, bound: float, is_met: bool) -> str:
    return f"{'met' if is_met else 'missed'} by {percent(abs(measured / bound - 1), 0)}"
