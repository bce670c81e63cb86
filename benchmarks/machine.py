"""What a measurement was made on."""

from __future__ import annotations

import os
import platform
from datetime import datetime, timezone
from pathlib import Path

import numpy as np

import h2o_llama

MB = 1e6


def describe() -> dict[str, str | int | float]:
    """The machine, the versions and the date, for the JSON files."""
    return {
        "cpu": cpu_model(),
        "cores": n_cores(),
        # More than a little of it at the start means that something else was running.
        "load_average_1min": os.getloadavg()[0],
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "python": platform.python_version(),
        "numpy": np.__version__,
        "h2o_llama": h2o_llama.__version__,
        "llama_cpp_commit": h2o_llama.UPSTREAM_COMMIT,
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
    }


def cpu_model() -> str:
    """Name of the CPU as Linux gives it."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor()


def n_cores() -> int:
    """CPUs that this process may use."""
    return len(os.sched_getaffinity(0))


def peak_rss() -> int:
    """Largest resident set that this process has had, in bytes.

    From /proc and not from getrusage, whose figure a child process inherits from its parent.
    """
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("/proc/self/status has no VmHWM")
