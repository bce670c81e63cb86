"""A memory report as one self-contained HTML page: nothing is loaded from anywhere."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from h2o_llama._internal.atomic import replacing
from h2o_llama.inspect._history import SHADES, membership
from h2o_llama.inspect._memory import MemoryReport, shades


@dataclass
class Run:
    """Consecutive pieces of one region (sinks, local, open or old) and chunk, all noted or none."""

    region: str
    chunk: int
    is_noted: bool
    begins_chunk: bool
    parts: list[dict[str, Any]] = field(default_factory=list)


def _runs(report: MemoryReport, notes: Sequence[range]) -> Iterator[Run]:
    """The document in order: a part is text that no head keeps, or a piece which heads keep as heavy hitter."""
    static_shades = shades(report.heads)
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


def render_html(report: MemoryReport, facts: Sequence[tuple[str, str]] = (), notes: Sequence[range] = ()) -> str:
    """The page. `facts` are (name, value) lines for its head, `notes` are positions to draw a frame around.

    It shows how the memory sets changed if the report has a history.
    """
    history = None if report.history is None or report.history.heavy.size == 0 else report.history
    picture = None if history is None else membership(history)
    # What the page's script needs of every head. Scores keep three digits.
    heads: list[dict[str, Any]] = [
        {
            "layer": h.layer,
            "head": h.head,
            "positions": h.heavy.tolist(),
            "scores": [float(f"{s:.3g}") for s in h.scores],
            **({} if history is None else {"since": history.since(row, h.heavy)}),
        }
        for row, h in enumerate(report.heads)
    ]
    environment = Environment(
        loader=PackageLoader("h2o_llama.inspect"), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    return environment.get_template("report.html.j2").render(
        report=report,
        facts=facts,
        runs=list(_runs(report, notes)),
        script_data={
            "heads": heads,
            "membership": None if picture is None else picture.data,
            "shades": SHADES,
        },
        membership=picture,
        n_shades=SHADES,
    )


def write_html(
    path: Path, report: MemoryReport, facts: Sequence[tuple[str, str]] = (), notes: Sequence[range] = ()
) -> None:
    """Writes the page. A half one never replaces a whole one."""
    page = render_html(report, facts, notes)
    with replacing(path) as file:
        file.write(page.encode())
