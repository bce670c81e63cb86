"""The CPU kernels of H2O's operators."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from h2o_llama import _core

# The best first, by the names that they have for attention.
ALL_ISAS = _core.ops_attention_isas()

# Those whose attention is not another one's.
ISAS = [isa for isa in ALL_ISAS if isa != "avxvnni"]


@contextmanager
def using(isa: str) -> Iterator[None]:
    """One of them is used within this, then the best again."""
    _core.ops_set_attention_isa(isa)
    try:
        yield
    finally:
        _core.ops_set_attention_isa(ALL_ISAS[0])
