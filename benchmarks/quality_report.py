"""The quality report: tables and pictures of what was measured, in the text of quality.md.j2."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

import quality_tables as tables
from h2o_llama import H2OConfig, demo_model_path
from h2o_llama.eval import Setting
from h2o_llama.eval.task import Row
from h2o_llama.llama import DENSE_TAIL
from quality_goals import goals
from quality_plan import CHUNK_SIZE, GOAL_TEXT, KINDS, SCHEDULES, SHORT, default
from quality_plots import draw
from quality_rows import Rows
from random_model import ModelSpec


def write_report(measured: Sequence[Row], folder: Path) -> list[Path]:
    """Write quality.md and its pictures into a folder.

    Raises ValueError if something was not measured.
    """
    rows = Rows(measured)
    times = [rows.find("tail time", model=name) for name in (demo_model_path().name, ModelSpec().name)]
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent), undefined=StrictUndefined, keep_trailing_newline=True
    )
    h2o = H2OConfig()
    text = environment.get_template("quality.md.j2").render(
        machine=times[0]["machine"],
        lengths=rows.lengths,
        windows=[rows.text(Setting.of(default()), n)["windows"] for n in rows.lengths],
        goal_windows=rows.find(GOAL_TEXT)["windows"],
        samples=_samples(rows),
        h2o=h2o,
        default=tables.choice(Setting.of(h2o)),
        chunk_size=CHUNK_SIZE,
        dense_tail=DENSE_TAIL,
        goals=goals(rows, times),
        smallest=tables.smallest(rows),
        choices={schedule: tables.choices(rows, schedule) for schedule in SCHEDULES},
        sizes_text=tables.sizes(partial(tables.loss, rows)),
        sizes_recall=tables.sizes(partial(tables.found, rows)),
        lengths_table=tables.lengths(rows),
        after=tables.after(rows),
        continuation=tables.continuation(rows),
        tails=tables.tails(rows),
        times=times,
        tail_times=tables.tail_times(times),
        chunk_starts=tables.chunk_starts(rows),
        chance=tables.percent(8 / CHUNK_SIZE),
        tail_share_of_attention=tables.percent(DENSE_TAIL / (times[0]["chunk_size"] / 2 + h2o.memory_size)),
    )
    report = folder / "quality.md"
    report.write_text(text, encoding="utf-8")
    return [report, *draw(rows, folder)]


def _samples(rows: Rows) -> int:
    row = rows.find("recall", Setting.of(default()), n_tokens=SHORT, kind=KINDS[0], dense_tail=0)
    return int(row["samples"])
