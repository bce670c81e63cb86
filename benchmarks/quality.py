"""What sparse attention loses: measures it and prints the tables of docs/quality.md.

    for name in smollm2-135m gemma3-270m qwen2.5-coder-0.5b qwen2.5-coder-1.5b \\
                war-and-peace django-docs django-code english-words; do h2o-llama pull $name; done
    python benchmarks/quality.py                               # everything, days on two cores
    python benchmarks/quality.py --only qwen2.5-coder-0.5b     # what begins so
    python benchmarks/quality.py --report-only                 # the tables of what was measured so far
    python benchmarks/quality.py --quick                       # a little of everything: to see that it works

Rows are kept in build/quality, a file for each step: what was cut off goes on, window by window and task by task, and
what is there is not measured again. Remove the folder after a change to the core. With --quick the rows are in
build/quality-quick.
"""

from __future__ import annotations

import json
import sys
import time
import warnings
from contextlib import closing
from pathlib import Path
from typing import Annotated

import typer

from h2o_llama._internal.atomic import replacing
from h2o_llama._internal.machine import describe
from h2o_llama.bench import Bench, Plan
from h2o_llama.bench.case import Mode
from h2o_llama.cli.progress import progress_bars
from h2o_llama.eval import evaluate
from h2o_llama.models._named import find_model
from h2o_llama.sequence._params import available_cpus
from quality_plan import FULL, QUICK, TEXTS, Effort, Step, compared, half, steps
from quality_report import tables
from quality_rows import Rows, rows_file

ROOT = Path(__file__).parents[1]


def main(
    folder: Annotated[Path | None, typer.Argument(help="Where rows are kept.", file_okay=False)] = None,
    only: Annotated[str, typer.Option(help="Steps whose names begin so.")] = "",
    report_only: Annotated[bool, typer.Option("--report-only", help="Measure nothing.")] = False,
    quick: Annotated[bool, typer.Option("--quick", help="Measure a little.")] = False,
    threads: Annotated[int | None, typer.Option(min=1, help="Threads; by default one for each CPU.")] = None,
) -> None:
    """Measure what sparse attention loses, and print tables of what was measured."""
    folder = folder or ROOT / "build" / ("quality-quick" if quick else "quality")
    effort = QUICK if quick else FULL
    try:
        if not report_only:
            folder.mkdir(parents=True, exist_ok=True)
            measure(folder, effort, threads or available_cpus(), only)
        print(tables(Rows(folder), effort), end="")
    except (ValueError, FileNotFoundError) as error:
        raise typer.BadParameter(str(error)) from None


def measure(folder: Path, effort: Effort, n_threads: int, only: str) -> None:
    """Add the rows that the folder lacks."""
    warnings.filterwarnings("ignore", r"\[Llama\] memory_size", UserWarning)  # a window of a whole chunk is measured
    (folder / "machine.json").write_text(json.dumps(describe(), indent=1) + "\n")
    for step in steps(effort):
        if step.name.startswith(only):
            start = time.monotonic()
            _evaluate(step, rows_file(folder, step.name, step.n_tokens), n_threads)
            print(f"{step.name}, {step.n_tokens:,} tokens: {time.monotonic() - start:.0f} s", file=sys.stderr)
    for model in effort.models:
        if f"{model} speed".startswith(only):
            for n in effort.lengths_of(model):
                _time(model, n, effort, rows_file(folder, f"{model} speed", n), n_threads)


def _evaluate(step: Step, path: Path, n_threads: int) -> None:
    text = None if step.text is None else half(step.text, step.half)
    name = None if step.text is None else f"{TEXTS[step.text]}, {('first', 'second')[step.half]} half"
    with progress_bars() as update:
        evaluate(
            step.model,
            step.settings,
            text=text,
            text_name=name,
            n_tokens=[step.n_tokens],
            tasks=step.tasks,
            chunk_size=step.chunk_size,
            n_threads=n_threads,
            json_file=path,
            progress=update,
        )


def _time(model: str, n_tokens: int, effort: Effort, path: Path, n_threads: int) -> None:
    """A prompt read and tokens generated after it, densely and by default."""
    if path.exists():
        return
    modes = [Mode("dense", "on", None), Mode("default", "auto", compared()["default"].h2o)]
    plan = Plan(modes, [n_tokens], [n_tokens], repetitions=effort.repetitions, n_threads=n_threads)
    with closing(Bench(find_model(model), plan)) as bench, progress_bars() as update:
        bench.run(update)
        with replacing(path) as file:
            file.write(json.dumps(bench.rows(), indent=1).encode())


if __name__ == "__main__":
    typer.run(main)
