"""The memory of a process that reads for long."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np

from h2o_llama import H2OConfig, Llama, demo_model_path
from h2o_llama.bench.alone import peak_rss
from h2o_llama.errors import H2OError

FIRST = 65_536
_CALL = 4_096


def peaks(n_tokens: int, cold_store: str | None) -> tuple[int, int] | None:
    """Bytes of the largest resident set of a process in which the packaged model has read 65,536 tokens, and n_tokens.

    The text is random. Everything is evicted, to this cold store. None where the system does not tell.
    """
    code = f"from h2o_llama.gate.memory import read; read({n_tokens}, {cold_store!r})"
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise H2OError(f"[gate] the process that reads for long ended: {done.stderr.strip() or done.returncode}")
    first, last = json.loads(done.stdout)
    return None if first is None else (first, last)


def read(n_tokens: int, cold_store: str | None) -> None:
    """What that process runs."""
    random = np.random.default_rng(0)
    found = []
    with Llama(demo_model_path(), n_batch=_CALL, h2o=H2OConfig(evict=True, cold_store=cold_store)) as llm:
        for end in (FIRST, n_tokens):
            while llm.n_tokens < end:
                llm.eval(random.integers(32, 127, min(_CALL, end - llm.n_tokens)))
            found.append(peak_rss())
    print(json.dumps(found))
