"""How fast this machine reads memory: what generating a token cannot beat."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from h2o_llama._internal.memory import physical_memory

# Together larger than any cache: what is in a cache is not read from memory.
_LEAST_BYTES = 512 * 2**20
_BYTES_PER_THREAD = 64 * 2**20
_READS = 5


def read_bandwidth(n_threads: int) -> float:
    """Bytes per second that so many threads read from memory together, the best of 5 reads (as STREAM reports it).

    Each finds the largest number of an array of its own. NumPy does that as fast as memory delivers: a loop in C over
    the same bytes is not faster.
    """
    n_bytes = max(_LEAST_BYTES, n_threads * _BYTES_PER_THREAD)
    available = physical_memory()
    n = min(n_bytes, n_bytes if available is None else available // 8) // n_threads // 4
    with ThreadPoolExecutor(n_threads) as threads:
        # made by the threads, so that every part is in memory that is near to one of them
        parts = list(threads.map(lambda _: np.ones(n, np.int32), range(n_threads)))
        seconds = []
        for _ in range(_READS):
            start = time.perf_counter()
            list(threads.map(np.max, parts))
            seconds.append(time.perf_counter() - start)
    return 4 * n * n_threads / min(seconds)
