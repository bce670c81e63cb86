"""A cold store in frames of the codec beside the raw one: the same results, how fast, and in how much memory."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from h2o_llama import H2OConfig, Llama, LosslessConfig
from h2o_llama.errors import H2OError
from h2o_llama.lossless import LosslessStats

CASES = {
    "full": LosslessConfig("full"),
    "store": LosslessConfig("store"),
    "store, each block compared": LosslessConfig("store", strict=True),
}

CHUNK = 256
"""So many tokens of generated text close a chunk, which is encoded."""

N_ROUNDS = 4

_LOOKUP = 128  # as many as with larger chunks: it is what reads the store
_STATM = Path("/proc/self/statm")
_FIRST = 2 * CHUNK  # tokens after which buffers have their sizes


def figures(
    open_llama: Callable[[H2OConfig, LosslessConfig | None], Llama], tokens: NDArray[np.int32]
) -> Iterator[tuple[str, str, float]]:
    """Generation, in turns with the raw store, of the last N_ROUNDS * CHUNK tokens after the others."""
    h2o = H2OConfig.for_chunk_size(CHUNK, evict=True, cold_store="memory", lookup_budget=_LOOKUP)
    n_prompt = len(tokens) - N_ROUNDS * CHUNK
    for name, lossless in CASES.items():
        ratios, n_same = [], 0
        with open_llama(h2o, None) as raw, open_llama(h2o, lossless) as llm:
            for one in (raw, llm):
                one.eval(tokens[:n_prompt])
            encoded(llm)
            for part in np.split(tokens[n_prompt:], N_ROUNDS):
                ratios.append(_seconds(raw, part) / _seconds(llm, part))
                n_same += np.array_equal(raw.logits, llm.logits)
            stats = encoded(llm)
        yield "full_speed" if lossless.mode == "full" else "store_speed", name, statistics.median(ratios)
        yield "store_same", name, n_same
        yield "fallbacks", name, stats.fallback_blocks
        yield "queue_peak", name, stats.queue_peak
        yield "decode_us", name, stats.decode_us[1]


def memory(model_path: str, tokens: NDArray[np.int32]) -> float | None:
    """Resident memory that the frames take over what the rows take, less what the codec says that it is.

    Each by a process of its own. None where the system does not tell.
    """
    if not _STATM.exists():
        return None
    (raw, _), (store, ratio) = (_growth(model_path, tokens, is_stored) for is_stored in (False, True))
    return store / raw - 1 / ratio


def encoded(llm: Llama) -> LosslessStats:
    """The codec's counters when no chunk waits for it."""
    while (stats := llm.kv.stats.lossless) is not None and stats.waiting_chunks > 0:
        time.sleep(0.001)
    if stats is None:
        raise H2OError("[gate] nothing is encoded: please report this")
    return stats


def _seconds(llm: Llama, tokens: NDArray[np.int32]) -> float:
    start = time.perf_counter()
    for token in tokens:
        llm.eval([int(token)], decode=True)
    return time.perf_counter() - start


def _growth(model_path: str, tokens: NDArray[np.int32], is_stored: bool) -> tuple[int, float]:
    code = f"from h2o_llama.gate.stored import read; read({model_path!r}, {is_stored})"
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code],
        input=json.dumps(tokens.tolist()),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise H2OError(f"[gate] the process that reads a text ended: {done.stderr.strip() or done.returncode}")
    growth, ratio = json.loads(done.stdout)
    return growth, ratio


def read(model_path: str, is_stored: bool) -> None:
    """What that process runs: prints by how many pages it grew over the text, and the codec's ratio."""
    tokens = json.load(sys.stdin)
    h2o = H2OConfig.for_chunk_size(CHUNK, evict=True, cold_store="memory", lookup_budget=_LOOKUP)
    lossless = LosslessConfig(cache_mb=0) if is_stored else None
    found, ratio = [], 1.0
    with Llama(model_path, n_ctx=len(tokens), n_ubatch=CHUNK, n_batch=CHUNK, h2o=h2o, lossless=lossless) as llm:
        for start in range(0, len(tokens), CHUNK):
            llm.eval(tokens[start : start + CHUNK])
            if is_stored:
                ratio = encoded(llm).ratio
            if start + CHUNK == _FIRST:
                found.append(_rss())
        found.append(_rss())
    print(json.dumps([found[1] - found[0], ratio]))


def _rss() -> int:
    """Pages."""
    return int(_STATM.read_text().split()[1])
