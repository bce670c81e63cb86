"""The lines that H2O_DEBUG_PHASES and H2O_DEBUG_CACHE log, from a process that runs some calls."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

from llamas import Config

# The parent sets the debug variables.
RUN_CALLS = """
import json, sys
import h2o_llama

path, arguments, calls = json.loads(sys.argv[1])
h2o = h2o_llama.H2OConfig.from_dict(arguments.pop("h2o"))
with h2o_llama.Llama(path, n_ctx=512, n_batch=256, n_threads=1, h2o=h2o, **arguments) as llm:
    for call in calls:
        llm.eval(call)
"""


def lines_of(path: Path, config: Config, calls: list[list[int]], **env: str) -> list[str]:
    """H2O's lines on the standard error of the process."""
    h2o = {
        "chunk_size": config.S,
        "local_window": config.L,
        "heavy_budget": config.H,
        "sink_tokens": config.A,
        "scorer": config.scorer,
        "schedule": config.schedule,
        "lookup_budget": config.B,
        "tile": config.T,
    }
    process = subprocess.run(
        [sys.executable, "-c", RUN_CALLS, json.dumps([str(path), {"h2o": h2o}, calls])],
        env=os.environ | env,
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    return [line for line in process.stderr.splitlines() if "[H2O]" in line]


def fields(line: str) -> dict[str, int]:
    """The name=number pairs of a log line."""
    return {name: int(value) for name, value in re.findall(r"([\w.]+)=(\d+)", line)}
