"""The tables of the quality report, in Markdown."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from h2o_llama.config import SCORERS
from h2o_llama.eval import Setting
from h2o_llama.eval.task import Row
from h2o_llama.llama import DENSE_TAIL
from quality_plan import (
    DEPTHS,
    KINDS,
    LOCAL_SHARES,
    MEMORY_SIZE,
    MEMORY_SIZES,
    MIDDLE,
    ONE_KIND,
    POOLING,
    PROMPT,
    SCHEDULES,
    SHORT,
    TAILS,
    Schedule,
    alternatives,
    budgets,
    continued,
    default,
    main_settings,
    reference,
    scored,
)
from quality_rows import Estimate, Rows

SPLITS = ("1:1", "3:1", "7:1")
WINDOW = "first 4 and last M − 4"

# By what cells are ranked, the lowest best, and what is printed.
Cell = tuple[float, str]


def markdown(columns: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """A table, numbers to the right."""
    rule = "|---|" + "--:|" * (len(columns) - 1)
    head, *rest = ("| " + " | ".join(cells) + " |" for cells in (columns, *lines))
    return "\n".join([head, rule, *rest])


def percent(value: float, digits: int = 1) -> str:
    return f"{100 * value:.{digits}f} %"


def signed(value: float, digits: int) -> str:
    """With a sign, but no negative zero."""
    return f"{round(value, digits) + 0.0:+.{digits}f}".replace("-", "−")


def over_dense(ratio: Estimate) -> str:
    """What is added to perplexity."""
    return f"{signed(100 * ratio.mean, 1)} ± {percent(ratio.error)}"


def choice(setting: Setting) -> str:
    """Who chooses a memory set."""
    assert setting.h2o is not None
    if setting.memory is not None:
        return {"random": "at random", "upper_bound": "by the next chunk's true attention"}[setting.memory]
    if setting.h2o.heavy_budget == 0:
        return WINDOW
    return f"`{setting.h2o.scorer}`" + (f", pooling {setting.h2o.pooling}" if setting.h2o.pooling else "")


def alternatives_names() -> list[str]:
    """Names of `alternatives`."""
    return [choice(s) for s in alternatives(default())]


def choices(rows: Rows, schedule: Schedule) -> str:
    """Every way to choose, both splits in each cell. The upper bound cannot be had: it is not marked."""
    splits = [replace(budgets(MEMORY_SIZE, share), schedule=schedule) for share in LOCAL_SHARES[:2]]
    real = [[*scored(h2o), reference(h2o, "random"), reference(h2o, "window")] for h2o in splits]
    beyond = [reference(h2o, "upper-bound") for h2o in splits]
    columns: dict[str, Callable[[Setting], Cell]] = {
        "perplexity over dense": lambda s: loss(rows, s),
        "KL": lambda s: _least(rows.text(s, SHORT)["kld_mean"], 3),
        "same top": lambda s: _most(rows.text(s, SHORT)["same_top"], 3),
        **{kind: partial(found, rows, kinds=(kind,)) for kind in KINDS},
    }
    table = [[choice(s) for s in (*real[0], beyond[0])]]
    for cell in columns.values():
        halves = [[*_mark_best([cell(s) for s in some]), cell(one)[1]] for some, one in zip(real, beyond, strict=True)]
        table.append([a if a == b else f"{a} / {b}" for a, b in zip(*halves, strict=True)])
    return markdown(["heavy hitters", *columns], list(zip(*table, strict=True)))


def sizes(cell: Callable[[Setting], Cell]) -> str:
    """A line for every M: what its settings reach."""
    lines = []
    for size in MEMORY_SIZES:
        chosen, plain, window = zip(*(alternatives(budgets(size, share)) for share in LOCAL_SHARES), strict=True)
        lines.append([str(size), *_mark_best([cell(s) for s in (*chosen, *plain, window[0])])])
    *split, window_name = alternatives_names()
    return markdown(["M", *(f"{name}, {parts}" for name in split for parts in SPLITS), window_name], lines)


def loss(rows: Rows, setting: Setting) -> Cell:
    """Perplexity over dense."""
    estimate = rows.ratio(setting, SHORT)
    return estimate.mean, over_dense(estimate)


def found(rows: Rows, setting: Setting, kinds: Sequence[str] = KINDS) -> Cell:
    """Recall within the prompt over dense attention's, the mean of some kinds."""
    return _most(float(np.mean([rows.far(setting, SHORT, kind, 0) for kind in kinds])), 2)


def smallest(rows: Rows) -> str:
    """The smallest M that is good enough for something."""
    needs: dict[str, Callable[[Setting], bool]] = {
        "perplexity at most 5 % over dense": lambda s: loss(rows, s)[0] <= 0.05,
        "perplexity at most 2 % over dense": lambda s: loss(rows, s)[0] <= 0.02,
        "one key or one of eight, asked in the prompt, ≥ 0.95 of dense": lambda s: (
            -found(rows, s, ("single", "multi-key"))[0] >= 0.95
        ),
        "one of 90 pairs, asked in the prompt, ≥ 0.95 of dense": lambda s: -found(rows, s, ("pairs",))[0] >= 0.95,
        f"asked after the document, dense tail of {DENSE_TAIL}, ≥ 0.98 of dense": lambda s: (
            rows.far(s, SHORT, ONE_KIND[0], DENSE_TAIL) >= 0.98
        ),
    }
    names = alternatives_names()
    lines = [[name, *(_smallest(is_enough, way) for way in range(len(names)))] for name, is_enough in needs.items()]
    return markdown(["what is asked of it", *names], lines)


def _smallest(is_enough: Callable[[Setting], bool], way: int) -> str:
    """The smallest M of one of the `alternatives`, with the splits for which it is enough."""
    for size in MEMORY_SIZES:
        settings = [alternatives(budgets(size, share))[way] for share in LOCAL_SHARES]
        enough = [split for split, setting in zip(SPLITS, settings, strict=True) if is_enough(setting)]
        if enough:
            return f"{size}" if settings[0] == settings[1] else f"{size} ({', '.join(enough)})"
    return f"more than {MEMORY_SIZES[-1]}"


def lengths(rows: Rows) -> str:
    """Longer texts with the same M."""
    lines = []
    for n in rows.lengths:
        for setting in (*main_settings(), reference(default(), "upper-bound")):
            cells = rows.by_depth(setting, n, ONE_KIND[0], 0)
            text = rows.text(setting, n)
            lines.append(
                [
                    f"{n:,}",
                    choice(setting),
                    over_dense(rows.ratio(setting, n)),
                    f"{text['kld_mean']:.3f}",
                    _by_depth(cells),
                ]
            )
    columns = ["heavy hitters", "perplexity over dense", "KL", "asked in the prompt, by depth"]
    return markdown(["N", *columns], lines)


def after(rows: Rows) -> str:
    """Recall of a question with a dense tail after the document."""
    cells = {n: rows.by_depth(main_settings()[0], n, ONE_KIND[0], DENSE_TAIL) for n in rows.lengths}
    lines = [[f"{n:,}", *(f"{c['recall']:.2f} / {c['recall_dense']:.2f}" for c in row)] for n, row in cells.items()]
    return markdown(["N", *(percent(depth, 0) for depth in DEPTHS)], lines)


def continuation(rows: Rows) -> str:
    """What text costs after a prompt."""
    lines = []
    for setting in continued():
        assert setting.h2o is not None
        line = [f"`{setting.h2o.schedule}`", choice(setting)]
        for over in ("full", "memory"):
            row = rows.find("continuation", setting, n_tokens=PROMPT, over=over)
            line.append(over_dense(Estimate(row["ppl_ratio"] - 1, row["ppl_ratio_se"])))
        lines.append(line)
    return markdown(["schedule", "heavy hitters", "reading all K/V", "reading the memory set"], lines)


def tails(rows: Rows) -> str:
    """Recall against the length of the dense tail."""
    lines = [[str(tail), *(f"{rows.far(s, SHORT, ONE_KIND[0], tail):.2f}" for s in main_settings())] for tail in TAILS]
    return markdown(["dense tail", *alternatives_names()], lines)


def tail_times(times: Sequence[Row]) -> str:
    """What a dense tail takes."""
    lines = []
    for row in times:
        total, tail = (f"{row[name]:,.0f} ms" for name in ("total_ms", "tail_ms"))
        lines.append([f"`{row['model']}`", f"{row['n_tokens']:,}", total, tail, percent(row["share"])])
    return markdown(["model", "N", "prefill", f"dense tail of {DENSE_TAIL}", "share"], lines)


def chunk_starts(rows: Rows) -> str:
    """Share of heavy hitters that are among the first 8 tokens of their chunk."""
    lines = []
    for scorer in SCORERS:
        line = [f"`{scorer}`"]
        for schedule in SCHEDULES:
            for pooling in POOLING:
                h2o = replace(default(), schedule=schedule, scorer=scorer, pooling=pooling)
                row = rows.find("chunk starts", Setting.of(h2o), n_tokens=MIDDLE)
                line.append(f"{percent(row['share'])} / {percent(row['share_later'])}")
        lines.append(line)
    columns = [f"`{schedule}`, pooling {pooling}" for schedule in SCHEDULES for pooling in POOLING]
    return markdown(["scorer", *columns], lines)


def _least(value: float, digits: int) -> Cell:
    return value, f"{value:.{digits}f}"


def _most(value: float, digits: int) -> Cell:
    return -value, f"{value:.{digits}f}"


def _mark_best(cells: Sequence[Cell]) -> list[str]:
    """The texts, those that look like the best one in bold."""
    best = min(cells)[1]
    return [f"**{text}**" if text == best else text for _, text in cells]


def _by_depth(cells: Sequence[Row]) -> str:
    return " ".join(f"{cell['recall']:.2f}" for cell in cells)
