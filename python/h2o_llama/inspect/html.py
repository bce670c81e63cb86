"""A memory report as one self-contained HTML page: nothing is loaded from anywhere."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from dataclasses import astuple
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined

from h2o_llama._internal.atomic import replacing
from h2o_llama.inspect.captured import mean_over_heads
from h2o_llama.inspect.document import runs
from h2o_llama.inspect.history import stays
from h2o_llama.inspect.maps import history_maps, lookup_map, mass_maps
from h2o_llama.inspect.membership import Membership, membership
from h2o_llama.inspect.memory import SHADES, MemoryReport, top_texts
from h2o_llama.inspect.pieces import visible
from h2o_llama.inspect.snippets import snippet

_MOST_READ = 8

# Position, share of the tiles, and the text before, there and after.
ExtraRows = dict[str, list[tuple[str, ...]]]


def _script_data(report: MemoryReport, picture: Membership | None, extra: ExtraRows) -> dict[str, Any]:
    """What the page's script needs of every head. Scores keep three digits."""
    heads: list[dict[str, Any]] = [
        {
            "layer": h.layer,
            "head": h.head,
            "positions": h.heavy.tolist(),
            "scores": [float(f"{s:.3g}") for s in h.scores],
        }
        for h in report.heads
    ]
    if report.history is not None and report.history.n_sets > 0:
        for row, h in enumerate(report.heads):
            stay = stays(report.history, row)
            heads[row]["since"] = stay.first[np.searchsorted(stay.positions, h.heavy)].tolist()
    return {
        "heads": heads,
        "membership": None if picture is None else picture.data,
        "extra": extra,
        "shades": SHADES,
    }


def _extra_rows(report: MemoryReport) -> ExtraRows:
    """What most tiles read, by what the page's lists choose, "LAYER HEAD"; empty if there is nothing."""
    if report.extra is None or not report.extra.counts.any():
        return {}
    layers, heads = ({getattr(h, name) for h in report.heads} for name in ("layer", "head"))
    rows: ExtraRows = {}
    for layer in (None, *layers):
        for head in (None, *heads):
            members = [i for i, h in enumerate(report.heads) if layer in (None, h.layer) and head in (None, h.head)]
            places = report.extra.most_read(members, _MOST_READ) if members else []
            rows[" ".join("" if x is None else str(x) for x in (layer, head))] = [
                (
                    f"{position:,}",
                    f"{100 * share:.0f} %",
                    *astuple(snippet(report, range(position, position + 1), 50, 40)),
                )
                for position, share in places
            ]
    return rows


def _table_rows(report: MemoryReport) -> list[dict[str, Any]]:
    """One row per head of the page's table."""
    return [
        {"layer": h.layer, "head": h.head, "heavy": len(h.heavy), "top": top_texts(report, h, 6)} for h in report.heads
    ]


def render_html(report: MemoryReport, facts: Sequence[tuple[str, str]] = (), notes: Sequence[range] = ()) -> str:
    """The page. `facts` are (name, value) lines for its head, `notes` are positions to draw a frame around.

    It shows how the memory sets changed if the report has a history, the mass that they held if it has that, and which
    distant tokens were read besides if any were.
    """
    history, captured = report.history, report.captured
    if history is not None and history.heavy.size == 0:
        history = None
    picture = None if history is None else membership(history)
    extra = _extra_rows(report)
    environment = Environment(
        loader=PackageLoader("h2o_llama.inspect"), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    return environment.get_template("report.html.j2").render(
        report=report,
        facts=facts,
        runs=list(runs(report, notes)),
        rows=_table_rows(report),
        script_data=_script_data(report, picture, extra),
        membership=picture,
        extra=extra,
        lookup_maps=[] if report.lookup_attention is None else [lookup_map(report.lookup_attention)],
        maps=[] if history is None else history_maps(history),
        mass_maps=mass_maps(captured) if captured is not None and len(captured.captured) else [],
        mass_by_chunk=[] if captured is None else mean_over_heads(captured),
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
    """Writes the page. A half one never replaces a whole one."""
    page = render_html(report, facts, notes)
    with replacing(path) as file:
        file.write(page.encode())
