"""`python benchmarks/gate.py`: does what eviction, cold store and codec promise hold, on this model and text?"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from acceptance.bounds import BOUNDS
from acceptance.figures import Figure, Gate
from acceptance.memory import FIRST
from h2o_llama._cli.options import Options
from h2o_llama._cli.prompt import open_model, progress_bars, read_text
from h2o_llama._internal.machine import describe
from h2o_llama.eval._subject import default_text
from tables import Table

app = typer.Typer(pretty_exceptions_enable=False)


@app.command()
def gate(
    model: Annotated[str, typer.Argument(help="A GGUF file, or a name.")] = "smollm2-135m",
    text: Annotated[Path | None, typer.Option("--file", "-f", help="A text; or Python's sources.")] = None,
    long: Annotated[
        int, typer.Option(min=FIRST, help="Tokens that the packaged model reads for the memory of a process.")
    ] = 4 * FIRST,
    json_file: Annotated[
        Path | None,
        typer.Option("--json", help="Write all figures to this file."),
    ] = None,
    threads: Annotated[int | None, typer.Option("--threads", "-t", min=1)] = None,
) -> None:
    """Measure eviction to a ratio, the cold store and the lossless codec, and compare each figure with its bound.

    Prompts are parts of the text of 1,100 to 7,500 tokens, and turns of a conversation made of it. The exit code is 1
    if a bound does not hold. It takes some minutes.
    """
    machine = describe()
    content = default_text() if text is None else read_text(text).encode()
    figures = []
    with open_model(Options(model=model), "own") as weights, progress_bars(auto_refresh=False) as update:
        name, desc = Path(weights.model_path).name, weights.desc
        for figure in Gate(weights, content, threads, long).figures():
            figures.append(figure)
            update("Figures", len(figures), len(figures) + 1)
    failed = [figure for figure in figures if not BOUNDS[figure[0]].holds(figure[2])]
    rows = [
        {"name": key, "case": case, "value": value, "limit": BOUNDS[key].limit, "holds": BOUNDS[key].holds(value)}
        for key, case, value in figures
    ]
    source = "Python's sources" if text is None else text.name
    report = {"machine": machine, "model": {"file": name, "desc": desc}, "text": source, "figures": rows}
    facts = f"{machine['cpu']}, {machine['date']:.10}. {desc} ({name}), {source}."
    print(f"{facts}\n\n{_table(figures, len(failed)).markdown()}")
    if json_file is not None:
        json_file.write_text(json.dumps(report, indent=1) + "\n")
    if failed:
        raise typer.Exit(1)


def _table(figures: list[Figure], n_failed: int) -> Table:
    lines = []
    for key, case, value in figures:
        bound = BOUNDS[key]
        lines.append([bound.title, case, bound.format.format(value), bound.text, "yes" if bound.holds(value) else "NO"])
    note = f"{n_failed} of {len(figures)} do not hold." if n_failed else f"All {len(figures)} hold."
    return Table("Figure", ["case", "measured", "bound", "holds"], lines, note)


if __name__ == "__main__":
    app()
