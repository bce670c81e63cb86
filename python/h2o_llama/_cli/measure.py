"""The commands that measure settings of H2O, `h2o-llama bench` and `eval`; and `options`, which lists settings."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer
from rich.console import Console
from rich.table import Table

from h2o_llama import H2OConfig, _bench
from h2o_llama._bench import DENSE, NOTE, Bench, Mode, verdict
from h2o_llama._cli.inputs import open_model, read_text
from h2o_llama._cli.options import KEYS, Options, check_word, default_config, key_values, option, value_of
from h2o_llama._cli.progress import progress_bars
from h2o_llama._core import H2OOption
from h2o_llama._internal import terminal
from h2o_llama._internal.atomic import check_target
from h2o_llama._internal.machine import describe
from h2o_llama.config import OPTIONS, PRESETS
from h2o_llama.eval import Setting, evaluate, sweep
from h2o_llama.eval._evaluate import Row
from h2o_llama.eval._tables import tables

T = TypeVar("T")


def values(name: str, text: str, kind: Callable[[str], T]) -> list[T]:
    """The values of a list such as "64,128"."""
    try:
        return [kind(word.strip()) for word in text.split(",") if word.strip()]
    except ValueError:
        raise typer.BadParameter(f"{name} must be numbers with commas between them, got {text!r}") from None


def settings_of(o: Options, **defaults: str) -> tuple[list[Setting], int]:
    """All combinations of the values that H2O's options have, and the size of their chunks.

    Settings without a value follow from the others.
    """
    presets = values("--h2o", o.h2o, str)
    for word in presets:
        check_word("--h2o", word, ("auto", *PRESETS))
    texts = {**defaults, **key_values(o.h2o_set)}
    chunk_size = value_of("chunk_size", texts.pop("chunk_size", str(default_config(o).chunk_size)))
    chosen = {
        key: [value_of(key, word) for word in ([text] if key == "dense_layers" else values(key, text, str))]
        for key, text in texts.items()
    }
    chosen = {"preset": ["balanced" if word == "auto" else word for word in presets], **chosen}
    stores = [None] * o.evict + [o.cold_store] * (o.cold_store is not None)
    evicting: dict[str, Any] = {**chosen, "evict": [True], "cold_store": stores, "decode": ["memory"]}
    kept = sweep(chunk_size=chunk_size, **chosen)
    return kept + (sweep(chunk_size=chunk_size, **evicting) if stores else []), chunk_size


_DEFAULTS = H2OConfig()
_CASES = {"--evict": H2OConfig(evict=True), "--h2o-set lookup_budget=0": H2OConfig(lookup_budget=0)}
_RANGES = {"part": "0 to 1", "layers": "layers"}


def list_settings() -> None:
    """List the settings of H2O that --h2o-set takes."""
    table = Table(box=None, header_style="bold")
    for title in ("Key", "Default", "Values", "Meaning"):
        table.add_column(title, max_width=13 if title == "Values" else None)
    for key in KEYS:
        known = OPTIONS[key]
        table.add_row(key, _DEFAULTS.as_text().get(key) or "none", _values(known), known.help)
    console = Console()
    console.print(table)
    for case, config in _CASES.items():
        texts = config.as_text().items()
        others = [f"{key}={text}" for key, text in texts if key in KEYS and text != _DEFAULTS.as_text().get(key)]
        console.print(f"\nDefaults with {case}: {', '.join(others)}.", highlight=False)
    console.print(f"\nSizes are smaller in chunks below {_DEFAULTS.chunk_size:,} tokens.", highlight=False)


def _values(option: H2OOption) -> str:
    if option.choices:
        return ", ".join(option.choices)
    return _RANGES.get(option.kind, f"{option.min:.0f} or more")


_STDOUT = Path("-")


def bench(
    o: Options,
    n_prompt: Annotated[str, option("Prompt lengths N to read.")] = "1024,4096,8192",
    n_gen: Annotated[int, option("Tokens to generate after a prompt.", min=1)] = 32,
    depth: Annotated[str, option("Prompt lengths to generate after.")] = "4096,8192",
    repetitions: Annotated[int, option("Samples of each figure.", "--repetitions", "-r", min=1)] = 3,
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
    settings, chunk_size = settings_of(o, decode="full,memory")
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
        chunk_size=chunk_size,
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
                console.print(terminal.plain(facts), *_bench.tables(rows), NOTE, terminal.plain(said), sep="\n\n")
                if json_file is not None:
                    json_file.write_text(content, encoding="utf-8")
                    terminal.echo(f"Written: {json_file}")


def eval_model(
    o: Options,
    n_tokens: Annotated[str, option("Lengths N, such as 2048,8192; by default four chunks.")] = "",
    json_file: Annotated[Path | None, option("Write all figures to this file.", "--json")] = None,
    windows: Annotated[int, option("Pieces at most, evenly from the whole text.", min=1)] = 4,
) -> None:
    """Find out whether a model keeps its quality with H2O.

    Measures are perplexity and KL divergence. Every setting is compared with dense attention on the same tokens: of
    --file, or of Python's sources. Options of H2O take several values, with commas: all combinations are measured.
    After Ctrl-C the figures so far are printed.
    """
    settings, chunk_size = settings_of(o)
    if json_file is not None:
        check_target(json_file)
    rows: list[Row] = []
    try:
        with open_model(o, "own") as weights, progress_bars() as update:
            for row in evaluate(
                weights,
                settings,
                text=None if o.file is None else read_text(o.file),
                text_name=None if o.file is None else str(o.file),
                n_tokens=values("--n-tokens", n_tokens, int) or [4 * chunk_size],
                windows=windows,
                n_threads=o.threads,
                n_gpu_layers=o.gpu_layers,
                progress=update,
            ):
                rows.append(row)
    finally:  # rows before Ctrl-C or an error count too
        console = Console()
        for table in tables(rows) if rows else ():
            console.print(terminal.plain(table) if isinstance(table, str) else table)
        if json_file is not None and rows:
            json_file.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
            terminal.echo(f"Written: {json_file}")
