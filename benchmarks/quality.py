"""What sparse attention loses: measures it and writes the report docs/quality.md.

    h2o-llama pull smollm2-135m && h2o-llama pull django-docs
    python benchmarks/quality.py                               # everything, about an hour on two cores
    python benchmarks/quality.py --report-only                 # the report again, from what was measured
    python benchmarks/quality.py --quick                       # a little of everything: to see that it works

Rows are kept in build/quality, a file for each step: what was cut off goes on, and what is there is not measured again.
Remove the folder after a change to the core. With --quick the rows and the report are in build/quality-quick. Needs
matplotlib: pip install "h2o-llama[bench]".
"""

from __future__ import annotations

import json
import sys
import time
import warnings
from pathlib import Path
from typing import Annotated

import typer

from h2o_llama.cli.progress import progress_bars
from h2o_llama.eval import evaluate
from h2o_llama.machine import describe
from h2o_llama.params import available_cpus
from quality_plan import FULL, QUICK, Effort, steps
from quality_report import write_report
from quality_rows import Rows, rows_file

ROOT = Path(__file__).parents[1]


def main(
    folder: Annotated[Path | None, typer.Argument(help="Where rows are kept.", file_okay=False)] = None,
    report_only: Annotated[bool, typer.Option("--report-only", help="Measure nothing.")] = False,
    quick: Annotated[bool, typer.Option("--quick", help="Measure a little, and write the report there.")] = False,
    threads: Annotated[int | None, typer.Option(min=1, help="Threads; by default one for each CPU.")] = None,
) -> None:
    """Measure what sparse attention loses, and write the report."""
    folder = folder or ROOT / "build" / ("quality-quick" if quick else "quality")
    effort = QUICK if quick else FULL
    try:
        if not report_only:
            folder.mkdir(parents=True, exist_ok=True)
            measure(folder, effort, threads or available_cpus())
        for path in write_report(Rows(folder), effort, folder if quick else ROOT / "docs"):
            print(path)
    except (ValueError, FileNotFoundError) as error:
        raise typer.BadParameter(str(error)) from None


def measure(folder: Path, effort: Effort, n_threads: int) -> None:
    """Add the rows that the folder lacks."""
    warnings.filterwarnings("ignore", r"\[Llama\] memory_size", UserWarning)  # a window of a whole chunk is measured
    (folder / "machine.json").write_text(json.dumps(describe(), indent=1) + "\n")
    for step in steps(effort):
        start = time.monotonic()
        with progress_bars() as update:
            evaluate(
                step.model,
                step.settings,
                text=step.text,
                n_tokens=[step.n_tokens],
                tasks=[step.task],
                chunk_size=step.chunk_size,
                n_threads=n_threads,
                json_file=rows_file(folder, step.name, step.n_tokens),
                progress=update,
            )
        print(f"{step.name}, {step.n_tokens:,} tokens: {time.monotonic() - start:.0f} s", file=sys.stderr)


if __name__ == "__main__":
    typer.run(main)
