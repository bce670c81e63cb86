"""The CPU kernels of H2O's operators."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from h2o_llama import _core

# The best first, by the names that they have for attention.
ISAS = _core.ops_attention_isas()


@contextmanager
def using(isa: str) -> Iterator[None]:
    """One of them is used within this, then the best again."""
    _core.ops_set_attention_isa(isa)
    try:
        yield
    finally:
        _core.ops_set_attention_isa(ISAS[0])
