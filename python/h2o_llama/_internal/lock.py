"""One call at a time on one context: llama.cpp crashes when two threads share it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from h2o_llama.errors import BusyError


class Lock:
    """Entered by every call. A second thread waits or fails, as `waits` says; a call within a call fails."""

    def __init__(self, owner: str, waits: bool = False) -> None:
        self._owner = owner
        self._waits = waits
        self._turn = threading.RLock()
        self._is_called = False  # by the thread whose turn it is

    def __enter__(self) -> None:
        if not self._turn.acquire(blocking=self._waits):
            raise BusyError(
                f"[{self._owner}] is in use by another thread. Give each thread its own object, take turns by "
                "`with llm.lock():`, or pass busy='wait' to Llama"
            )
        if self._is_called:
            self._turn.release()
            raise BusyError(f"[{self._owner}] is in use by the call whose callback this is")
        self._is_called = True

    def __exit__(self, *exception: object) -> None:
        self._is_called = False
        self._turn.release()

    @contextmanager
    def held(self) -> Iterator[None]:
        """Waits for its turn, and keeps it for several calls of this thread."""
        with self._turn:
            yield
