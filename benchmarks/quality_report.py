"""Tables of what was measured, for docs/quality.md."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import quality_plan as plan
from h2o_llama.bench.tables import Table
from h2o_llama.eval import Setting
from h2o_llama.eval.ruler import ruler_mean
from h2o_llama.eval.task import Row
from h2o_llama.models._named import NAMED_FILES, NamedModel
from quality_plan import Effort
from quality_rows import Loss, Mean, Rows

NOTHING = "–"
_LOSS_COLUMNS = ("loss over dense", "KL", "same top", "loss, first chunk", "KL, first chunk", "windows")


def tables(rows: Rows, effort: Effort) -> str:
    """Every table, in Markdown, of which a line was measured. Raises ValueError if nothing was."""
    m = rows.machine
    default = plan.compared()["default"]
    found = {
        f"Over dense attention, {default.name}": _first(rows, effort),
        **dict(_by_text(rows, effort)),
        f"RULER, {effort.samples} prompts for each task": _ruler(rows, effort),
        "RULER, each task at the longest N: dense, default": _ruler_tasks(rows, effort),
        "Other ways to choose": _settings(rows, "others", effort, plan.others()),
        "How much memory": _sizes(rows, effort),
        "Sizes of chunks": _chunks(rows, effort),
    }
    said = f"Measured on {m['date'][:10]}, h2o-llama {m['h2o_llama']}, {m['cpu']}, {m['cores']} CPUs."
    return "\n\n".join([said, *(f"## {title}\n\n{table}" for title, table in found.items() if table)]) + "\n"


def _type(name: str) -> str:
    """What the weights are that were measured."""
    model = NAMED_FILES[name]
    assert isinstance(model, NamedModel)
    return f"{model.type} of a {model.file_type} file" if model.type else model.file_type


def markdown(columns: Sequence[str], lines: Sequence[Sequence[str] | None]) -> str:
    """A table, numbers to the right, or nothing without lines. A line is None where nothing was measured."""
    measured = [line for line in lines if line]
    return Table(columns[0], columns[1:], measured, "").markdown() if measured else ""


def _nats(mean: Mean) -> str:
    """With a sign, and its error."""
    return f"{mean.value:+.4f}{_error(mean)}".replace("-", "−")


def _plain(mean: Mean) -> str:
    return f"{mean.value:.4f}{_error(mean)}"


def _error(mean: Mean) -> str:
    return "" if mean.error is None else f" ± {mean.error:.4f}"


def _line(names: Sequence[str], loss: Loss | None) -> list[str] | None:
    """Names, then the cells of `_LOSS_COLUMNS`."""
    if loss is None:
        return None
    shares = f"{loss.same_top.value:.1%}"
    first = _nats(loss.first_nats), _plain(loss.first_kl)
    return [*names, _nats(loss.nats), _plain(loss.kl), shares, *first, str(loss.windows)]


def _first(rows: Rows, effort: Effort) -> str:
    """A line for each model and N: loss and KL of every text, RULER, speed."""
    default = plan.compared()["default"]
    columns = [
        "model",
        "N",
        *(f"{text}: loss, KL" for text in plan.TEXTS),
        "rounding: KL",
        "RULER",
        "prompt",
        "generation",
    ]
    lines = []
    for model in effort.models:
        for n in effort.lengths_of(model):
            found = [rows.loss(f"{model} {text}", n, default) for text in plan.TEXTS]
            first = [loss.first_kl.value for loss in found if loss]
            losses = [f"{_nats(loss.nats)}, {loss.kl.value:.4f}" if loss else NOTHING for loss in found]
            rounding = f"{sum(first) / len(first):.4f}" if first else NOTHING
            tasks = rows.ruler(f"{model} ruler", _ruler_length(effort, n), default, plan.DENSE_TAILS[0])
            cells = [*losses, rounding, _over(tasks), *_speed(rows, model, n)]
            lines.append([f"{model}, {_type(model)}", f"{n:,}", *cells] if {*cells} != {NOTHING} else None)
    return markdown(columns, lines)


def _ruler_length(effort: Effort, n: int) -> int:
    """RULER's length that is nearest to another."""
    return min(effort.ruler_lengths, key=lambda length: abs(length - n))


def _over(tasks: dict[str, Row]) -> str:
    return ruler_mean(list(tasks.values())).over_dense_text() if tasks else NOTHING


def _speed(rows: Rows, model: str, n: int) -> list[str]:
    """Over dense attention."""
    found = {row["test"]: row["over_dense"] for row in rows.speed(model, n) if row["mode"] == "default"}
    return [f"{found[test]:.2f}×" if test in found else NOTHING for test in ("prefill", "generation")]


def _by_text(rows: Rows, effort: Effort) -> Iterator[tuple[str, str]]:
    """For each text its name and a table: every model, N and setting."""
    for text in plan.TEXTS:
        lines = [
            _line([f"{model}, {_type(model)}", f"{n:,}", name], rows.loss(f"{model} {text}", n, setting))
            for model in effort.models
            for n in effort.lengths_of(model)
            for name, setting in plan.presets().items()
        ]
        yield text, markdown(["model", "N", "setting", *_LOSS_COLUMNS], lines)


def _ruler(rows: Rows, effort: Effort) -> str:
    """Means over the tasks, with a dense tail and without."""
    default = plan.compared()["default"]
    lines = []
    for model in effort.models:
        for n in effort.ruler_lengths_of(model):
            found = [rows.ruler(f"{model} ruler", n, default, tail) for tail in plan.DENSE_TAILS]
            if all(found):
                means = [ruler_mean(list(tasks.values())) for tasks in found]
                cells = [cell for mean in means for cell in (f"{100 * mean.score:.1f}", mean.over_dense_text())]
                tasks = str(len(found[0]))
                lines.append([f"{model}, {_type(model)}", f"{n:,}", tasks, f"{100 * means[0].dense:.1f}", *cells])
    with_tail, without = (f"dense tail {tail}" if tail else "no dense tail" for tail in plan.DENSE_TAILS)
    return markdown(["model", "N", "tasks", "dense", with_tail, "over dense", without, "over dense"], lines)


def _ruler_tasks(rows: Rows, effort: Effort) -> str:
    """Every task of every model at the longest N that was measured: dense attention and the default."""
    default, tail = plan.compared()["default"], plan.DENSE_TAILS[0]
    found = {}
    for model in effort.models:
        for n in effort.ruler_lengths_of(model):
            if tasks := rows.ruler(f"{model} ruler", n, default, tail):
                found[model] = n, tasks
    lines = []
    for kind in effort.ruler_kinds:
        of_kind = [tasks.get(kind) for _, tasks in found.values()]
        cells = [f"{100 * row['score_dense']:.0f}, {100 * row['score']:.0f}" if row else NOTHING for row in of_kind]
        lines.append([f"`{kind}`", *cells] if any(of_kind) else None)
    return markdown(["dense, default", *(f"{model}, {n:,}" for model, (n, _) in found.items())], lines)


def _settings(rows: Rows, step: str, effort: Effort, settings: dict[str, Setting]) -> str:
    n = effort.lengths[0]
    lines = [_line([name, f"`{s.name}`"], rows.loss(step, n, s)) for name, s in settings.items()]
    return markdown([f"N {n:,}", "setting", *_LOSS_COLUMNS], lines)


def _sizes(rows: Rows, effort: Effort) -> str:
    named = {f"{name}, M + B {size}": s for size in plan.SIZES for name, s in plan.compared(size).items()}
    return _settings(rows, "sizes", effort, named)


def _chunks(rows: Rows, effort: Effort) -> str:
    """The default with chunks of other sizes."""
    n, default = effort.lengths[0], plan.compared()["default"]
    steps = {size: f"chunks of {size}" for size in plan.OTHER_CHUNK_SIZES if 2 * size <= n} | {
        plan.CHUNK_SIZE: "others"
    }
    lines = [_line([f"{size:,}"], rows.loss(step, n, default)) for size, step in sorted(steps.items())]
    return markdown([f"S, N {n:,}", *_LOSS_COLUMNS], lines)
