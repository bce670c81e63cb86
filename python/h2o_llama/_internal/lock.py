"""One call at a time on one context: llama.cpp crashes when two threads share it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

from h2o_llama.errors import BusyError

T = TypeVar("T")


class Lock:
    """Entered by every call. A second thread waits or fails, as `waits` says; a call within a call fails.

    Unlike a lock of Python's it can go over to another thread: a stream may be read by several, one after the other.
    """

    def __init__(self, owner: str, waits: bool = False) -> None:
        self._owner = owner
        self._waits = waits
        self._condition = threading.Condition()
        self._thread: threading.Thread | None = None  # whose turn it is; a number may be another one's later
        self._n_taken = 0  # how often it has taken it
        self._is_called = False  # by that thread
        self._has_stream = False  # which is not at its end

    def __enter__(self) -> None:
        self._take(self._waits)
        if self._is_called:
            self._give()
            raise self._called()
        self._is_called = True

    def __exit__(self, *exception: object) -> None:
        self._is_called = False
        self._give()

    @contextmanager
    def held(self) -> Iterator[None]:
        """Waits for its turn, and keeps it for several calls of this thread."""
        self._take(True)
        try:
            yield
        finally:
            self._give()

    def kept(self, pieces: Iterator[T]) -> Iterator[T]:
        """The pieces, as they are; where others wait, they wait until the last one. Any thread may ask for the next."""
        if not self._waits:
            yield from pieces
            return
        self._take(True)
        if self._is_called or self._has_stream:
            self._give()
            raise (
                self._called()
                if self._is_called
                else BusyError(
                    f"[{self._owner}] is in use by a stream of this thread: read it to its end, or close() it"
                )
            )
        self._has_stream = True
        try:
            for piece in pieces:
                yield piece
                self._move()
        finally:
            self._has_stream = False
            self._give()

    def _take(self, waits: bool) -> None:
        thread = threading.current_thread()
        with self._condition:
            while self._n_taken > 0 and self._thread != thread:
                if not waits:
                    raise self._used()
                self._condition.wait()
            self._thread = thread
            self._n_taken += 1

    def _give(self) -> None:
        with self._condition:
            self._n_taken -= 1
            if self._n_taken == 0:
                self._condition.notify()

    def _move(self) -> None:
        """The turn is this thread's from here on."""
        with self._condition:
            if self._thread != threading.current_thread() and self._n_taken > 1:  # it has more than the stream
                raise self._used()
            self._thread = threading.current_thread()

    def _used(self) -> BusyError:
        return BusyError(
            f"[{self._owner}] is in use by another thread. Give each thread its own object, take turns by "
            "`with llm.lock():`, or pass busy='wait' to Llama"
        )

    def _called(self) -> BusyError:
        return BusyError(f"[{self._owner}] is in use by the call whose callback this is")
