"""Calls in a thread of their own, for programs that run an event loop."""

import asyncio
from collections.abc import AsyncIterator, Callable, Generator
from threading import Lock
from typing import Any, Literal, TypeVar, overload

from typing_extensions import Unpack

from h2o_llama._internal import check
from h2o_llama._prompt import Tokens
from h2o_llama.chat.asking import AskOptions, Source, Texts, ask
from h2o_llama.chat.chat_completion import (
    ChatCompletion,
    ChatCompletionChunk,
    ChatOptions,
    Messages,
    create_chat_completion,
)
from h2o_llama.chat.completion import Completion, CompletionChunk, CompletionOptions, Text, create_completion
from h2o_llama.sequence._engine import Progress, ProgressOption
from h2o_llama.sequence._state import HasState, State, check_progress
from h2o_llama.sequence.generating import GenerateOptions, generate

T = TypeVar("T")


class _Cancelled(Exception):
    """Ends a call from its progress."""


class _Report:
    """The progress of a call, and what ends it: both raise if the task was cancelled."""

    def __init__(self, progress: Progress | None) -> None:
        self._progress = progress
        self.is_cancelled = False

    def check(self, *_: object) -> None:
        if self.is_cancelled:
            raise _Cancelled

    def __call__(self, n_done: int, n_total: int) -> None:
        self.check()
        if self._progress is not None:
            self._progress(n_done, n_total)


async def in_thread(call: Callable[[_Report], T], progress: Progress | None) -> T:
    """Run call(progress). If this task is cancelled, the call is ended, and the task ends after it.

    A task that is cancelled again ends at once, and its thread after the chunk that it computes: some frameworks cancel
    at every tick of the event loop until the task has ended.
    """
    report = _Report(progress)
    running = asyncio.create_task(asyncio.to_thread(call, report))
    running.add_done_callback(lambda task: task.cancelled() or task.exception())  # seen, if nobody waits for it
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        report.is_cancelled = True
        await asyncio.wait([running])
        raise


async def _each(
    state: State, call: Callable[[Progress], Generator[T, None, None]], progress: Progress | None
) -> AsyncIterator[T]:
    """What call(progress) yields, each in a thread."""
    current: list[Progress] = []
    turn = Lock()  # a cancelled task may end before its thread
    found = await in_thread(lambda _: call(lambda n_done, n_total: current[0](n_done, n_total)), progress)

    def draw(report: Progress) -> T | None:
        with turn:
            current[:] = [report]
            return next(found, None)

    def end(_: Progress) -> None:
        with turn:
            found.close()
            state.give_away()

    try:
        while (item := await in_thread(draw, progress)) is not None:
            yield item
    finally:
        await in_thread(end, progress)


async def agenerate(
    sequence: HasState, tokens: Tokens, *, progress: ProgressOption = None, **options: Unpack[GenerateOptions]
) -> AsyncIterator[int]:
    r"""`generate`, as an asynchronous iterator: the event loop is not blocked while a token is computed.

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
    shown = check_progress(f"{sequence._state.owner}.agenerate", progress)
    state = sequence._state
    async for token in _each(state, lambda report: generate(sequence, tokens, progress=report, **options), shown):
        yield token


@overload
async def acreate_completion(
    sequence: HasState, prompt: Text | list[str], *, stream: Literal[False] = ..., **options: Unpack[CompletionOptions]
) -> Completion: ...
@overload
async def acreate_completion(
    sequence: HasState, prompt: Text, *, stream: Literal[True], **options: Unpack[CompletionOptions]
) -> AsyncIterator[CompletionChunk]: ...
@overload
async def acreate_completion(
    sequence: HasState, prompt: Text | list[str], *, stream: bool, **options: Unpack[CompletionOptions]
) -> Completion | AsyncIterator[CompletionChunk]: ...
async def acreate_completion(sequence: HasState, prompt: Text | list[str], **options: Any) -> Any:
    r"""`create_completion`, awaited: the event loop is not blocked.

    With stream=True the result is an asynchronous iterator of chunks. Cancelling the task ends the call after the chunk
    or the token that is being computed. `progress` is called by another thread.

    Examples
    --------
    >>> import asyncio
    >>> asyncio.run(llm.acreate_completion("k17=4829;\nk17?", max_tokens=5, temperature=0))["choices"][0]["text"]
    '4829;'
    """
    return await _create(sequence, create_completion, "acreate_completion", prompt, options)


@overload
async def acreate_chat_completion(
    sequence: HasState, messages: Messages, *, stream: Literal[False] = ..., **options: Unpack[ChatOptions]
) -> ChatCompletion: ...
@overload
async def acreate_chat_completion(
    sequence: HasState, messages: Messages, *, stream: Literal[True], **options: Unpack[ChatOptions]
) -> AsyncIterator[ChatCompletionChunk]: ...
@overload
async def acreate_chat_completion(
    sequence: HasState, messages: Messages, *, stream: bool, **options: Unpack[ChatOptions]
) -> ChatCompletion | AsyncIterator[ChatCompletionChunk]: ...
async def acreate_chat_completion(sequence: HasState, messages: Messages, **options: Any) -> Any:
    """`create_chat_completion`, awaited as `acreate_completion`.

    Examples
    --------
    >>> async def answer(messages):  # doctest: +SKIP
    ...     async for chunk in await llm.acreate_chat_completion(messages, stream=True):
    ...         print(chunk["choices"][0]["delta"].get("content") or "", end="")
    """
    return await _create(sequence, create_chat_completion, "acreate_chat_completion", messages, options)


@overload
async def aask(
    sequence: HasState, document: Source, questions: str, *, stream: Literal[True], **options: Unpack[AskOptions]
) -> AsyncIterator[str]: ...
@overload
async def aask(  # type: ignore[overload-overlap]  # a text is a sequence of texts
    sequence: HasState, document: Source, questions: str, *, stream: Literal[False] = ..., **options: Unpack[AskOptions]
) -> str: ...
@overload
async def aask(sequence: HasState, document: Source, questions: Texts, **options: Unpack[AskOptions]) -> list[str]: ...
async def aask(sequence: HasState, document: Source, questions: str | Texts, **options: Any) -> Any:
    """`ask`, awaited as `acreate_completion`.

    Examples
    --------
    >>> import asyncio
    >>> len(asyncio.run(llm.aask("k17=4829;", ["k17?", "Which key is there?"], max_tokens=5)))
    2
    """

    def create(sequence: HasState, questions: Any, **options: Any) -> Any:
        return ask(sequence, document, questions, **options)

    return await _create(sequence, create, "aask", questions, options)


async def _create(sequence: HasState, create: Any, name: str, asked: Any, options: dict[str, Any]) -> Any:
    owner = f"{sequence._state.owner}.{name}"
    progress = check_progress(owner, options.pop("progress", None))
    criteria = check.callables(owner, "stopping_criteria", options.pop("stopping_criteria", None))
    if options.get("stream"):

        def streamed(report: Progress) -> Any:
            return create(sequence, asked, progress=report, stopping_criteria=criteria, **options)

        return _each(sequence._state, streamed, progress)

    def whole(report: _Report) -> Any:
        return create(sequence, asked, progress=report, stopping_criteria=[report.check, *criteria], **options)

    return await in_thread(whole, progress)
