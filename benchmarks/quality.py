"""What sparse attention loses: measures it and prints tables such as docs/quality.md has.

    for name in smollm2-135m gemma3-270m qwen2.5-coder-0.5b qwen2.5-coder-1.5b \\
                war-and-peace django-docs django-code english-words; do h2o-llama pull $name; done
    python benchmarks/quality.py                                    # everything, days on two cores
    python benchmarks/quality.py --models smollm2-135m --lengths 4096 --windows 1 --samples 0

Rows are kept in build/quality, a file for each model: an interrupted run continues, and no row is measured twice.
Remove the folder after a change to the core.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from h2o_llama import H2OConfig
from h2o_llama._cli.prompt import progress_bars
from h2o_llama.eval import Perplexity, Ruler, Setting, evaluate, window
from h2o_llama.eval._ruler_task import KINDS, ruler_mean
from h2o_llama.eval._subject import halves
from h2o_llama.models._named import find_model, find_text
from h2o_llama.sequence.generating import DENSE_TAIL
from tables import Table

FOLDER = Path(__file__).parents[1] / "build" / "quality"
# The longest N of each: its trained length.
MODELS = {"smollm2-135m": 8192, "gemma3-270m": 32768, "qwen2.5-coder-0.5b": 32768, "qwen2.5-coder-1.5b": 32768}
TEXTS = {"prose": "war-and-peace", "documentation": "django-docs", "code": "django-code"}
DEFAULT = Setting.of(H2OConfig())
SETTINGS = {
    "default": DEFAULT,
    "faithful": Setting.of(H2OConfig(preset="faithful")),
    "window": window(DEFAULT, H2OConfig.chunk_size),
}


def main(
    models: Annotated[str, typer.Option(help="Their names, with commas between them.")] = ",".join(MODELS),
    lengths: Annotated[str, typer.Option(help="N, of texts.")] = "4096,8192,32000",
    ruler_lengths: Annotated[str, typer.Option(help="N, of RULER.")] = "4096,8192,16384,32768",
    windows: Annotated[int, typer.Option(min=1, help="Of each text.")] = 4,
    samples: Annotated[int, typer.Option(min=0, help="Prompts of each of RULER's tasks; 0: leave it out.")] = 5,
    threads: Annotated[int | None, typer.Option(min=1, help="Threads; by default one for each CPU.")] = None,
) -> None:
    """Measure the loss of sparse attention, and print tables."""
    warnings.filterwarnings("ignore", r"\[Llama\] memory_size", UserWarning)  # a window of a whole chunk is measured
    FOLDER.mkdir(parents=True, exist_ok=True)
    loss_lines, ruler_lines = [], []
    for model in models.split(","):
        common: dict[str, Any] = {"n_threads": threads, "json_file": FOLDER / f"{model}.json"}
        path = find_model(model)
        for n in (int(n) for n in lengths.split(",") if int(n) <= MODELS[model]):
            for text, name in TEXTS.items():
                # The first half is for choosing settings. One window at a time: an interrupted run continues.
                tasks = [Perplexity(windows, only=i) for i in range(windows)]
                with progress_bars() as update:
                    rows = evaluate(
                        path,
                        list(SETTINGS.values()),
                        text=halves(find_text(name).read_bytes())[1],
                        text_name=f"{text}, second half",
                        n_tokens=[n],
                        tasks=tasks,
                        progress=update,
                        **common,
                    )
                loss_lines.append([f"{model}, {n:,}, {text}", *_losses(rows)])
        for n in (int(n) for n in ruler_lengths.split(",") if samples and int(n) <= MODELS[model]):
            for tail in (DENSE_TAIL, 0):
                with progress_bars() as update:
                    ruler = [Ruler(kind, samples, tail) for kind in KINDS]
                    rows = evaluate(path, [DEFAULT], n_tokens=[n], tasks=ruler, progress=update, **common)
                mean = ruler_mean(rows)
                cells = [f"{100 * mean.dense:.1f}", f"{100 * mean.score:.1f}", mean.over_dense_text()]
                ruler_lines.append([f"{model}, {n:,}, dense tail {tail}", *cells])
    print(f"Default: {DEFAULT.name}.\n")
    columns = [f"{name}: {figure}" for name in SETTINGS for figure in ("loss, KL", "same top")]
    print(Table("model, N, text", [*columns, "rounding: KL"], loss_lines).markdown(), end="\n\n")
    if ruler_lines:
        print(Table("RULER", ["dense", "default", "over dense"], ruler_lines).markdown())


def _losses(rows: list[dict[str, Any]]) -> list[str]:
    """Means over windows of each setting; rounding is the KL of the first chunk, where H2O is dense attention."""
    cells = []
    for setting in SETTINGS.values():
        of_setting = [row for row in rows if row["setting"] == setting.name]
        added, kl = (np.array([row["over_windows"][name] for row in of_setting]) for name in ("nats_added", "kld"))
        error = f" ± {added.std(ddof=1) / np.sqrt(len(added)):.4f}" if len(added) > 1 else ""
        same_top = np.mean([row["same_top"] for row in of_setting])
        cells += [f"{added.mean():+.4f}{error}, {kl.mean():.4f}", f"{same_top:.1%}"]
    return [*cells, f"{np.mean([row['first_chunk']['kld'] for row in rows]):.4f}"]


if __name__ == "__main__":
    typer.run(main)
