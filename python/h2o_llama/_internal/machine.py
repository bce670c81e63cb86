"""What a measurement was made on."""

from __future__ import annotations

import os
import platform
from datetime import datetime, timezone
from pathlib import Path

import numpy as np

from h2o_llama import __version__, _core
from h2o_llama._internal.cpus import available_cpus

_CPU_INFO = Path("/proc/cpuinfo")


def describe() -> dict[str, str | int | float]:
    """The machine, the versions and the date, for the JSON files."""
    return {
        "cpu": cpu_model(),
        "cores": available_cpus(),
        # More than a little of it at the start means that something else was running.
        "load_average_1min": os.getloadavg()[0],
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "python": platform.python_version(),
        "numpy": np.__version__,
        "h2o_llama": __version__,
        "llama_cpp_commit": _core.UPSTREAM_COMMIT,
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
    }


def cpu_model() -> str:
    """Name of the CPU as Linux gives it, or what the system calls it."""
    if _CPU_INFO.exists():
        for line in _CPU_INFO.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()
