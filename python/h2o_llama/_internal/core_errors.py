"""What the core's errors become: it has one class for all of them, and the text says which it is."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from h2o_llama.errors import H2OError, OutOfMemoryError, UnsupportedModelError

_KINDS = (
    (OutOfMemoryError, re.compile("not enough memory|failed to allocate|bad_alloc|out of memory", re.IGNORECASE)),
    (
        UnsupportedModelError,
        re.compile(
            r"\[h2o\] (H2O (does not work with|needs causal attention|computes a text chunk by chunk)|"
            r".* needs attention as one operator, which layer|retrieval index needs|positions cache needs)"
        ),
    ),
)


@contextmanager
def core_errors() -> Iterator[None]:
    """Around calls of the core: raises what `h2o_llama.errors` has for its errors."""
    try:
        yield
    except (H2OError, MemoryError) as error:
        if type(error) not in (H2OError, MemoryError):
            raise
        text = str(error)
        kinds = [kind for kind, pattern in _KINDS if pattern.search(text)]
        if isinstance(error, MemoryError):
            raise OutOfMemoryError("[h2o] not enough memory" if text in ("", "std::bad_alloc") else text) from error
        if not kinds:
            raise
        raise kinds[0](text) from None
