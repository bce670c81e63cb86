"""One measurement: a prompt of N tokens in one mode, and tokens generated after it."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from h2o_llama.config import H2OConfig
from h2o_llama.llama import Llama
from h2o_llama.model import Model
from h2o_llama.sequence._params import available_cpus, resolved_products

Tokens = NDArray[np.int32]


@dataclass(frozen=True)
class Mode:
    """A way to compute, by its name; no `h2o` is dense attention. `flash_attn` and `products` as in `Llama`.

    Where it `only_generates`, its prefill is another mode's, and not a figure of its own.
    """

    name: str
    flash_attn: str
    h2o: H2OConfig | None
    only_generates: bool = False
    products: str = "auto"

    @property
    def is_dense(self) -> bool:
        return self.h2o is None

    @property
    def resolved_products(self) -> str:
        """Without "auto"."""
        return resolved_products(self.h2o, self.products)

    @property
    def group(self) -> str:
        """What tables call it: of dense modes with the same products they show the fastest."""
        return self.name if self.h2o is not None else f"dense, {self.products} products"


@dataclass(frozen=True)
class Sample:
    """What one measurement took: seconds of reading the prompt from an empty cache, and of generating, if it did.

    `cpu_share` is the prefill's CPU time over wall time and the threads that can run at once. Clearly below 1,
    something else was running too.
    """

    prefill_s: float
    generation_s: float | None
    cpu_share: float


@dataclass(frozen=True)
class Case:
    """What to measure: a prompt of `n_tokens`, then `n_gen` generated ones, which may be none.

    `chunk_size` is S with H2O, and llama.cpp's n_ubatch.
    """

    mode: Mode
    n_tokens: int
    n_gen: int
    chunk_size: int
    n_threads: int
    n_gpu_layers: int

    @property
    def n_used(self) -> int:
        """Tokens that a sample needs: the prompt, a generated one that does not count, and those that do."""
        return self.n_tokens + (self.n_gen + 1 if self.n_gen > 0 else 0)

    @property
    def n_ctx(self) -> int:
        """A whole chunk at least, and a multiple of 256: llama.cpp's cache then has exactly so many cells."""
        return -(-max(self.n_used, self.chunk_size) // 256) * 256

    def open(self, model: str | os.PathLike[str] | Model | Llama, **changes: Any) -> Llama:
        """A context of its own on the model's weights. `changes` are of a file, see `Plan`."""
        return Llama(
            model,
            n_ctx=self.n_ctx,
            n_batch=max(4096, self.chunk_size),
            n_ubatch=self.chunk_size,
            n_threads=self.n_threads,
            n_gpu_layers=self.n_gpu_layers,
            flash_attn=self.mode.flash_attn,
            products=self.mode.products,
            h2o=None if self.mode.h2o is None else self.mode.h2o.in_chunks_of(self.chunk_size),
            **changes,
        )

    def warm(self, llm: Llama, tokens: Tokens) -> None:
        """Compute two chunks: the first calls allocate memory and touch it."""
        llm.eval(tokens[: min(2 * self.chunk_size, self.n_tokens)])

    def measure(self, llm: Llama, tokens: Tokens) -> Sample:
        """One sample, from an empty cache. `tokens` are at least `n_used`."""
        llm.reset()
        cpu, wall = time.process_time(), time.perf_counter()
        llm.eval(tokens[: self.n_tokens])
        prefill_s = time.perf_counter() - wall
        cpu_share = (time.process_time() - cpu) / prefill_s / min(self.n_threads, available_cpus())
        generation_s = None
        if self.n_gen > 0:
            # The first one makes a graph, and memory sets if a chunk has just ended: once in S tokens.
            llm.eval(tokens[self.n_tokens : self.n_tokens + 1], decode=True)
            start = time.perf_counter()
            for i in range(self.n_tokens + 1, self.n_used):
                llm.eval(tokens[i : i + 1], decode=True)
            generation_s = time.perf_counter() - start
        return Sample(prefill_s, generation_s, cpu_share)
