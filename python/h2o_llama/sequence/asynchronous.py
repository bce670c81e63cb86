"""`eval` and `generate` in a thread of their own, for programs that run an event loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Generator
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

from h2o_llama.model import Tokens
from h2o_llama.sequence._evaluation import Progress

if TYPE_CHECKING:
    from h2o_llama.sequence.sequence import Sequence

T = TypeVar("T")


class _Cancelled(Exception):
    """Ends a call from its progress."""


async def _in_thread(call: Callable[[Progress], T], progress: Progress | None) -> T:
    """Run call(progress). If this task is cancelled, the call is ended, and the task ends only after it."""
    is_cancelled = threading.Event()

    def report(n_done: int, n_total: int) -> None:
        if is_cancelled.is_set():
            raise _Cancelled
        if progress is not None:
            progress(n_done, n_total)

    running = asyncio.create_task(asyncio.to_thread(call, report))
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        is_cancelled.set()
        while not running.done():
            with suppress(asyncio.CancelledError):  # once more: the thread still computes
                await asyncio.wait([running])
        if not running.cancelled():
            running.exception()  # seen
        raise


async def aeval(
    sequence: Sequence, tokens: Tokens | None = None, *, progress: Progress | None = None, **options: Any
) -> None:
    """`eval`, awaited: the event loop goes on meanwhile.

    Cancelling the task ends the call after the chunk that is being computed, and undoes what `eval` undoes when
    `progress` raises. `progress` is called by another thread. Not within `lock()`, which is for one thread.
    """
    sequence._check_progress(f"{sequence._owner}.aeval", progress)
    await _in_thread(lambda report: sequence.eval(tokens, progress=report, **options), progress)


async def agenerate(
    sequence: Sequence, tokens: Tokens, *, progress: Progress | None = None, **options: Any
) -> AsyncIterator[int]:
    r"""`generate`, as an asynchronous iterator: the event loop goes on while a token is computed.

    Cancelling ends it as it ends `aeval`, or after the token that is being computed. Where others use the `Llama`, it
    waits for them, as `busy` says, in a thread.

    Examples
    --------
    >>> import asyncio
    >>> async def answer(prompt):
    ...     generated = llm.agenerate(llm.tokenize(prompt), temperature=0, grammar='root ::= "4829"')
    ...     return llm.detokenize([token async for token in generated])
    >>> asyncio.run(answer("k17=4829;\nk17?"))
    b'4829'
    """
    sequence._check_progress(f"{sequence._owner}.agenerate", progress)
    current: list[Progress] = []

    def begin(_: Progress) -> Generator[int, None, None]:
        return sequence.generate(tokens, progress=lambda n_done, n_total: current[0](n_done, n_total), **options)

    found = await _in_thread(begin, progress)

    def draw(report: Progress) -> int | None:
        current[:] = [report]
        return next(found, None)

    try:
        while (token := await _in_thread(draw, progress)) is not None:
            yield token
    finally:
        await _in_thread(lambda _: found.close(), progress)  # it may give the text to a library
