"""What the programs of the race have in common: a job as JSON on standard input; what came of it, as JSON, in a file.

It needs nothing but Python: each peer is run by an interpreter of its own. A job has "model" (a GGUF file), "ids" (the
prompt), "n_gen", "n_threads", "options" (the peer's own), "task" and "result" (the file), see `main`.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

N_WARM = 128
"""Tokens that are read before anything is timed."""


def main(open_peer: Callable[[dict[str, Any]], Any]) -> None:
    """Do a job with what `open_peer` makes of it, which has a `version`.

    "speed": `speed(ids, n_gen)` gives the seconds to the first token, and of each one after it. "logprobs":
    `logprobs(ids, job)` saves the log-probabilities after the positions from job["first"] to before job["stop"] to
    job["logprobs"]: NumPy's float32 [n, n_vocab], or [n] of the next token of the prompt alone.
    """
    job = json.load(sys.stdin)
    ids, n_gen = job["ids"], job["n_gen"]
    peer = open_peer(job)
    found: dict[str, Any] = {"version": peer.version}
    if job["task"] == "speed":
        peer.speed(ids[:N_WARM], 2)
        cpu, wall = time.process_time(), time.perf_counter()
        found["first_s"], found["token_s"] = peer.speed(ids, n_gen)
        found["cpu_share"] = (time.process_time() - cpu) / (time.perf_counter() - wall) / job["n_threads"]
        found["peak_rss"] = peak_rss()
    else:
        peer.logprobs(ids, job)
    Path(job["result"]).write_text(json.dumps(found))


def timed(start: float, tokens: Iterator[int], n_gen: int) -> tuple[float, float]:
    """Seconds to the first token, and of each one after it; `start` is of `time.perf_counter`."""
    times = [time.perf_counter() for _ in islice(tokens, n_gen + 1)]
    return times[0] - start, (times[-1] - times[0]) / n_gen


def peak_rss() -> int | None:
    """The largest resident set that this process has had, in bytes; None where the system does not tell."""
    status = Path("/proc/self/status")
    lines = status.read_text().splitlines() if status.exists() else []
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:")), None)
