"""What a LoRA adapter costs: prefill and generation with one over without.

    python benchmarks/adapter.py smollm2-135m
    python benchmarks/adapter.py qwen2.5-coder-0.5b --rank 64 --n-tokens 2048

The adapter is random, in F32, and changes every matrix of attention and of feed-forward networks. Dense attention and
H2O take turns with it and without; time is that of the CPU, so that other processes matter little.
"""

from __future__ import annotations

import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Annotated

import numpy as np
import typer

from h2o_llama import Llama, Model
from h2o_llama._internal.machine import cpu_model
from h2o_llama.cli.prompt import model_file
from h2o_llama.models._named import find_model
from settings import DEFAULT

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from adapters import random_adapter

N_GENERATED = 16


def main(
    model: Annotated[str, typer.Argument(help="A GGUF model.")] = "demo",
    rank: Annotated[int, typer.Option(help="Of the adapter's matrices.", min=1)] = 16,
    n_tokens: Annotated[int, typer.Option(help="Tokens of the prompt.", min=2)] = 4096,
    threads: Annotated[int, typer.Option(help="Threads.", min=1)] = 1,
    repeats: Annotated[int, typer.Option(help="Of each, after one that does not count.", min=1)] = 3,
) -> None:
    """Print a Markdown table: tokens for a second of CPU time, without and with the adapter, and their ratio."""
    path = find_model(model_file(model))
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        adapter = random_adapter(path, rank).write(Path(folder) / "adapter.gguf")
        plain, changed = (stack.enter_context(Model(path, lora=lora)) for lora in (None, adapter))
        tokens = np.random.default_rng(0).integers(0, plain.n_vocab, n_tokens + N_GENERATED, dtype=np.int32)
        opened = {
            (name, with_adapter): stack.enter_context(
                Llama(weights, n_ctx=len(tokens), n_threads=threads, h2o=h2o, products="own")
            )
            for name, h2o in (("dense", None), ("H2O", DEFAULT))
            for with_adapter, weights in enumerate((plain, changed))
        }
        seconds: dict[tuple[str, int, str], list[float]] = {}
        for _ in range(repeats + 1):
            for key, llm in opened.items():
                for part, taken in zip(("prefill", "generation"), measure(llm, tokens, n_tokens), strict=True):
                    seconds.setdefault((*key, part), []).append(taken)
    size = sum(a.nbytes + b.nbytes for a, b in random_adapter(path, rank).factors.values())
    print(f"{cpu_model()}, {path.name}, rank {rank} ({size / 1e6:.1f} MB), {n_tokens:,} tokens, {threads} thread(s)\n")
    print("| | tokens/s | with the adapter | ratio |\n| --- | --: | --: | --: |")
    for part, n in (("prefill", n_tokens), ("generation", N_GENERATED)):
        for name in ("dense", "H2O"):
            alone, beside = (n / median(seconds[name, i, part][1:]) for i in range(2))
            print(f"| {part}, {name} | {alone:.1f} | {beside:.1f} | {beside / alone:.2f} |")


def measure(llm: Llama, tokens: np.ndarray[tuple[int], np.dtype[np.int32]], n_tokens: int) -> tuple[float, float]:
    """CPU seconds of the prompt, and of the tokens after it."""
    llm.reset()
    start = time.process_time()
    llm.eval(tokens[:n_tokens])
    read = time.process_time()
    for i in range(n_tokens, len(tokens)):
        llm.eval(tokens[i : i + 1], decode=True)
    return read - start, time.process_time() - read


if __name__ == "__main__":
    typer.run(main)
