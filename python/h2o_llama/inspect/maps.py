"""Maps of the HTML page: tables with one shaded number per layer and KV head, or per pair of layers."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from h2o_llama.inspect import measures
from h2o_llama.inspect.captured import CapturedMass
from h2o_llama.inspect.history import MemoryHistory
from h2o_llama.inspect.lookup_attention import LookupAttention
from h2o_llama.inspect.memory import SHADES


@dataclass(frozen=True)
class Unit:
    """How a map writes its numbers: short in a cell, and with the unit."""

    short: Callable[[float], str]
    full: Callable[[float], str]


PERCENT = Unit(lambda v: f"{100 * v:.0f}", lambda v: f"{100 * v:.1f} %")
CHUNKS = Unit(lambda v: f"{v:.1f}" if v < 10 else f"{v:.0f}", lambda v: f"{v:.1f} chunks")

Heads = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Cell:
    """A number as text, short and with its unit. `shade` is 1 to SHADES; 0 where there is no number."""

    short: str
    full: str
    shade: int


@dataclass(frozen=True)
class Map:
    """A table of cells. The weakest shade begins at the number `low`, the strongest ends at `high`.

    Rows are layers; columns are KV heads if `of_heads`, else layers.
    """

    title: str
    how: str
    of_heads: bool
    columns: list[int]
    rows: list[tuple[int, list[Cell]]]
    low: str
    high: str


def history_maps(history: MemoryHistory) -> list[Map]:
    """What the memory sets of a history have in common; without maps in which there is nothing to measure."""
    pairs = measures.overlap(history)
    layers = _layers(history.heads)
    n_sets, heads = history.n_sets, history.heads
    chance = PERCENT.full(measures.chance_of_chunk_start(history))
    maps = [
        _of_heads(
            "Stability",
            "Heavy hitters that stay from one chunk to the next: those in both memory sets, as a share of those in "
            "either. At 100 % nothing ever changes.",
            heads,
            measures.stability(history),
        ),
        _of_heads(
            "Agreement within the layer",
            "Heavy hitters that a head shares with another head of its layer, as a share of those of either. At 100 % "
            "all heads keep the same tokens.",
            heads,
            measures.overlap_in_layer(history, pairs),
        ),
        _of_heads(
            "Age",
            "How many chunks ago the heavy hitters of the last memory set were read, on average: 0 is the newest "
            f"chunk, {n_sets - 1} the first. Spread evenly over the text it would be {(n_sets - 1) / 2:.1f}.",
            heads,
            measures.mean_age(history),
            CHUNKS,
        ),
        _of_heads(
            "Chunk beginnings",
            f"Heavy hitters among the first {measures.CHUNK_START} tokens of a chunk. Where chunks begin means nothing "
            f"to the text: far more than by chance ({chance}) is an artefact.",
            heads,
            measures.chunk_start_share(history),
        ),
        _map(
            "Agreement between layers",
            "The same as within the layer, for two heads of two layers, averaged; on the diagonal, two heads of one.",
            False,
            (layers, layers),
            measures.overlap_of_layers(history, pairs),
        ),
    ]
    return [m for m in maps if any(cell.shade for _, cells in m.rows for cell in cells)]


def mass_maps(captured: CapturedMass) -> list[Map]:
    """What the memory sets hold of dense attention's mass, and what they could, on one scale."""
    held, best = measures.mean(captured.captured, axis=0), measures.mean(captured.best, axis=0)
    scale = _range(np.concatenate([held, best]))
    return [
        _of_heads(
            "Held by the memory sets",
            "Share of dense attention to older tokens that goes to tokens of the memory set.",
            captured.heads,
            held,
            scale=scale,
        ),
        _of_heads(
            "Best possible",
            "The same for the best set of that size: with the heavy hitters that the coming chunk will ask for most.",
            captured.heads,
            best,
            scale=scale,
        ),
    ]


def lookup_map(attention: LookupAttention) -> Map:
    """How much every head attends to what was looked up."""
    return _of_heads(
        "Attention to what was looked up",
        "Of a head's attention to tokens before the chunk, the share that goes to looked-up tokens which are not in "
        "its memory set; mean of all chunks but the first.",
        attention.heads,
        measures.mean(attention.share, axis=0),
    )


def _layers(heads: Heads) -> list[int]:
    return sorted({layer for layer, _ in heads})


def _of_heads(
    title: str,
    how: str,
    heads: Heads,
    values: NDArray[np.float64],
    unit: Unit = PERCENT,
    scale: tuple[float, float] | None = None,
) -> Map:
    layers, columns = _layers(heads), sorted({head for _, head in heads})
    table = np.full((len(layers), len(columns)), np.nan)
    for (layer, head), value in zip(heads, values, strict=True):
        table[layers.index(layer), columns.index(head)] = value
    return _map(title, how, True, (layers, columns), table, unit, scale)


def _map(
    title: str,
    how: str,
    of_heads: bool,
    names: tuple[list[int], list[int]],
    table: NDArray[np.float64],
    unit: Unit = PERCENT,
    scale: tuple[float, float] | None = None,
) -> Map:
    low, high = scale or _range(table)

    def cell(value: float) -> Cell:
        if math.isnan(value):
            return Cell("–", "nothing to measure", 0)
        shade = 1 + min(SHADES - 1, int(SHADES * (value - low) / (high - low))) if high > low else 1
        return Cell(unit.short(value), unit.full(value), shade)

    rows = [(name, [cell(v) for v in row]) for name, row in zip(names[0], table.tolist(), strict=True)]
    return Map(title, how, of_heads, names[1], rows, unit.full(low), unit.full(high))


def _range(values: NDArray[np.float64]) -> tuple[float, float]:
    """The smallest and the largest number; zeros if there is none."""
    numbers = values[~np.isnan(values)]
    return (float(numbers.min()), float(numbers.max())) if len(numbers) else (0.0, 0.0)
