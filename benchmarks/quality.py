"""What sparse attention loses on the demo model: measures it and writes the report docs/quality.md.

    python benchmarks/quality.py                               # everything, about 25 minutes on two cores
    python benchmarks/quality.py --report-only                 # the report again, from docs/quality.json
    python benchmarks/quality.py /tmp/quality --quick          # a few windows: to see that it works

Finished measurements stay in quality.json: what was cut off goes on, and what is in the file is not measured again.
Remove the file after a change to the core. Needs matplotlib: pip install "h2o-llama[bench]".
"""

from __future__ import annotations

import sys
import time
import warnings
from pathlib import Path
from typing import Annotated

import typer

import machine
from h2o_llama import demo_model_path
from h2o_llama.cli.progress import progress_bars
from h2o_llama.eval import evaluate
from h2o_llama.eval.rows import append_rows, find_row, read_rows
from quality_plan import CHUNK_SIZE, FULL, QUICK, Effort, steps
from quality_report import write_report
from quality_tasks import tail_time
from random_model import ModelSpec, model_file

DOCS = Path(__file__).parents[1] / "docs"
TIMED_TOKENS = 16384


def main(
    folder: Annotated[Path, typer.Argument(help="Where quality.json and the report are.", file_okay=False)] = DOCS,
    report_only: Annotated[bool, typer.Option("--report-only", help="Measure nothing.")] = False,
    quick: Annotated[bool, typer.Option("--quick", help="Measure a little of everything.")] = False,
    threads: Annotated[int | None, typer.Option(min=1, help="Threads; by default one for each CPU.")] = None,
) -> None:
    """Measure what sparse attention loses on the demo model, and write the report."""
    if quick and folder == DOCS:
        raise typer.BadParameter("its figures are not for docs/: name another folder", param_hint="--quick")
    folder.mkdir(parents=True, exist_ok=True)
    json_file = folder / "quality.json"
    if not report_only:
        measure(json_file, QUICK if quick else FULL, threads or machine.n_cores())
    try:
        for path in write_report(read_rows(json_file), folder):
            print(path)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


def measure(json_file: Path, effort: Effort, n_threads: int) -> None:
    """Add the rows that the file lacks."""
    warnings.filterwarnings("ignore", r"\[Llama\] memory_size", UserWarning)  # M = S is measured too
    for model in (demo_model_path(), model_file(ModelSpec())):
        identity = {"task": "tail time", "model": model.name, "n_tokens": TIMED_TOKENS, "prefills": effort.prefills}
        if find_row(read_rows(json_file), identity) is None:
            print(f"dense tail's time, {model.name}", file=sys.stderr)
            append_rows(json_file, [identity | tail_time(model, TIMED_TOKENS, effort.prefills, n_threads)])
    for step in steps(effort, n_threads):
        start = time.monotonic()
        with progress_bars() as update:
            evaluate(
                demo_model_path(),
                step.settings,
                text=step.text,
                n_tokens=[step.n_tokens],
                tasks=step.tasks,
                chunk_size=CHUNK_SIZE,
                n_threads=n_threads,
                json_file=json_file,
                progress=update,
            )
        print(f"{step.title}, {step.n_tokens:,} tokens: {time.monotonic() - start:.0f} s", file=sys.stderr)


if __name__ == "__main__":
    typer.run(main)
