"""What the default must reach on the demo model, next to what it reaches."""

from __future__ import annotations

from dataclasses import replace

from h2o_llama.eval import Setting
from h2o_llama.eval.task import Row
from h2o_llama.llama import DENSE_TAIL
from quality_plan import DEPTHS, MIDDLE, ONE_KIND, SHORT, default, plain_sum, reference
from quality_rows import Rows
from quality_tables import WINDOW, markdown, percent

AFTER = 0.98
TAIL_SHARE = 0.05
CHUNK_STARTS = 2  # times chance


def goals(rows: Rows, time: Row) -> str:
    """A table. `time` is that of the dense tail on the demo model."""
    return markdown(
        ["goal", "measured", ""],
        [*_better(rows), _after(rows), _tail_share(time), _chunk_starts(rows)],
    )


def _better(rows: Rows) -> list[list[str]]:
    """The default against what has the same budgets, in nats per token on the same windows."""
    h2o = default()
    others = {
        "plain sum": Setting.of(plain_sum(h2o)),
        "H at random": reference(h2o, "random"),
        WINDOW: reference(h2o, "window"),
    }
    lines = []
    for name, other in others.items():
        added = rows.difference(Setting.of(h2o), other, SHORT)
        # Less than two standard errors may be chance.
        verdict = "met" if added.mean < -2 * added.error else "missed" if added.mean > 2 * added.error else "undecided"
        lines.append(
            [
                f"default better than: {name}, N {SHORT:,}",
                f"{added.mean:+.4f} ± {added.error:.4f} nats per byte",
                verdict,
            ]
        )
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
        f"{worst:.2f} at depth {DEPTHS[shares.index(worst)]:.0%}, {n} questions",
        _verdict(worst, AFTER, worst >= AFTER),
    ]


def _tail_share(time: Row) -> list[str]:
    share = time["share"]
    return [
        f"dense tail of {DENSE_TAIL} at N {time['n_tokens']:,}: ≤ {percent(TAIL_SHARE, 0)} of prefill's time",
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
