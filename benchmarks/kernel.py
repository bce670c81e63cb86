"""Speed of the attention operator's CPU kernels, next to the machine's own float32 matrix product.

    python benchmarks/kernel.py                           # on all CPUs
    python benchmarks/kernel.py --threads 1 --json kernel.json

One chunk of 1,024 queries, 16 heads and 8 KV heads of size 128, K and V in F16, without and with a memory set of 256.
Only useful operations count: 4·128 for each query head and each key that the query sees. The matrix product is the
faster of NumPy's and ggml's on the same number of threads. All take turns, so that a slow minute hits all of them.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import numpy as np
import typer
from numpy.typing import NDArray

from h2o_llama import _core
from h2o_llama._internal.machine import describe
from h2o_llama.bench.tables import Table
from h2o_llama.cli.findings import check_files
from h2o_llama.sequence._params import available_cpus
from settings import CHUNK_SIZE, DEFAULT

N_HEAD, N_HEAD_KV, HEAD_SIZE = 16, 8, 128
MEMORY_SIZES = (0, DEFAULT.memory_size)
MATRIX_SIZE = 1536
ISAS = ("portable", "avx2", "avx512", "amx")  # attention has kernels for these


@dataclass(frozen=True)
class Timed:
    """Something to time: an attention kernel (memory is M), or a matrix product (memory is None)."""

    name: str
    memory: int | None
    flops: float
    run: Callable[[], float]
    """Seconds of one computation."""
    seconds: list[float] = field(default_factory=list)

    @property
    def gflops(self) -> float:
        return self.flops / median(self.seconds) / 1e9


def main(
    repeats: Annotated[int, typer.Option(help="Computations of each kind.", min=1)] = 15,
    threads: Annotated[int | None, typer.Option(help="Threads; by default one for each CPU.", min=1)] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write all figures here.")] = None,
) -> None:
    """Speed of the attention operator's CPU kernels, next to the machine's own float32 matrix product."""
    check_files(json_file)
    n_threads = threads or available_cpus()
    machine = describe()

    # NumPy's threads are counted when it is loaded: in a process of its own.
    os.environ["OPENBLAS_NUM_THREADS"] = os.environ["OMP_NUM_THREADS"] = str(n_threads)
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as numpy_process:
        products = matrix_products(numpy_process, n_threads)
        kernels = [s for memory in MEMORY_SIZES for s in attention_kernels(memory, n_threads)]
        for i in range(repeats):
            print(f"{i + 1} of {repeats}", file=sys.stderr)
            for subject in (*products, *kernels):
                subject.seconds.append(subject.run())

    content = {
        "machine": machine,
        "parameters": {"threads": n_threads, "repeats": repeats},
        "reference_gflops": max(p.gflops for p in products),
        "results": [
            {"name": s.name, "memory": s.memory, "flops": s.flops, "gflops": s.gflops, "seconds": s.seconds}
            for s in (*products, *kernels)
        ],
    }
    print(f"{machine['cpu']}, threads: {n_threads}, repeats: {repeats}\n\n{table(content)}")
    if json_file is not None:
        json_file.write_text(json.dumps(content, indent=2) + "\n")


def table(content: dict[str, Any]) -> str:
    """The figures in Markdown."""
    lines = []
    for row in content["results"]:
        memory = "" if row["memory"] is None else f"{row['memory']:,}"
        share = row["gflops"] / content["reference_gflops"]
        lines.append([row["name"], memory, f"{row['gflops']:.0f}", f"{share:.2f}"])
    return Table("kernel", ["M", "GFLOP/s", "of the product"], lines, "").markdown()


def attention_kernels(memory: int, n_threads: int) -> list[Timed]:
    """Every kernel that this CPU has, with M = memory."""
    rng = np.random.default_rng(0)
    n_k = memory + CHUNK_SIZE
    q = rng.standard_normal((1, N_HEAD, CHUNK_SIZE, HEAD_SIZE), dtype=np.float32) / np.float32(np.sqrt(HEAD_SIZE))
    k, v = rng.standard_normal((2, 2 * n_k, N_HEAD_KV, HEAD_SIZE), dtype=np.float32).astype(np.float16).swapaxes(1, 2)
    rows = np.sort(np.argsort(rng.random((1, N_HEAD_KV, 2 * n_k)), axis=-1)[..., :n_k]).astype(np.int32)
    first = np.maximum(np.arange(n_k) - memory, 0).astype(np.int32)
    flops = 4.0 * HEAD_SIZE * N_HEAD * CHUNK_SIZE * (memory + (CHUNK_SIZE + 1) / 2)

    def run(isa: str) -> float:
        _core.ops_set_isa(isa)
        params = _core.ops_AttentionParams(rows=rows, first=first, sums=1)
        return _core.ops_attention_seconds(q, k, v, "f16", params, n_threads)

    isas = [isa for isa in _core.ops_isas() if isa in ISAS]
    return [Timed(isa, memory, flops, partial(run, isa)) for isa in isas]


def matrix_products(numpy_process: ProcessPoolExecutor, n_threads: int) -> list[Timed]:
    """The machine's own float32 products of two square matrices."""
    a, b = np.random.default_rng(0).standard_normal((2, MATRIX_SIZE, MATRIX_SIZE), dtype=np.float32)
    flops = 2.0 * MATRIX_SIZE**3
    return [
        Timed("NumPy's product", None, flops, lambda: numpy_process.submit(numpy_seconds, a, b).result()),
        Timed("ggml's product", None, flops, lambda: _core.ops_mul_mat_seconds(a, b, n_threads)),
    ]


def numpy_seconds(a: NDArray[np.float32], b: NDArray[np.float32]) -> float:
    """The second of two products: the first one wakes the threads."""
    a @ b
    start = time.perf_counter()
    a @ b
    return time.perf_counter() - start


if __name__ == "__main__":
    typer.run(main)
