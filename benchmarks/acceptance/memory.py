"""The memory of a process that reads for long."""

from __future__ import annotations

import numpy as np

from h2o_llama import H2OConfig, Llama, demo_model_path
from h2o_llama._internal.apart import call_apart, resident_bytes

FIRST = 65_536
_CALL = 4_096


def peaks(n_tokens: int, cold_store: str | None) -> tuple[int, int] | None:
    """Bytes of the largest resident set of a process in which the packaged model has read 65,536 tokens, and n_tokens.

    The text is random. Everything is evicted, to this cold store. None where the system does not tell.
    """
    return call_apart("[gate] the process that reads for long", _read, n_tokens, cold_store)


def _read(n_tokens: int, cold_store: str | None) -> tuple[int, int] | None:
    random = np.random.default_rng(0)
    found = []
    with Llama(demo_model_path(), n_batch=_CALL, h2o=H2OConfig(evict=True, cold_store=cold_store)) as llm:
        for end in (FIRST, n_tokens):
            while llm.n_tokens < end:
                llm.eval(random.integers(32, 127, min(_CALL, end - llm.n_tokens)))
            found.append(resident_bytes(peak=True))
    first, last = found
    return None if first is None or last is None else (first, last)
