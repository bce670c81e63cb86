"""What `h2o-llama batch` saves, and what Ray's workers add: the tables of docs/batch.md.

    python benchmarks/batch.py smollm2-135m --text django.txt

Questions about a document together or each from nothing, and one process or several, of one thread each, take turns.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from h2o_llama._internal.machine import cpu_model
from h2o_llama.batch import Answerer, BatchSettings, Document, make_questions
from h2o_llama.batch.local_workers import local_cluster
from h2o_llama.sequence._params import available_cpus
from settings import parts_of

QUESTIONS = make_questions(
    [
        "What is this text about? Answer in one sentence.",
        "Which of its details is surprising?",
        "Who is it written for?",
        "Which names of functions or files are in it?",
    ]
)


def main(
    model: Annotated[str, typer.Argument(help="A GGUF model.")],
    text: Annotated[Path, typer.Option(help="A long text.", exists=True)],
    n_tokens: Annotated[int, typer.Option(help="Tokens of a document.")] = 4_000,
    documents: Annotated[int, typer.Option(help="Documents of a job on Ray; two of them are read without.")] = 8,
    max_tokens: Annotated[int, typer.Option(help="Tokens of an answer at most.")] = 32,
    repetitions: Annotated[int, typer.Option(help="Runs, of which the medians count.")] = 3,
    workers: Annotated[int, typer.Option(help="Processes of one thread; 0: leave Ray out.")] = available_cpus(),
) -> None:
    """Print Markdown tables."""
    settings = BatchSettings(max_tokens=max_tokens)
    texts = parts_of(model, text, n_tokens, max(2, documents))
    parts = [Document.of_text(f"{i}.txt", part) for i, part in enumerate(texts)]
    print(f"{cpu_model()}, {available_cpus()} CPUs, load before it {os.getloadavg()[0]:.1f}\n")

    with Answerer(model, settings) as answerer:

        def together() -> None:
            for part in parts[:2]:
                assert len(list(answerer.answer(part, QUESTIONS))) == len(QUESTIONS)

        def alone() -> None:
            for part in parts[:2]:
                for question in QUESTIONS:
                    assert len(list(answerer.answer(part, [question]))) == 1

        compare(f"2 documents, {len(QUESTIONS)} questions", alone, together, repetitions)
    if workers == 0:
        return

    with tempfile.TemporaryDirectory() as folder, local_cluster(workers):
        from h2o_llama.batch.ray import answer_documents  # an extra; not before local_cluster

        files = {part.name: Path(folder, part.name) for part in parts}
        for part in parts:
            files[part.name].write_text(part.text, encoding="utf-8")

        def one_process() -> None:
            with Answerer(model, settings, n_threads=1) as answerer:
                answers = [a for name, path in files.items() for a in answerer.answer_file(name, path, QUESTIONS)]
            assert len(answers) == len(files) * len(QUESTIONS)

        def on_ray() -> None:
            answers = answer_documents(files, QUESTIONS, model=model, workers=workers, settings=settings)
            assert len(answers.take_all()) == len(files) * len(QUESTIONS)

        compare(f"{documents} documents, {workers} workers of one thread", one_process, on_ray, repetitions)


def compare(title: str, before: Callable[[], None], after: Callable[[], None], repetitions: int) -> None:
    """Print the seconds of two functions, which take turns, and how many times faster the second one is."""
    runs = {run.__name__.replace("_", " "): run for run in (before, after)}
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    loads: dict[str, list[float]] = {name: [] for name in runs}
    print(f"| {title} | s, each | s, median | load |\n|---|--:|--:|--:|", flush=True)
    for _ in range(repetitions):
        for name, run in runs.items():
            start = time.perf_counter()
            run()
            seconds[name].append(time.perf_counter() - start)
            loads[name].append(os.getloadavg()[0])
    for name, times in seconds.items():
        each = ", ".join(f"{t:.1f}" for t in times)
        print(f"| {name} | {each} | {statistics.median(times):.1f} | {statistics.median(loads[name]):.1f} |")
    ratios = [a / b for a, b in zip(*seconds.values(), strict=True)]
    print(f"\n{statistics.median(ratios):.2f} times as fast\n", flush=True)


if __name__ == "__main__":
    typer.run(main)
