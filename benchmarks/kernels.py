"""Speed of H2O's CPU kernels: attention over float32 matrix products, and products with weights over upstream's.

    python benchmarks/kernels.py                               # on all CPUs
    OMP_NUM_THREADS=1 python benchmarks/kernels.py --threads 1 --types q8_0,q4_K --columns 1,512

Attention: one chunk of 1,024 queries, 16 heads and 8 KV heads of size 128, K and V in F16, without and with a memory
set. Only useful operations count: 4·128 for each query head and each key that the query sees. NumPy takes as many
threads as OMP_NUM_THREADS and OPENBLAS_NUM_THREADS say. Products: random weights [3,072, 1,024] by each number of
columns. Columns are rounded to 8 bits, with AMX many to BF16, and for F16 weights not. Upstream's
kernels read the weights in the file's layout. All kernels of a table take turns, so that a slow minute hits all of
them; figures are medians.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from statistics import median
from typing import Annotated

import gguf
import numpy as np
import typer
from numpy.typing import NDArray

from h2o_llama import _core
from h2o_llama._internal.machine import available_cpus, cpu_model

N_HEAD, N_HEAD_KV, HEAD_SIZE, CHUNK_SIZE, MEMORY_SIZE = 16, 8, 128, 1024, 384
MATRIX_SIZE = 1536

N_ROWS, N = 3072, 1024
UPSTREAM = "upstream"
TYPES = "q4_0,q4_1,q5_0,q5_1,q8_0,iq4_nl,mxfp4,q2_K,q3_K,q4_K,q5_K,q6_K,iq4_xs,f16"
PRODUCTS = ("amx", "avx512vnni", "avxvnni", "avx2")


def main(
    repeats: Annotated[int, typer.Option(help="Computations of each kind.", min=1)] = 15,
    threads: Annotated[int | None, typer.Option(help="Threads; by default one for each CPU.", min=1)] = None,
    types: Annotated[str, typer.Option(help="Types of weights, with commas between them.")] = TYPES,
    columns: Annotated[str, typer.Option(help="Numbers of columns.")] = "1,4,8,16,64,1024",
) -> None:
    """Print Markdown tables."""
    n_threads = threads or available_cpus()
    print(f"{cpu_model()}, threads: {n_threads}, repeats: {repeats}\n")
    print(attention(repeats, n_threads), end="\n\n")
    print(products(repeats, n_threads, types.split(","), [int(n) for n in columns.split(",")]))


def markdown(title: str, columns: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """A table; the first column is text, the others are numbers."""
    rows = [[title, *columns], ["---", *("--:" for _ in columns)], *lines]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in rows)


def medians(repeats: int, ways: Mapping[str, Callable[[], float]]) -> dict[str, float]:
    """Seconds of each way."""
    taken: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(repeats):
        for name, run in ways.items():
            taken[name].append(run())
    return {name: median(seconds) for name, seconds in taken.items()}


def attention(repeats: int, n_threads: int) -> str:
    """Every kernel that this CPU has."""
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((2, MATRIX_SIZE, MATRIX_SIZE), dtype=np.float32)
    ways = {
        "NumPy's product": partial(numpy_seconds, a, b),
        "ggml's product": partial(product_seconds, UPSTREAM, a.view(np.uint8), "f32", b, n_threads),
    }
    flops = dict.fromkeys(ways, 2.0 * MATRIX_SIZE**3)
    for memory in (0, MEMORY_SIZE):
        n_k = memory + CHUNK_SIZE
        q = rng.standard_normal((N_HEAD, CHUNK_SIZE, HEAD_SIZE), dtype=np.float32) / np.float32(np.sqrt(HEAD_SIZE))
        kv = rng.standard_normal((2, 2 * n_k, N_HEAD_KV, HEAD_SIZE), dtype=np.float32).astype(np.float16)
        rows = np.sort(np.argsort(rng.random((N_HEAD_KV, 2 * n_k)), axis=-1)[..., :n_k]).astype(np.int32)
        first = np.maximum(np.arange(n_k) - memory, 0).astype(np.int32)
        params = {"rows": rows, "first": first, "sums": 1}
        for isa in _core.ops_isas():
            name = f"{isa}, M {memory}"
            ways[name] = partial(attention_seconds, isa, q, *kv.swapaxes(1, 2), params, n_threads)
            flops[name] = 4.0 * HEAD_SIZE * N_HEAD * CHUNK_SIZE * (memory + (CHUNK_SIZE + 1) / 2)
    speeds = {name: flops[name] / seconds / 1e9 for name, seconds in medians(repeats, ways).items()}
    best = max(speeds["NumPy's product"], speeds["ggml's product"])
    lines = [[name, f"{speed:.0f}", f"{speed / best:.2f}"] for name, speed in speeds.items()]
    return markdown("kernel", ["GFLOP/s", "of the product"], lines)


def attention_seconds(isa: str, q: object, k: object, v: object, params: dict[str, object], n_threads: int) -> float:
    _core.ops_set_isa(isa)
    return _core.ops_seconds(partial(_core.ops_attention, q, k, v, "f16", "cpu", n_threads, **params))


def numpy_seconds(a: NDArray[np.float32], b: NDArray[np.float32]) -> float:
    """The second of two products: the first one wakes the threads."""
    a @ b
    start = time.perf_counter()
    a @ b
    return time.perf_counter() - start


def products(repeats: int, n_threads: int, types: Sequence[str], columns: Sequence[int]) -> str:
    """Billions of multiplications a second, in brackets over upstream's; for one column GB/s."""
    names = [UPSTREAM, *(isa for isa in _core.ops_isas() if isa in PRODUCTS)]
    rng = np.random.default_rng(0)
    lines = []
    for type_name in types:
        weights = random_weights(rng, type_name)
        for n_columns in columns:
            x = rng.standard_normal((n_columns, N), dtype=np.float32)
            ways = {name: partial(product_seconds, name, weights, type_name, x, n_threads) for name in names}
            taken = medians(repeats, ways)
            cells = [f"{N_ROWS * N * n_columns / t / 1e9:.0f} ({taken[UPSTREAM] / t:.2f})" for t in taken.values()]
            if n_columns == 1:
                rates = (f" {weights.nbytes / t / 1e9:.1f} GB/s" for t in taken.values())
                cells = [cell + rate for cell, rate in zip(cells, rates, strict=True)]
            lines.append([f"{type_name}, {n_columns:,}", *cells])
    return markdown("type, columns", names, lines)


def product_seconds(isa: str, weights: object, type_name: str, x: object, n_threads: int) -> float:
    if isa != UPSTREAM:
        _core.ops_set_isa(isa)
    return _core.ops_seconds(partial(_core.ops_product, weights, type_name, x, isa != UPSTREAM, n_threads))


def random_weights(rng: np.random.Generator, type_name: str) -> NDArray[np.uint8]:
    """Bytes of a type, with finite scales."""
    if type_name == "f16":
        return rng.standard_normal((N_ROWS, N), dtype=np.float32).astype(np.float16).view(np.uint8)
    n_numbers, n_bytes = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[type_name.upper()]]
    return rng.integers(0, 124, (N_ROWS, N // n_numbers * n_bytes), dtype=np.uint8)


if __name__ == "__main__":
    typer.run(main)
