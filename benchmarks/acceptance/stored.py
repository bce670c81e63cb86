"""An encoded cold store against the raw one: equal results, speed and memory."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from h2o_llama import H2OConfig, Llama, LosslessConfig
from h2o_llama._internal.apart import call_apart, resident_bytes
from h2o_llama.errors import H2OError
from h2o_llama.lossless import LosslessStats

CASES = {
    "full": LosslessConfig("full"),
    "store": LosslessConfig("store"),
    "store, each block compared": LosslessConfig("store", strict=True),
}

CHUNK = 256
"""A chunk of this many generated tokens is closed and encoded."""

N_ROUNDS = 4

_TURN = CHUNK // 4
"""Tokens that one generates before the other's turn: how fast a machine is changes while a chunk is generated."""

N_LOOKUP = 128
"""As many as with larger chunks: it is what reads the store."""

_FIRST = 2 * CHUNK  # tokens after which buffers have their sizes


def figures(
    open_llama: Callable[[H2OConfig, LosslessConfig | None], Llama], tokens: NDArray[np.int32]
) -> Iterator[tuple[str, str, float]]:
    """Generation, in turns with the raw store, of the last N_ROUNDS * CHUNK tokens after the others.

    A round is a whole chunk, since what encoding a closed one takes from generation belongs to it.
    """
    h2o = H2OConfig(chunk_size=CHUNK, evict=True, cold_store="memory", lookup_budget=N_LOOKUP)
    n_prompt = len(tokens) - N_ROUNDS * CHUNK
    for name, lossless in CASES.items():
        ratios, n_same = [], 0
        with open_llama(h2o, None) as raw, open_llama(h2o, lossless) as llm:
            for one in (raw, llm):
                one.eval(tokens[:n_prompt])
            encoded(llm)
            for part in np.split(tokens[n_prompt:], N_ROUNDS):
                times = [(seconds(raw, turn), seconds(llm, turn)) for turn in np.split(part, CHUNK // _TURN)]
                ratios.append(sum(raw_s for raw_s, _ in times) / sum(stored_s for _, stored_s in times))
                n_same += np.array_equal(raw.logits, llm.logits)
            stats = encoded(llm)
        yield "full_speed" if lossless.mode == "full" else "store_speed", name, statistics.median(ratios)
        yield "store_same", name, n_same
        yield "fallbacks", name, stats.fallback_blocks
        yield "queue_peak", name, stats.queue_peak
        yield "decode_us", name, stats.decode_us[1]


def memory(model_path: str, tokens: NDArray[np.int32]) -> float | None:
    """The ratio of encoded to raw rows in resident memory, minus the codec's own ratio.

    Each by a process of its own. None where the system does not tell.
    """
    name = "[gate] the process that reads a text"
    raw, stored = (call_apart(name, _growth, model_path, tokens, is_stored) for is_stored in (False, True))
    return None if raw is None or stored is None else stored[0] / raw[0] - 1 / stored[1]


def encoded(llm: Llama) -> LosslessStats:
    """The codec's counters when no chunk waits for it."""
    while (stats := llm.kv.stats.lossless) is not None and stats.waiting_chunks > 0:
        time.sleep(0.001)
    if stats is None:
        raise H2OError("[gate] nothing is encoded: please report this")
    return stats


def seconds(llm: Llama, tokens: NDArray[np.int32]) -> float:
    """Of generating these tokens."""
    start = time.perf_counter()
    for token in tokens:
        llm.eval([int(token)], decode=True)
    return time.perf_counter() - start


def _growth(model_path: str, tokens: NDArray[np.int32], is_stored: bool) -> tuple[int, float] | None:
    """By how many bytes this process grows over the text, and the codec's ratio."""
    h2o = H2OConfig(chunk_size=CHUNK, evict=True, cold_store="memory", lookup_budget=N_LOOKUP)
    lossless = LosslessConfig() if is_stored else None
    first, ratio = resident_bytes(), 1.0
    with Llama(model_path, n_ctx=len(tokens), n_batch=CHUNK, h2o=h2o, cold_store_compression=lossless) as llm:
        for start in range(0, len(tokens), CHUNK):
            llm.eval(tokens[start : start + CHUNK])
            if is_stored:
                ratio = encoded(llm).ratio
            if start + CHUNK == _FIRST:
                first = resident_bytes()
        last = resident_bytes()
    return None if first is None or last is None else (last - first, ratio)
