"""Loss by position of a text longer than what the model was trained for, with what eviction keeps in two positions.

    python benchmarks/long_text.py smollm2-135m --text war-and-peace --n-tokens 32768

prints nats per token of every part of the text that is as long as the trained length: of `positions="cache"` and
`"text"`, of a window of the same size with each, and of dense attention that begins anew with every part.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import typer
from numpy.typing import NDArray

from h2o_llama import H2OConfig, Llama, Model
from h2o_llama.cli.prompt import open_model, read_text

_AT_ONCE = 1024

Positions = Literal["cache", "text"]


def main(
    model: str,
    text: Annotated[Path, typer.Option()],
    n_tokens: int = 32768,
    threads: int = 2,
    dense: bool = True,
    only: Annotated[str, typer.Option(help="Names of settings, with commas; all by default.")] = "",
) -> None:
    """Measure and print a table in Markdown, a row for each setting as it comes."""
    with open_model(model, 0) as weights:
        tokens = np.array(weights.tokenize(read_text(text))[: n_tokens + 1], np.int32)
        part = weights.n_ctx_train
        n_parts = (len(tokens) - 1) // part
        print("| | " + " | ".join(f"to {part * (i + 1):,}" for i in range(n_parts)) + " | tokens/s |")
        print("|---|" + "--:|" * (n_parts + 1), flush=True)
        for name, h2o in settings().items():
            if only and name not in only.split(","):
                continue
            begin = time.perf_counter()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # that is what is measured
                with Llama(weights, n_ctx=0, n_threads=threads, h2o=h2o) as llm:
                    found = np.concatenate(list(nats(llm, tokens)))
            row(name, found, part, time.perf_counter() - begin)
        if dense and not only:
            begin, found = time.perf_counter(), np.concatenate(list(restarted(weights, tokens, part, threads)))
            row("dense, anew with every part", found, part, time.perf_counter() - begin)


def settings() -> dict[str, H2OConfig]:
    """By name."""
    res = {}
    kinds: tuple[Positions, ...] = ("cache", "text")
    for positions in kinds:
        kept = H2OConfig(evict=True, positions=positions)
        window = H2OConfig(evict=True, positions=positions, local_window=kept.memory_size - 4, heavy_budget=0)
        res[positions] = kept
        res[f"window {positions}"] = window
    return res


def nats(llm: Llama, tokens: NDArray[np.int32]) -> Iterator[NDArray[np.float64]]:
    """Of every token but the first."""
    for start in range(0, len(tokens) - 1, _AT_ONCE):
        end = min(start + _AT_ONCE, len(tokens) - 1)
        llm.eval(tokens[start:end], logits="all")
        logits = llm.logits
        highest = logits.max(axis=1, keepdims=True)
        total = np.exp(logits - highest).sum(axis=1, dtype=np.float64)
        said = (logits - highest)[np.arange(end - start), tokens[start + 1 : end + 1]]
        yield np.log(total) - said


def restarted(weights: Model, tokens: NDArray[np.int32], part: int, threads: int) -> Iterator[NDArray[np.float64]]:
    """With dense attention, which knows nothing of the part before."""
    with Llama(weights, n_ctx=part, n_threads=threads, h2o=None) as llm:
        for start in range(0, len(tokens) - 1, part):
            llm.reset()
            yield from nats(llm, tokens[start : start + part + 1])


def row(name: str, found: NDArray[np.float64], part: int, seconds: float) -> None:
    means = [found[i : i + part].mean() for i in range(0, len(found) // part * part, part)]
    cells = [*(f"{mean:.3f}" for mean in means), f"{len(found) / seconds:,.0f}"]
    print(f"| {name} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    typer.run(main)
