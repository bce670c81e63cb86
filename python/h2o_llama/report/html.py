"""A memory report as one self-contained HTML page: nothing is loaded from anywhere."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from h2o_llama.report.memory import SHADES, MemoryReport, shades, top_texts
from h2o_llama.report.pieces import visible


@dataclass
class _Run:
    """Consecutive pieces of one region (sinks, local, open or old) and chunk, all noted or none."""

    region: str
    chunk: int
    is_noted: bool
    begins_chunk: bool
    parts: list[dict[str, Any]] = field(default_factory=list)


def _runs(report: MemoryReport, notes: Sequence[range]) -> Iterator[_Run]:
    """The document in order: a part is text that no head keeps, or a piece which heads keep as heavy hitter."""
    static_shades = shades(report, report.heads)
    run: _Run | None = None
    for piece in report.pieces:
        region, chunk = report.region(piece.start), piece.start // report.chunk_size
        is_noted = any(piece.start in note for note in notes)
        if run is None or (run.region, run.chunk, run.is_noted) != (region, chunk, is_noted):
            if run is not None:
                yield run
            run = _Run(region, chunk, is_noted, begins_chunk=run is None or run.chunk != chunk)
        kept = [p for p in range(piece.start, piece.end) if p in static_shades]
        if kept:
            run.parts.append({"positions": kept, "shade": max(static_shades[p] for p in kept), "text": piece.text})
        elif run.parts and not run.parts[-1]["positions"]:
            run.parts[-1]["text"] += piece.text
        else:
            run.parts.append({"positions": [], "text": piece.text})
    if run is not None:
        yield run


def _script_data(report: MemoryReport) -> list[dict[str, Any]]:
    """What the page's script needs of every head. Scores keep three digits."""
    return [
        {
            "layer": h.layer,
            "head": h.head,
            "positions": h.heavy.tolist(),
            "scores": [float(f"{s:.3g}") for s in h.scores],
        }
        for h in report.heads
    ]


def _table_rows(report: MemoryReport) -> list[dict[str, Any]]:
    """One row per head of the page's table."""
    return [
        {"layer": h.layer, "head": h.head, "heavy": len(h.heavy), "top": top_texts(report, h, 6)} for h in report.heads
    ]


def render_html(report: MemoryReport, facts: Sequence[tuple[str, str]] = (), notes: Sequence[range] = ()) -> str:
    """The page. `facts` are (name, value) lines for its head, `notes` are positions to draw a frame around."""
    environment = Environment(
        loader=PackageLoader("h2o_llama.report"), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    return environment.get_template("report.html.j2").render(
        report=report,
        facts=facts,
        runs=list(_runs(report, notes)),
        rows=_table_rows(report),
        script_data=_script_data(report),
        n_shades=SHADES,
        visible=visible,
    )


def check_target(path: Path) -> None:
    """Raise OSError if a page cannot be written there: better before a long computation than after it."""
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not path.parent.is_dir():
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path.parent))
    if not os.access(path.parent, os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path.parent))


def write_html(
    path: Path, report: MemoryReport, facts: Sequence[tuple[str, str]] = (), notes: Sequence[range] = ()
) -> None:
    """Writes the page beside `path`, then renames it, so that a half page never replaces a whole one."""
    temporary = path.with_name(path.name + ".tmp")
    temporary.write_text(render_html(report, facts, notes), encoding="utf-8")
    os.replace(temporary, path)
