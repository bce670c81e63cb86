"""Types of weights, and which of them are slow on this CPU."""

from __future__ import annotations

import os
from pathlib import Path

from h2o_llama import _core

# ggml multiplies a prompt by these on x86 one row and one column at a time. For any other type there are kernels that work
# on tiles, ours or its own.
_ROW_BY_ROW = frozenset({"q1_0", "q2_0", "tq1_0", "tq2_0", "nvfp4"})


def slow_types() -> frozenset[str]:
    """Types of weights that take about twice as long as Q8_0, by ggml's names; none where nobody has looked."""
    return _ROW_BY_ROW if "avx2" in _core.cpu_features() else frozenset()


def slow_weights(model_path: str | os.PathLike[str]) -> tuple[float, list[str]]:
    """The share of a model's weights that are of slow types, from 0 to 1, and these types, the most frequent first.

    Of a model in several files, only the one that is named counts.
    """
    counts = _core.count_weights(os.fsencode(Path(model_path)))
    slow = {name: n for name, n in counts.items() if name in slow_types()}
    n_weights = sum(counts.values())
    return (sum(slow.values()) / n_weights if n_weights else 0.0), sorted(slow, key=slow.__getitem__, reverse=True)
