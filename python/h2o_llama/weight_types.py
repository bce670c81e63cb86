"""Types of weights, and which of them are slow on this CPU."""

from __future__ import annotations

import os
from pathlib import Path

from h2o_llama import _core

# ggml multiplies a prompt by these on x86 one row and one column at a time. Those of any other type go through kernels
# that work on tiles: ggml-cpu's tiled/tiled.cpp (K and I quantisations), llamafile/sgemm.cpp (F32, F16, BF16, Q8_0,
# Q4_0, Q5_0, IQ4_NL) or repack.cpp (MXFP4 too).
_ROW_BY_ROW = frozenset({"q4_1", "q5_1", "q1_0", "q2_0", "tq1_0", "tq2_0", "nvfp4"})
# ggml-cpu/amx/common.h has these of them.
_WITH_AMX = frozenset({"q4_1"})


def slow_types() -> frozenset[str]:
    """Types of weights that take about twice as long as Q8_0, by ggml's names; none where nobody has looked."""
    features = _core.cpu_features()
    if "avx2" not in features:
        return frozenset()
    return _ROW_BY_ROW - _WITH_AMX if "amx" in features else _ROW_BY_ROW


def slow_weights(model_path: str | os.PathLike[str]) -> tuple[float, list[str]]:
    """The share of a model's weights that are of slow types, from 0 to 1, and these types, the most frequent first.

    Of a model in several files, only the one that is named counts.
    """
    counts = _core.count_weights(os.fsencode(Path(model_path)))
    slow = {name: n for name, n in counts.items() if name in slow_types()}
    n_weights = sum(counts.values())
    return (sum(slow.values()) / n_weights if n_weights else 0.0), sorted(slow, key=slow.__getitem__, reverse=True)
