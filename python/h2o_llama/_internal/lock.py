"""One call at a time on one context."""

from __future__ import annotations

import threading

from h2o_llama.errors import H2OError


class Claim:
    """A lock that fails at once instead of waiting: llama.cpp crashes when two threads share a context."""

    def __init__(self, owner: str) -> None:
        self._owner = owner
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        if not self._lock.acquire(blocking=False):
            raise H2OError(
                f"[{self._owner}] is in use: by another thread, or by the call whose callback this is. "
                "Give each thread its own object, or take turns."
            )

    def __exit__(self, *exception: object) -> None:
        self._lock.release()
