"""Plots of what `h2o-llama eval` measured."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullLocator

from h2o_llama.inspect.plots.style import DENSE_LINE, line_style, new_figure

Row = Mapping[str, Any]


def eval_plots(rows: Sequence[Row], directory: Path) -> list[Path]:
    """Draw what the rows hold, as SVG files.

    Parameters
    ----------
    rows : sequence of mapping
        As `h2o-llama eval --json` writes them.
    directory : Path
        Where the files go; it is made if it is missing.

    Returns
    -------
    list of Path
        "perplexity-N.svg", perplexity and KL divergence by position, for every N; "sweep-N.svg", loss over dense
        against M + B, for every N with several sizes.

    Raises
    ------
    ValueError
        If the rows are of several models.
    OSError
        If a file cannot be written.
    """
    models = sorted({str(row["model"]) for row in rows})
    if len(models) > 1:
        raise ValueError(f"[eval_plots] rows must be of one model, got {', '.join(models)}: draw each by itself")
    directory.mkdir(parents=True, exist_ok=True)
    paths = []
    for name, figure in _figures(rows):
        paths.append(directory / f"{name}.svg")
        figure.savefig(paths[-1])
    return paths


def _figures(rows: Sequence[Row]) -> Iterable[tuple[str, Figure]]:
    perplexity = [row for row in rows if row["task"] == "perplexity" and row["h2o"] is not None]
    for n_tokens, group in _grouped(perplexity, lambda row: row["n_tokens"]):
        yield f"perplexity-{n_tokens}", _perplexity(n_tokens, group)
        if len({_size(row) for row in group}) > 1:
            yield f"sweep-{n_tokens}", sweep(n_tokens, group)


def _perplexity(n_tokens: int, rows: Sequence[Row]) -> Figure:
    """Perplexity and KL divergence by position: a line per setting."""
    figure, (top, bottom) = new_figure(8, 7 + 0.11 * len(rows), 2, 1)  # with room for the legend
    first = rows[0]["buckets"]
    top.plot(_middles(first), [b["ppl_dense"] for b in first], label="dense", **DENSE_LINE)
    for i, row in enumerate(rows):
        style = line_style(i)
        top.plot(_middles(row["buckets"]), [b["ppl"] for b in row["buckets"]], label=row["setting"], **style)
        bottom.plot(_middles(row["buckets"]), [b["kld_mean"] for b in row["buckets"]], **style)
    top.set(title=f"By position, windows of {n_tokens:,} tokens", ylabel="perplexity")
    bottom.set(ylabel="KL divergence from dense (nats per token)", ylim=(0, None))
    edges = [first[0]["start"], *(bucket["stop"] for bucket in first)]
    for axes in (top, bottom):
        axes.set_xticks(range(len(edges)), [f"{edge:,}" for edge in edges])
        axes.set(xlabel="position (tokens)", xlim=(0, len(edges) - 1))
        axes.grid(alpha=0.3)
    figure.legend(loc="outside lower center", ncols=2, fontsize="small")
    return figure


def _middles(buckets: Sequence[Row]) -> list[float]:
    """Buckets are drawn equally wide: each is twice as long as the one before."""
    return [i + 0.5 for i in range(len(buckets))]


def sweep(n_tokens: int, rows: Sequence[Row]) -> Figure:
    """Loss over dense against M + B: a line per schedule and choice of positions."""
    figure, (axes,) = new_figure(8, 5)
    groups = _grouped(rows, _choice)
    for i, (name, group) in enumerate(groups):
        group.sort(key=_size)
        axes.errorbar(
            [_size(row) for row in group],
            [row["nats_added"] for row in group],
            yerr=[row["over_windows"]["nats_added_se"] or 0 for row in group],
            capsize=3,
            label=name,
            **line_style(i),
        )
    sizes = sorted({_size(row) for row in rows})
    axes.set_xscale("log", base=2)
    axes.set_xticks(sizes)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:,.0f}"))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.axhline(0, **DENSE_LINE)
    axes.set(
        title=f"What sparse attention costs, windows of {n_tokens:,} tokens",
        xlabel="M + B, positions beyond its chunk that a query attends to",
        ylabel="loss over dense (nats per token)",
    )
    axes.grid(alpha=0.3)
    axes.legend()
    return figure


def _size(row: Row) -> int:
    """M + B."""
    h2o = row["h2o"]
    return int(h2o["sink_tokens"] + h2o["local_window"] + (h2o["heavy_budget"] or 0) + h2o["lookup_budget"])


def _choice(row: Row) -> str:
    """Schedule, how the heavy hitters are chosen, and whether and how there is lookup."""
    h2o = row["h2o"]
    choice = row["memory"] or (h2o["scorer"] if h2o["heavy_budget"] else "window")
    lookup = ""
    if h2o["lookup_budget"]:
        lookup = ", index" if h2o.get("retrieval") == "index" else ", lookup"  # older rows do not say
    return f"{h2o['schedule']} {choice}{lookup}".replace("_", " ")


def _grouped(rows: Iterable[Row], key: Callable[[Row], Any]) -> list[tuple[Any, list[Row]]]:
    """Rows with the same key, keys in the order in which they come."""
    groups: dict[Any, list[Row]] = defaultdict(list)
    for row in rows:
        groups[key(row)].append(row)
    return list(groups.items())
