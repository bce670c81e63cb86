"""What the lack of memory becomes; the core tells its other errors apart itself."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from h2o_llama.errors import OutOfMemoryError


@contextmanager
def core_errors() -> Iterator[None]:
    """Around calls of the core: a MemoryError of Python's becomes an OutOfMemoryError."""
    try:
        yield
    except MemoryError as error:
        if isinstance(error, OutOfMemoryError):
            raise
        raise OutOfMemoryError(str(error) or "[h2o] not enough memory") from error
