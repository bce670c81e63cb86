"""The document of the HTML page, cut where its look changes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from h2o_llama.inspect.memory import MemoryReport, shades


@dataclass
class Run:
    """Consecutive pieces of one region (sinks, local, open or old) and chunk, all noted or none."""

    region: str
    chunk: int
    is_noted: bool
    begins_chunk: bool
    parts: list[dict[str, Any]] = field(default_factory=list)


def runs(report: MemoryReport, notes: Sequence[range]) -> Iterator[Run]:
    """The document in order: a part is text that no head keeps, or a piece which heads keep as heavy hitter."""
    static_shades = shades(report, report.heads)
    run: Run | None = None
    for piece in report.pieces:
        region, chunk = report.region(piece.start), piece.start // report.chunk_size
        is_noted = any(piece.start in note for note in notes)
        if run is None or (run.region, run.chunk, run.is_noted) != (region, chunk, is_noted):
            if run is not None:
                yield run
            run = Run(region, chunk, is_noted, begins_chunk=run is None or run.chunk != chunk)
        kept = [p for p in range(piece.start, piece.end) if p in static_shades]
        if kept:
            run.parts.append({"positions": kept, "shade": max(static_shades[p] for p in kept), "text": piece.text})
        elif run.parts and not run.parts[-1]["positions"]:
            run.parts[-1]["text"] += piece.text
        else:
            run.parts.append({"positions": [], "text": piece.text})
    if run is not None:
        yield run
