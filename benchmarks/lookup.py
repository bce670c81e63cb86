"""Time and memory of the lookup index, with S 1024 and the budgets of `H2OConfig`.

    python benchmarks/lookup.py [--model model.gguf]

Ids drawn by Zipf's law, the bytes of Python's own library, and its tokens if a model is named. The time includes append
and choose for all tokens, chunk by chunk, and the calls from Python.
"""

from __future__ import annotations

import sysconfig
import time
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console
from rich.table import Table

from h2o_llama import Llama, _core
from h2o_llama.machine import cpu_model
from settings import CHUNK_SIZE, DEFAULT

TILE, BUDGET = DEFAULT.tile, DEFAULT.lookup_budget
SINK_TOKENS, LOCAL_WINDOW = DEFAULT.sink_tokens, DEFAULT.local_window
N_VOCAB = 49_152
REPEATS = 3

GOAL_US = 5
GOAL_BYTES = 32


def main(
    tokens: Annotated[int, typer.Option(help="Tokens of each text.", min=CHUNK_SIZE)] = 131_072,
    model: Annotated[Path | None, typer.Option(help="A GGUF model, for its tokenizer.", exists=True)] = None,
) -> None:
    """Time and memory of the lookup index."""
    table = Table(f"{tokens:,} tokens", "µs per token", "bytes per token")
    for name, ids in texts(tokens, model).items():
        us, size = measure(ids)
        table.add_row(name, f"{us:.2f}", f"{size:.1f}")
    table.add_section()
    table.add_row("goal", f"< {GOAL_US}", f"< {GOAL_BYTES}")
    console = Console()
    console.print(f"{cpu_model()}, S {CHUNK_SIZE}, T {TILE}, B {BUDGET}, A {SINK_TOKENS}, L {LOCAL_WINDOW}")
    console.print(table)


def texts(n: int, model: Path | None) -> dict[str, Any]:
    """int32 [n] each."""
    weights = 1 / np.arange(1, N_VOCAB + 1)
    source = b"".join(path.read_bytes() for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")))
    found = {
        "Zipf": np.random.default_rng(0).choice(N_VOCAB, n, p=weights / weights.sum()).astype(np.int32),
        "bytes": np.frombuffer(source, np.uint8)[:n].astype(np.int32),
    }
    if model is not None:
        # Ten bytes a token are more than Python needs.
        with Llama(model, n_ctx=64, h2o=None) as llm:
            found["tokens"] = np.array(llm.tokenize(source[: 10 * n])[:n], dtype=np.int32)
    return found


def measure(ids: Any) -> tuple[float, float]:
    """Microseconds per token, the best of a few, and bytes per token."""
    times = []
    for _ in range(REPEATS):
        index = _core.Lookup(
            chunk_size=CHUNK_SIZE,
            tile=TILE,
            budget=BUDGET,
            sink_tokens=SINK_TOKENS,
            local_window=LOCAL_WINDOW,
        )
        log = np.empty((0, 2), np.int32)
        start = time.perf_counter()
        for c0 in range(0, len(ids), CHUNK_SIZE):
            index.append(ids[c0 : c0 + CHUNK_SIZE])
            log = np.concatenate([log, index.choose(c0, index.n_tokens, log)])[-BUDGET:]
        times.append(time.perf_counter() - start)
    return min(times) / len(ids) * 1e6, index.bytes / len(ids)


if __name__ == "__main__":
    typer.run(main)
