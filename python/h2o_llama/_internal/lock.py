"""One call at a time on a context: llama.cpp crashes when two threads share it."""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from h2o_llama import _core
from h2o_llama.errors import BusyError


@dataclass(eq=False)
class _Turn:
    """A place in the line. Who is first has the lock."""

    thread: threading.Thread
    depth: int = 0  # how often its thread has entered


class Lock:
    """Entered by every call. A second thread waits or fails, as `waits` says; a call within a call fails.

    Threads that wait take turns in the order in which they came, and for `timeout` seconds at most.
    """

    def __init__(self, owner: str, waits: bool = False, timeout: float | None = None) -> None:
        self._owner = owner
        self.waits = waits
        self._timeout = timeout
        self._changed = threading.Condition()
        self._line = deque[_Turn]()
        self._is_called = False  # by the thread that has the lock

    def __enter__(self) -> None:
        self._take(self.waits, self._deadline())
        self._is_called = True

    def __exit__(self, *exception: object) -> None:
        self._is_called = False
        self._give()

    @contextmanager
    def held(self, waits: bool | None = None) -> Iterator[float]:
        """The lock, for several calls of this thread, and their deadline. By default it waits for it as a call does."""
        deadline = self._deadline()
        self._take(self.waits if waits is None else waits, deadline)
        try:
            yield deadline
        finally:
            self._give()

    @contextmanager
    def held_unless(self, is_done: Callable[[], bool]) -> Iterator[float]:
        """The same, or without the lock as soon as `is_done` is true. The thread that makes it true calls `tell`."""
        deadline = self._deadline()
        has_it = self._take(self.waits, deadline, is_done)
        try:
            yield deadline
        finally:
            if has_it:
                self._give()

    def tell(self) -> None:
        """To be called by the thread that has the lock, when what others wait for may have come true."""
        with self._changed:
            self._changed.notify_all()

    def _deadline(self) -> float:
        """Until when a call that begins now waits."""
        return float("inf") if self._timeout is None else time.monotonic() + self._timeout

    def check_time(self, deadline: float) -> None:
        """Raise BusyError if it has passed."""
        if time.monotonic() > deadline:
            raise BusyError(f"[{self._owner}] is in use by others for {self._timeout:g} seconds: try again later")

    def _take(self, waits: bool, deadline: float, is_done: Callable[[], bool] = lambda: False) -> bool:
        _core.check_fork()  # who had the lock does not exist there
        thread = threading.current_thread()
        with self._changed:
            if is_done():
                return False
            if self._line and self._line[0].thread is thread:
                if self._is_called:
                    raise BusyError(f"[{self._owner}] is in use by the call whose callback this is")
                self._line[0].depth += 1
                return True
            if self._line and not waits:
                raise BusyError(
                    f"[{self._owner}] is in use by another thread. Give each thread its own object, take turns by "
                    "`with llm.lock():`, or pass busy='wait' to Llama"
                )
            turn = _Turn(thread)
            self._line.append(turn)
            try:
                while self._line[0] is not turn and not is_done():
                    self.check_time(deadline)
                    left = deadline - time.monotonic()
                    self._changed.wait(min(max(left, 0), threading.TIMEOUT_MAX))
            except BaseException:
                self._leave(turn)
                raise
            if self._line[0] is not turn:
                self._leave(turn)
                return False
            turn.depth = 1
            return True

    def _give(self) -> None:
        with self._changed:
            turn = self._line[0]
            turn.depth -= 1
            if turn.depth == 0:
                self._leave(turn)

    def _leave(self, turn: _Turn) -> None:
        self._line.remove(turn)
        self._changed.notify_all()
