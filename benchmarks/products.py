"""Speed of products with Q8_0 weights: H2O's CPU kernels beside upstream's.

    python benchmarks/products.py
    python benchmarks/products.py --threads 1

Weights [3,072, 1,024] by so many columns, which are rounded to 8 bits, too. All take turns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from statistics import median
from typing import Annotated

import gguf
import numpy as np
import typer

from h2o_llama import _core
from h2o_llama.bench.tables import Table
from h2o_llama.machine import cpu_model
from h2o_llama.params import available_cpus

N_ROWS, N = 3072, 1024
COLUMNS = (4, 8, 16, 64, 1024)
UPSTREAM = "upstream"


def main(
    repeats: Annotated[int, typer.Option(help="Computations of each kind.", min=1)] = 15,
    threads: Annotated[int | None, typer.Option(help="Threads; by default one for each CPU.", min=1)] = None,
) -> None:
    """Print a Markdown table: billions of multiplications in a second, and in brackets over upstream's."""
    print(f"{cpu_model()}\n\n{table(list(products(repeats, threads or available_cpus())))}")


def table(lines: list[list[str]]) -> str:
    """What `products` gives, in Markdown."""
    return Table("columns", lines[0][1:], lines[1:], "").markdown()


def products(repeats: int, n_threads: int) -> Iterator[list[str]]:
    """A head, and a line for each number of columns."""
    rng = np.random.default_rng(0)
    floats = rng.standard_normal((N_ROWS, N), dtype=np.float32)
    weights = gguf.quants.quantize(floats, gguf.GGMLQuantizationType.Q8_0)
    isas = [isa for isa in _core.ops_isas() if isa in ("avx512vnni", "avxvnni", "avx2")]
    yield ["columns", UPSTREAM, *isas]

    for n_columns in COLUMNS:
        x = rng.standard_normal((n_columns, N), dtype=np.float32)

        def seconds(isa: str, x: object = x) -> float:
            if isa != UPSTREAM:
                _core.ops_set_isa(isa)
            return _core.ops_product_seconds(weights, x, isa != UPSTREAM, n_threads)

        ways: dict[str, Callable[[], float]] = {name: partial(seconds, name) for name in (UPSTREAM, *isas)}
        measured: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(repeats):
            for name, run in ways.items():
                measured[name].append(run())

        speeds = {name: N_ROWS * N * n_columns / median(times) / 1e9 for name, times in measured.items()}
        yield [f"{n_columns:,}", *(f"{s:.0f} ({s / speeds[UPSTREAM]:.2f})" for s in speeds.values())]


if __name__ == "__main__":
    typer.run(main)
