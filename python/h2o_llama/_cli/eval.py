"""`h2o-llama eval`: what sparse attention costs on a model and a text."""

from pathlib import Path
from typing import Annotated, Literal

from rich.console import Console

from h2o_llama._cli import sweeps
from h2o_llama._cli.options import Options, check_word, option
from h2o_llama._cli.prompt import open_model, progress_bars, read_text
from h2o_llama._cli.sweeps import chunk_size_of, values
from h2o_llama._internal.terminal import plain
from h2o_llama.eval import Continuation, Perplexity, Ruler, evaluate, window
from h2o_llama.eval._ruler_task import KINDS
from h2o_llama.eval._subject import halves
from h2o_llama.eval._tables import tables
from h2o_llama.eval._tasks import Task
from h2o_llama.sequence.generating import DENSE_TAIL


def eval_model(
    o: Options,
    n_tokens: Annotated[str, option("Lengths N, such as 2048,8192; by default four chunks.")] = "",
    json_file: Annotated[
        Path | None, option("Add rows to this file, and measure only those it lacks.", "--json")
    ] = None,
    beside_window: Annotated[bool, option("Measure a window of the first setting's size, too.", "--window")] = False,
    half: Annotated[
        Literal["both", "first", "second"],
        option("Of the text: settings are chosen on the first, judged on the second."),
    ] = "both",
    windows: Annotated[int, option("Pieces at most, evenly from the whole text.", min=1)] = 4,
    continuation: Annotated[int, option("Tokens after the prompt; 0: leave it out.", min=0)] = 256,
    ruler: Annotated[bool, option("Measure its eleven tasks that need no data set instead.", "--ruler")] = False,
    ruler_task: Annotated[str, option(f"Some of them only: {', '.join(KINDS)}.")] = "",
    samples: Annotated[int, option("Prompts for each task and length.", min=1)] = 5,
    dense_tail: Annotated[int, option("Last tokens of a prompt that attend to everything kept.", min=0)] = DENSE_TAIL,
    seed: Annotated[int, option("Of everything that is drawn.", min=0)] = 0,
) -> None:
    """Find out whether a model keeps its quality with H2O.

    Measures are perplexity, KL divergence and the loss of text after a prompt, or the benchmark RULER. Every setting is
    compared with dense attention on the same tokens: of --file, or of Python's sources. Options of H2O take
    several values, with commas: all combinations are measured.
    """
    settings = sweeps.settings(o)
    chunk, tasks = chunk_size_of(settings), list[Task]()
    if ruler or ruler_task:
        kinds = values("--ruler-task", ruler_task, str) or list(KINDS)
        for kind in kinds:
            check_word("--ruler-task", kind, KINDS)
        tasks += [Ruler(kind, samples, dense_tail) for kind in kinds]
    else:
        tasks.append(Perplexity(windows))
        if continuation > 0:
            tasks.append(Continuation(continuation, windows))

    with open_model(o, "own") as weights, progress_bars() as update:
        rows = evaluate(
            weights,
            list(dict.fromkeys([*settings, *([window(settings[0], chunk)] if beside_window else [])])),
            text=None if o.file is None else halves(read_text(o.file).encode())[half],
            text_name=None if o.file is None else str(o.file) + ("" if half == "both" else f", {half} half"),
            n_tokens=values("--n-tokens", n_tokens, int) or [4 * chunk],
            tasks=tasks,
            chunk_size=chunk,
            n_threads=o.threads,
            n_gpu_layers=o.gpu_layers,
            seed=seed,
            json_file=json_file,
            progress=update,
        )
    console = Console()
    for table in tables(rows):
        console.print(plain(table) if isinstance(table, str) else table)
