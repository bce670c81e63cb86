"""Speed of the attention kernels over the machine's float32 matrix product, as kernel.py measures it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from settings import DEFAULT

SCRIPT = Path(__file__).with_name("kernel.py")
BF16_KERNELS = ("amx",)


def measure_kernels(n_threads: int) -> dict[str, Any]:
    """All that kernel.py writes. It runs in a process of its own: NumPy's threads are set before NumPy is loaded."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.json"
        command = [sys.executable, str(SCRIPT), "--threads", str(n_threads), "--json", str(path)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != 0:
            raise RuntimeError(f"{SCRIPT.name} failed:\n{done.stderr}")
        content: dict[str, Any] = json.loads(path.read_text())
        return content


def kernel_share(content: dict[str, Any] | None, bf16: bool) -> float | None:
    """Share of the product that the best kernel of a kind reaches with a full memory set; None if there is none."""
    if content is None:
        return None
    speeds = [
        r["gflops"]
        for r in content["results"]
        if r["memory"] == DEFAULT.memory_size and (r["name"] in BF16_KERNELS) is bf16
    ]
    return max(speeds) / content["reference_gflops"] if speeds else None
