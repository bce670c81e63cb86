"""`h2o-llama bench`: how fast a model reads and generates, dense and with H2O, and in how much memory."""

import json
import sys
from pathlib import Path
from typing import Annotated

from rich.console import Console

from h2o_llama._bench import DENSE, NOTE, Bench, Mode, tables, verdict
from h2o_llama._cli import sweeps
from h2o_llama._cli.options import Options, option
from h2o_llama._cli.prompt import progress_bars, read_text
from h2o_llama._cli.sweeps import chunk_size_of, values
from h2o_llama._internal import terminal
from h2o_llama._internal.atomic import check_target
from h2o_llama._internal.machine import describe

_STDOUT = Path("-")


def bench(
    o: Options,
    n_prompt: Annotated[str, option("Prompt lengths N to read.")] = "1024,4096,8192",
    n_gen: Annotated[int, option("Tokens to generate after a prompt.", min=1)] = 32,
    depth: Annotated[str, option("Prompt lengths to generate after.")] = "4096,8192",
    repetitions: Annotated[int, option("Samples of each figure.", "--repetitions", "-r", min=1)] = 3,
    dense_max: Annotated[
        int | None, option("Leave dense attention out of longer prompts; 0: measure H2O only.", min=0)
    ] = None,
    json_file: Annotated[
        Path | None, option("Write all figures to this file; -: to standard output, not tables.", "--json")
    ] = None,
) -> None:
    """Measure speed and memory, dense and with H2O.

    Dense attention is measured twice: as llama.cpp computes it, and with our own kernels for weights, as H2O has
    them. So the table separates attention from the rest.

    All modes read the same tokens, of --file or of Python's sources, in turns, each in a process of its own; figures
    are medians. A prefill of more than 20 seconds is measured once. Options of H2O take several values, with commas:
    all combinations are measured. After Ctrl-C the figures so far are printed.
    """
    settings = sweeps.settings(o, decode="full,memory")
    if json_file not in (None, _STDOUT):
        check_target(json_file)
    machine = describe()
    measured = Bench(
        o.model,
        [*DENSE, *(Mode(setting.name, setting.h2o) for setting in settings)],
        values("--n-prompt", n_prompt, int),
        values("--depth", depth, int),
        n_gen=n_gen,
        repetitions=repetitions,
        dense_max=dense_max,
        chunk_size=chunk_size_of(settings),
        n_threads=o.threads,
        n_gpu_layers=o.gpu_layers or 0,
        text=None if o.file is None else read_text(o.file).encode(),
        changes=o.changes,
    )
    try:
        with progress_bars(auto_refresh=False) as update:
            measured.run(update, lambda line: None if sys.stderr.isatty() else terminal.echo(line, err=True))
    finally:  # figures before Ctrl-C or an error count too
        if rows := measured.rows():
            facts, said = measured.facts(machine), verdict(rows) + measured.doubt
            content = json.dumps({"machine": machine, "facts": facts, "rows": rows, "verdict": said}, indent=1) + "\n"
            if json_file == _STDOUT:
                terminal.write(content)
            else:
                console = Console()
                console.print(terminal.plain(facts), *tables(rows), NOTE, terminal.plain(said), sep="\n\n")
                if json_file is not None:
                    json_file.write_text(content, encoding="utf-8")
                    terminal.echo(f"Written: {json_file}")
