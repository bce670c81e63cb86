"""Plots of what the memory sets of a recorded `Llama` hold."""

from __future__ import annotations

import numpy as np
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from h2o_llama.plots.style import heat_map, line_style, new_figure
from h2o_llama.report import measures
from h2o_llama.report.captured import CapturedMass, mean_over_heads
from h2o_llama.report.history import MemoryHistory, stays


def membership(history: MemoryHistory, layer: int, head: int) -> Figure:
    """Which positions of a head came into the memory set when, and how long they stayed.

    A line per heavy hitter, at its position, from the first memory set that had it to the last. The band is the local
    window, which every head keeps.

    Parameters
    ----------
    history : MemoryHistory
        Of `h2o_llama.report.history.memory_history`.
    layer, head : int
        The layer and the KV head.

    Raises
    ------
    ValueError
        If there is no such head.
    """
    stay = stays(history, history.row(layer, head))
    figure, (axes,) = new_figure(8, 5)
    lines = [
        [(first - 0.4, p), (last + 0.4, p)]
        for p, first, last in zip(stay.positions, stay.first, stay.last, strict=True)
    ]
    axes.add_collection(LineCollection(lines, colors="0.15", linewidths=0.6, label="heavy hitters"))
    sets = np.arange(history.n_sets)
    ends = (sets + 1) * history.chunk_size
    axes.bar(
        sets,
        np.minimum(history.local_window, ends),
        bottom=np.maximum(0, ends - history.local_window),
        width=0.8,
        color="0.75",
        label="local window",
    )
    axes.set(
        title=f"Heavy hitters of layer {layer}, KV head {head}",
        xlabel="memory set (after chunk)",
        ylabel="position in the text (tokens)",
        xlim=(-0.6, history.n_sets - 0.4),
        ylim=(history.n_sets * history.chunk_size, 0),
    )
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.legend(loc="lower left")
    return figure


def overlap(history: MemoryHistory) -> Figure:
    """How alike the heavy hitters of two heads are: Jaccard, averaged over the memory sets, for all pairs of heads."""
    pairs = measures.overlap(history)
    n = len(history.heads)
    figure, (axes,) = new_figure(*2 * (max(4.5, min(12, 0.35 * n + 2)),))
    names = [f"{layer}.{head}" for layer, head in history.heads]
    image = heat_map(axes, pairs, names, names)
    if n > 32:  # then only the first head of every layer has a name
        first = [i for i, (_, head) in enumerate(history.heads) if head == 0]
        axes.set_xticks(first, [names[i] for i in first])
        axes.set_yticks(first, [names[i] for i in first])
    axes.tick_params(axis="x", rotation=90)
    axes.set(title="Overlap of heavy hitters between heads", xlabel="layer.KV head", ylabel="layer.KV head")
    figure.colorbar(image, ax=axes, label="Jaccard, mean over memory sets")
    return figure


def stability(history: MemoryHistory) -> Figure:
    """How alike a head's heavy hitters are from one chunk to the next: Jaccard, averaged, per layer and KV head."""
    table, layers, heads = _by_layer(history.heads, measures.stability(history))
    figure, (axes,) = new_figure(max(4.5, 0.5 * len(heads) + 2.5), max(3, 0.3 * len(layers) + 1.5))
    image = heat_map(axes, table, heads, layers)
    axes.set(title="Stability of heavy hitters", xlabel="KV head", ylabel="layer")
    figure.colorbar(image, ax=axes, label="Jaccard from chunk to chunk")
    return figure


def captured_mass(captured: CapturedMass) -> Figure:
    """What the memory sets hold of dense attention to older tokens and what they could: by chunk, and per head."""
    means = [measures.mean(captured.captured, axis=0), measures.mean(captured.best, axis=0)]
    tables = [_by_layer(captured.heads, values) for values in means]
    _, layers, heads = tables[0]
    figure, (by_chunk, *maps) = new_figure(12, max(3.5, 0.3 * len(layers) + 1.5), 1, 3)
    chunks, held, best = zip(*mean_over_heads(captured), strict=True) if len(captured.captured) else ((), (), ())
    by_chunk.plot(chunks, np.array(best) * 100, label="best possible", **line_style(1))
    by_chunk.plot(chunks, np.array(held) * 100, label="held", **line_style(0))
    by_chunk.set(title="Mean of all heads", xlabel="chunk", ylabel="attention to older tokens (%)", ylim=(0, 100))
    by_chunk.xaxis.set_major_locator(MaxNLocator(integer=True))
    by_chunk.legend()
    high = max((100 * float(np.nanmax(v)) for v in means if not np.isnan(v).all()), default=100.0)
    for axes, title, (table, _, _) in zip(maps, ("Held by the memory sets", "Best possible"), tables, strict=True):
        image = heat_map(axes, 100 * table, heads, layers, (0, high), "{:.0f}")
        axes.set(title=title, xlabel="KV head", ylabel="layer")
    figure.colorbar(image, ax=maps, label="share of attention to older tokens (%)")
    return figure


def _by_layer(
    heads: tuple[tuple[int, int], ...], values: NDArray[np.float64]
) -> tuple[NDArray[np.float64], list[int], list[int]]:
    """Values of heads as a table [n_layers, n_heads], NaN where a layer has no such head; its layers and heads."""
    layers, columns = (sorted(set(numbers)) for numbers in zip(*heads, strict=True))
    table = np.full((len(layers), len(columns)), np.nan)
    for (layer, head), value in zip(heads, values, strict=True):
        table[layers.index(layer), columns.index(head)] = value
    return table, layers, columns
