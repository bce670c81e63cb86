"""The pictures of the quality report."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from matplotlib import rc_context
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator, ScalarFormatter

from h2o_llama.llama import DENSE_TAIL
from h2o_llama.plots.style import heat_map, line_style, new_figure
from quality_plan import DEPTHS, LOCAL_SHARES, MEMORY_SIZES, ONE_KIND, SHORT, alternatives, budgets, main_settings
from quality_rows import Rows
from quality_tables import SPLITS, WINDOW, alternatives_names, found, percent


def draw(rows: Rows, folder: Path) -> list[Path]:
    """Write the pictures, as SVG."""
    paths = []
    with rc_context({"svg.hashsalt": "quality"}):  # equal figures are equal files
        for name, figure in (("quality-sizes", _sizes(rows)), ("quality-depths", _depths(rows))):
            paths.append(folder / f"{name}.svg")
            figure.savefig(paths[-1], metadata={"Date": None})
    return paths


def _sizes(rows: Rows) -> Figure:
    """Perplexity and recall against M, with one split."""
    share, split = LOCAL_SHARES[1], SPLITS[1]
    ways = list(zip(*(alternatives(budgets(size, share)) for size in MEMORY_SIZES), strict=True))
    figure, (text, recall) = new_figure(10, 4.2, 1, 2)
    names = [name.replace("`", "") for name in alternatives_names()]
    for i, (name, settings) in enumerate(zip(names, ways, strict=True)):
        losses = [rows.ratio(s, SHORT) for s in settings]
        style = line_style(i)
        text.errorbar(
            MEMORY_SIZES,
            [100 * e.mean for e in losses],
            [100 * e.error for e in losses],
            capsize=3,
            label=name,
            **style,
        )
        recall.plot(MEMORY_SIZES, [-found(rows, s)[0] for s in settings], label=name, **style)
    text.set(title=f"N {SHORT:,}, L:H {split}", ylabel="perplexity over dense (%)", ylim=(0, None))
    recall.set(title="Keys asked within the prompt", ylabel="recall over dense attention's", ylim=(-0.03, 1.03))
    for axes in (text, recall):
        axes.set_xscale("log", base=2)
        axes.set_xticks(MEMORY_SIZES)
        axes.xaxis.set_major_formatter(ScalarFormatter())
        axes.xaxis.set_minor_locator(NullLocator())
        axes.set_xlabel("M, positions in a memory set")
        axes.grid(alpha=0.3)
    text.legend()
    return figure


def _depths(rows: Rows) -> Figure:
    """Recall by length and depth: dense, and what a dense tail does."""
    kind = ONE_KIND[0]
    chosen, _, window = main_settings()
    after = [rows.by_depth(chosen, n, kind, DENSE_TAIL) for n in rows.lengths]
    panels = {
        "dense": [[c["recall_dense"] for c in cells] for cells in after],
        f"default, dense tail of {DENSE_TAIL}": [[c["recall"] for c in cells] for cells in after],
    }
    for name, setting in (("default, no dense tail", chosen), (f"{WINDOW}, no dense tail", window)):
        panels[name] = [[c["recall"] for c in rows.by_depth(setting, n, kind, 0)] for n in rows.lengths]
    figure, axes = new_figure(12, 3.2, 1, len(panels))
    for panel, (title, table) in zip(axes, panels.items(), strict=True):
        names = [f"{n:,}" for n in rows.lengths]
        image = heat_map(panel, np.transpose(table), names, [percent(depth, 0) for depth in DEPTHS])
        panel.set_title(title, fontsize="small")
        panel.set(xlabel="N (tokens)", ylabel="depth of the key")
    figure.colorbar(image, ax=axes, label="recall")
    return figure
