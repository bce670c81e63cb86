"""The tables of a run."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from goals import goals, scratch_line
from machine import MB
from results import Result, Run, Sample, ratio
from settings import SETTINGS, SIZES, SPARSE, Setting

# Below this share of the CPU time that its threads could have had, a figure says little.
MIN_CPU_SHARE = 0.9
PARTS = ("layers", "attention", "scores", "selection", "gather")


def print_tables(run: Run, console: Console) -> None:
    spec, plan = run.model, run.plan
    console.print(
        f"{run.machine['cpu']}, threads: {plan['n_threads']}, {run.machine['date']}. Random model: {spec['n_layer']} "
        f"layers of Qwen3-0.6B's shape, Q8_0 weights, F16 K/V; {SIZES}."
    )
    console.print(speed_table(run))
    console.print(
        "tokens/s: median of n prefills. Dense: the better of flash attention on and off. Its first chunk is measured "
        "again next to every N.\nPeak RSS: of a process that does nothing else. Scores …: and memory sets, and in "
        "two_phase the (m, l, o) of a call.\n"
    )
    for setting in SPARSE:
        if any(r.profile for r in run.of(setting)):
            console.print(parts_table(run, setting))
    console.print(
        "From one more prefill each, with profile=True. Layers: everything that is not in another column. "
        "Where attention is one fused operator, it gathers K and V and sums the columns by itself: gather is –.\n"
    )
    console.print(goal_table(run))
    if line := scratch_line(run):
        console.print(line)
    if run.cpu_share < MIN_CPU_SHARE:
        console.print(f"Doubtful: other processes left as little as {run.cpu_share:.0%} of its CPU time to a prefill.")


def speed_table(run: Run) -> Table:
    ratios = "over dense", "over dense's\nfirst 1,024"
    memory = "peak RSS,\nMB", "K and V,\nMB", "scores …,\nMB"
    table = _table("Prefill", "N", "setting", "n", "tokens/s", *ratios, *memory)
    for n_tokens in run.lengths:
        rows = [r for s in SETTINGS if (r := run.get(s, n_tokens))]
        for r in rows:
            s = r.stats
            table.add_row(
                f"{n_tokens:,}",
                r.case.setting.name,
                str(len(r.samples)),
                f"{r.speed:,.0f}",
                _number(ratio(r.speed, run.dense_speed(n_tokens))),
                _number(ratio(r.speed, run.first_speed)),
                f"{r.peak_rss / MB:,.0f}",
                f"{s.kv_bytes / MB:,.0f}",
                f"{(s.score_bytes + s.memory_bytes + s.intra_bytes) / MB:,.1f}",
                end_section=r is rows[-1],
            )
    return table


def parts_table(run: Run, setting: Setting) -> Table:
    """Where a sparse setting spends its time: share, and milliseconds per token."""
    profiles = [(r, r.profile) for r in run.of(setting) if r.profile]
    table = _table(f"{setting.name}: parts of the time", "N", "", "in all", *PARTS, "memory\nset, ms", "graphs\nreused")
    for r, profile in profiles:
        total = 1000 * profile.seconds
        parts = parts_ms(profile)
        share = ["–" if p is None else f"{100 * p / total:.2f}" for p in parts]
        per_token = [_number(ratio(p, r.case.n_tokens), 4) for p in (total, *parts)]
        graphs = f"{r.stats.graphs_reused} of {_passes(r)}"
        table.add_row(f"{r.case.n_tokens:,}", "%", "100", *share, _number(r.select_ms, 3), graphs)
        table.add_row("", "ms/token", *per_token, end_section=True)
    return table


def parts_ms(profile: Sample) -> list[float | None]:
    """Milliseconds of each of PARTS in a profiled prefill."""
    s = profile.stats
    layers = 1000 * profile.seconds - s.attention_ms - s.score_ms - s.select_ms - s.gather_ms
    return [layers, s.attention_ms, s.score_ms, s.select_ms, s.gather_ms or None]


def goal_table(run: Run) -> Table:
    table = Table(title="Goals", title_justify="left")
    table.add_column("goal")
    table.add_column("bound (stretch)", justify="right")
    table.add_column("measured", justify="right")
    table.add_column("")
    for goal in goals(run):
        style = {True: "green", False: "red", None: "dim"}[goal.met]
        table.add_row(goal.name, goal.bound_text, goal.measured_text, f"[{style}]{goal.verdict}[/]")
    return table


def _passes(result: Result) -> int:
    s = result.stats
    return s.single_pass_runs + s.phase1_runs + s.phase2_runs


def _number(value: float | None, digits: int = 2) -> str:
    return "–" if value is None else f"{value:.{digits}f}"


def _table(title: str, *columns: str) -> Table:
    """The second column is text, the others are numbers."""
    table = Table(title=title, title_justify="left")
    for i, column in enumerate(columns):
        table.add_column(column, justify="left" if i == 1 else "right")
    return table
