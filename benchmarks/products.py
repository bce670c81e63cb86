"""Speed of products with weights: H2O's CPU kernels beside upstream's.

    python benchmarks/products.py
    python benchmarks/products.py --types q8_0,q4_K --columns 1,4,1024 --threads 1

Random weights [3,072, 1,024] by so many columns, which are rounded to 8 bits, too (for F16 and BF16 not, or to
BF16). All take turns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from statistics import median
from typing import Annotated

import gguf
import numpy as np
import typer
from numpy.typing import NDArray

from h2o_llama import _core
from h2o_llama._internal.machine import cpu_model
from h2o_llama.bench.tables import Table
from h2o_llama.sequence._params import available_cpus

N_ROWS, N = 3072, 1024
UPSTREAM = "upstream"
TYPES = "q4_0,q4_1,q5_0,q5_1,q8_0,iq4_nl,mxfp4,q2_K,q3_K,q4_K,q5_K,q6_K,iq4_xs,f16,bf16"
KERNELS = ("avx512bf16", "avx512vnni", "avxvnni", "avx2", "i8mm", "dotprod")


def main(
    repeats: Annotated[int, typer.Option(help="Computations of each kind.", min=1)] = 15,
    threads: Annotated[int | None, typer.Option(help="Threads; by default one for each CPU.", min=1)] = None,
    types: Annotated[str, typer.Option(help="Types of weights, with commas between them.")] = TYPES,
    columns: Annotated[str, typer.Option(help="Numbers of columns.")] = "1,4,8,16,64,1024",
) -> None:
    """Print a Markdown table: billions of multiplications a second, in brackets over upstream's; for one column GB/s.

    Upstream's are those for weights that lie as in the file.
    """
    lines = products(repeats, threads or available_cpus(), types.split(","), [int(n) for n in columns.split(",")])
    print(f"{cpu_model()}\n\n{table(list(lines))}")


def table(lines: list[list[str]]) -> str:
    """What `products` gives, in Markdown."""
    return Table("type, columns", lines[0][1:], lines[1:], "").markdown()


def products(repeats: int, n_threads: int, types: Sequence[str], columns: Sequence[int]) -> Iterator[list[str]]:
    """A head, and a line for each type and number of columns."""
    isas = [isa for isa in _core.ops_isas() if isa in KERNELS]
    yield ["type, columns", UPSTREAM, *isas]

    rng = np.random.default_rng(0)
    for type_name in types:
        weights = random_weights(rng, type_name)
        for n_columns in columns:
            x = rng.standard_normal((n_columns, N), dtype=np.float32)

            def seconds(isa: str, weights: object = weights, type_name: str = type_name, x: object = x) -> float:
                if isa != UPSTREAM:
                    _core.ops_set_isa(isa)
                return _core.ops_product_seconds(weights, type_name, x, isa != UPSTREAM, n_threads)

            ways: dict[str, Callable[[], float]] = {name: partial(seconds, name) for name in (UPSTREAM, *isas)}
            measured: dict[str, list[float]] = {name: [] for name in ways}
            for _ in range(repeats):
                for name, run in ways.items():
                    measured[name].append(run())

            taken = {name: median(times) for name, times in measured.items()}
            cells = [f"{N_ROWS * N * n_columns / t / 1e9:.0f} ({taken[UPSTREAM] / t:.2f})" for t in taken.values()]
            if n_columns == 1:
                cells = [
                    f"{cell} {weights.nbytes / t / 1e9:.1f} GB/s" for cell, t in zip(cells, taken.values(), strict=True)
                ]
            yield [f"{type_name}, {n_columns:,}", *cells]


def random_weights(rng: np.random.Generator, type_name: str) -> NDArray[np.uint8]:
    """Bytes of a type, with scales that are no infinity or NaN."""
    if type_name in ("f16", "bf16"):
        numbers = rng.standard_normal((N_ROWS, N), dtype=np.float32)
        return gguf.quants.quantize(numbers, gguf.GGMLQuantizationType[type_name.upper()]).view(np.uint8)
    n_numbers, n_bytes = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[type_name.upper()]]
    return rng.integers(0, 124, (N_ROWS, N // n_numbers * n_bytes), dtype=np.uint8)


if __name__ == "__main__":
    typer.run(main)
