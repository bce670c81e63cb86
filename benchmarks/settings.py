"""What the benchmarks have in common: the sizes of H2O's defaults."""

from __future__ import annotations

from h2o_llama import H2OConfig

CHUNK_SIZE = 1024
DEFAULT = H2OConfig()
SIZES = (
    f"S {CHUNK_SIZE}, L {DEFAULT.local_window}, H {DEFAULT.heavy_budget}, A {DEFAULT.sink_tokens}, "
    f"B {DEFAULT.lookup_budget}"
)
