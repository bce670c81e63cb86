"""The kernels of H2O's operators: the CPU's, and CUDA's."""

from collections.abc import Iterator
from contextlib import contextmanager

from cuda_in_software import BACKEND, registered
from h2o_llama import _core

# The best first.
ALL_ISAS = _core.ops_isas()

CUDA = "cuda"


@contextmanager
def using(isa: str) -> Iterator[None]:
    """Its kernels are used within this, then the best again."""
    _core.ops_set_isa(isa)
    try:
        yield
    finally:
        _core.ops_set_isa(ALL_ISAS[0])


@contextmanager
def on(kernel: str) -> Iterator[None]:
    """Within this a kernel, of an instruction set or CUDA's, can be used."""
    with registered() if kernel == CUDA else using(kernel):
        yield


def backend_of(kernel: str) -> str:
    return BACKEND if kernel == CUDA else "cpu"
