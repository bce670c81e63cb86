"""The quality report: tables and a picture of what was measured, in the text of quality.md.j2."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import quality_plan as plan
from h2o_llama.bench.tables import Table
from h2o_llama.eval import Setting
from h2o_llama.llama import DENSE_TAIL
from h2o_llama.named_files import NAMED_FILES
from h2o_llama.plots.evaluation import sweep
from pages import environment, equal_files
from quality_plan import Effort
from quality_rows import Loss, Rows

_LOSS_COLUMNS = ("loss over dense", "KL", "same top")


def write_report(rows: Rows, effort: Effort, folder: Path) -> list[Path]:
    """Write quality.md and its picture into a folder.

    Raises ValueError if something was not measured.
    """
    templates = environment()
    templates.filters["nats"] = nats
    named = plan.compared(plan.SIZE, plan.CHUNK_SIZE)
    losses = {n: {name: rows.loss("kept back", n, s) for name, s in named.items()} for n in effort.lengths}
    text = templates.get_template("quality.md.j2").render(
        machine=rows.machine,
        plan=plan,
        effort=effort,
        model=NAMED_FILES[plan.MODEL],
        text=NAMED_FILES[plan.TEXT],
        dense_tail=DENSE_TAIL,
        losses=losses,
        english="\n\n".join(_compared(rows, "kept back", n, _with_index(named)) for n in effort.lengths[1:]),
        alternatives=_compared(
            rows, "kept back", effort.lengths[0], _with_index(plan.alternatives(plan.SIZE, plan.CHUNK_SIZE))
        ),
        chunks=_chunks(rows, effort, named["default"]),
        as_kept=_as_kept(rows, effort.lengths, named["default"]),
        texts=_texts(rows, effort.lengths[0]),
        sizes=_sizes(rows, effort.lengths[0]),
        scorers=_scorers(rows, effort.lengths[0]),
        within=_recall(rows, "within", effort.lengths[0], plan.KINDS, {"default": named["default"]}),
        after=_recall(rows, "after", effort.lengths[0], plan.KINDS, {"default": named["default"]}),
        bytes_text=_bytes(rows, effort),
        bytes_within=_byte_recall(rows, effort, "bytes within"),
        bytes_after=_byte_recall(rows, effort, "bytes after"),
    )
    report, picture = folder / "quality.md", folder / "quality-sizes.svg"
    report.write_text(text, encoding="utf-8")
    _draw(rows, effort.lengths[0], picture)
    return [report, picture]


def markdown(columns: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """A table, numbers to the right."""
    return Table(columns[0], columns[1:], list(lines), "").markdown()


def nats(loss: Loss) -> str:
    """With a sign, and its error."""
    return f"{loss.nats:+.4f} ± {loss.error:.4f}".replace("-", "−")


def _cells(loss: Loss) -> list[str]:
    """Those of `_LOSS_COLUMNS`."""
    return [nats(loss), f"{loss.kl:.4f}", f"{loss.same_top:.1%}"]


def _compared(rows: Rows, step: str, n_tokens: int, settings: dict[str, Setting]) -> str:
    lines = [[name, f"`{s.name}`", *_cells(rows.loss(step, n_tokens, s))] for name, s in settings.items()]
    return markdown([f"N {n_tokens:,}", "setting", *_LOSS_COLUMNS], lines)


def _with_index(settings: dict[str, Setting]) -> dict[str, Setting]:
    """The same, and the index of keys after the default."""
    return {"default": settings["default"], '`retrieval="index"`': plan.by_index()} | settings


def _chunks(rows: Rows, effort: Effort, default: Setting) -> str:
    """The default with chunks of other sizes."""
    n_tokens = effort.lengths[-1]
    others = {size: f"chunks of {size}" for size in plan.other_chunk_sizes(effort)}
    steps = others | {plan.CHUNK_SIZE: "kept back"}
    lines = [[f"{size:,}", *_cells(rows.loss(step, n_tokens, default))] for size, step in sorted(steps.items())]
    return markdown([f"S, N {n_tokens:,}", *_LOSS_COLUMNS], lines)


def _as_kept(rows: Rows, lengths: Sequence[int], default: Setting) -> str:
    """The model as users have it; KL where both attend alike is rounding."""
    lines = []
    for n in lengths:
        for name, setting in _with_index({"default": default}).items():
            first = rows.find("as kept", n, setting)["buckets"][0]["kld_mean"]
            lines.append([f"{n:,}", name, *_cells(rows.loss("as kept", n, setting)), f"{first:.4f}"])
    return markdown(["N", "setting", *_LOSS_COLUMNS, "KL in the first chunk"], lines)


def _texts(rows: Rows, n_tokens: int) -> str:
    """The default and a window on texts that were and were not tuned on."""
    default, window, _ = plan.compared(plan.SIZE, plan.CHUNK_SIZE).values()
    texts = {"tuned on": "English, tuned on", "kept back": "English, kept back", "code": "Python, kept back"}
    lines = []
    for step, name in texts.items():
        loss = rows.loss(step, n_tokens, default)
        lines.append([name, *_cells(loss), nats(rows.loss(step, n_tokens, window))])
    return markdown([f"N {n_tokens:,}", *_LOSS_COLUMNS, "window"], lines)


def _sizes(rows: Rows, n_tokens: int) -> str:
    lines = []
    for size, settings in plan.sizes().items():
        loss = rows.loss("kept back", n_tokens, settings["default"])
        window = rows.loss("kept back", n_tokens, settings["window"])
        lines.append([str(size), f"`{settings['default'].name}`", *_cells(loss), nats(window)])
    return markdown(["M + B", "setting", *_LOSS_COLUMNS, "window"], lines)


def _scorers(rows: Rows, n_tokens: int) -> str:
    lines = []
    for scorer, settings in plan.grid().items():
        losses = [rows.loss("scorers", n_tokens, s) for s in settings]
        lines.append([f"`{scorer}`", *(cell for loss in losses for cell in (nats(loss), f"{loss.kl:.4f}"))])
    return markdown(["scorer", "no lookup", "KL", "lookup", "KL"], lines)


def _recall(rows: Rows, step: str, n_tokens: int, kinds: Sequence[str], settings: dict[str, Setting]) -> str:
    """Recall by depth: a line for dense attention and each setting."""
    lines = []
    for kind in kinds:
        for i, (name, setting) in enumerate(settings.items()):
            cells = rows.cells(step, n_tokens, setting, kind)
            if i == 0:
                lines.append([f"`{kind}`, dense", *(f"{cell['recall_dense']:.2f}" for cell in cells)])
            lines.append([f"`{kind}`, {name}", *(f"{cell['recall']:.2f}" for cell in cells)])
    return markdown(["depth", *(f"{cell['depth']:.0%}" for cell in cells)], lines)


def _byte_recall(rows: Rows, effort: Effort, step: str) -> str:
    settings = plan.compared(plan.BYTE_SIZE, plan.BYTE_CHUNK_SIZE)
    shown = settings if step == "bytes within" else {"default": settings["default"]}
    return _recall(rows, step, plan.longest(effort), plan.BYTE_KINDS, shown)


def _bytes(rows: Rows, effort: Effort) -> str:
    """Every length: all settings at the first one, the compared ones at the others."""
    tables = []
    for i, n in enumerate(effort.byte_lengths):
        settings = plan.compared(plan.BYTE_SIZE, plan.BYTE_CHUNK_SIZE) if i else plan.byte_alternatives()
        tables.append(_compared(rows, "bytes", n, settings))
    return "\n\n".join(tables)


def _draw(rows: Rows, n_tokens: int, path: Path) -> None:
    """Loss against M + B; equal figures are equal files."""
    settings = [s for named in plan.sizes().values() for name, s in named.items() if name != "upper bound"]
    with equal_files("quality"):
        figure = sweep(n_tokens, [rows.find("kept back", n_tokens, s) for s in settings])
        figure.savefig(path, metadata={"Date": None})
