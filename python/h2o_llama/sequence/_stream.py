"""An answer that is read piece by piece, and is one call on its sequence all the same."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterator
from contextlib import suppress
from typing import Any, Generic, Protocol, TypeVar

from h2o_llama._internal.lock import Lock
from h2o_llama.errors import Cancelled, H2OError


class HasStream(Protocol):
    """The `State` of a sequence."""

    stream: Stream[Any] | None

    @property
    def claim(self) -> Lock: ...
    def end_stream(self, deadline: float) -> None: ...


T = TypeVar("T")


class Stream(Generic[T]):
    """The pieces of an answer. The thread with the lock computes them: their reader, or a call that waits for the last.

    So a call never waits for a reader, which may itself be waiting for the thread of the call.
    """

    def __init__(self, lock: Lock, pieces: Generator[T, None, None]) -> None:
        self._lock = lock
        self._pieces = pieces
        self._unread = deque[T]()
        self._error: Exception | None = None  # for the reader, after the last piece
        self._is_computing = False
        self.has_ended = False
        self.is_left = False  # nobody will read it

    @property
    def is_ready(self) -> bool:
        """Whether the reader has nothing to wait for."""
        return bool(self._unread) or self.has_ended

    def take(self) -> T | None:
        """The next piece, None after the last one; or raises what ended it."""
        if self._unread:
            return self._unread.popleft()
        if self._error is not None:
            raise self._error
        return None

    def compute(self) -> None:
        """The next piece, or the end."""
        self._is_computing = True
        try:
            if self.is_left:
                self._pieces.close()
                self.has_ended = True
            else:
                self._unread.append(next(self._pieces))
        except StopIteration:
            self.has_ended = True
        except Exception as error:
            self._error, self.has_ended = error, True
        except BaseException as error:  # Ctrl-C is for this thread
            self._error, self.has_ended = Cancelled(f"the answer was ended by {type(error).__name__}"), True
            raise
        finally:
            self._is_computing = False
            self._lock.tell()

    def finish(self, deadline: float) -> None:
        """Compute the rest, unless this is called by what computes it. Raises BusyError after the deadline."""
        while not (self.has_ended or self._is_computing):
            if not self.is_left:  # else it only ends
                self._lock.check_time(deadline)
            self.compute()


def stream(state: HasStream, pieces: Generator[T, None, None]) -> Iterator[T]:
    """The pieces, unchanged. Any thread may ask for the next one."""
    lock = state.claim
    own = Stream(lock, pieces)
    try:
        while True:
            while not own.is_ready:
                with lock.held_unless(lambda: own.is_ready) as deadline:
                    if not own.is_ready:
                        if state.stream is not own:
                            state.end_stream(deadline)
                            state.stream = own
                        own.compute()
            piece = own.take()
            if piece is None:
                return
            yield piece
    finally:
        own.is_left = True
        # busy: the next call ends it; forked: it ends with the process
        with suppress(H2OError), lock.held(waits=False) as deadline:
            if state.stream is own:
                state.end_stream(deadline)
