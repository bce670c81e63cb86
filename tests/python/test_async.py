"""The asynchronous calls: what the blocking ones do, without blocking the event loop."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chats import CHATML
from h2o_llama import H2OConfig, Library, Llama
from inputs import random_tokens
from models import EOS

TOKENS = random_tokens(100)


@pytest.fixture(params=[None, H2OConfig(chunk_size=16)], ids=["dense", "H2O"])
def llm(request: pytest.FixtureRequest, tiny_model: Path) -> Iterator[Llama]:
    with Llama(tiny_model, n_ctx=20_000, n_batch=16, n_ubatch=16, n_threads=1, h2o=request.param) as llm:
        yield llm


def test_the_same_comes_out(llm: Llama) -> None:
    llm.eval(TOKENS)
    logits = llm.logits.copy()
    llm.reset()
    tokens = [token for token, _ in zip(llm.generate(TOKENS, seed=1), range(8), strict=False)]
    llm.reset()
    seen: list[tuple[int, int]] = []

    async def first(n: int) -> list[int]:
        await llm.aeval(TOKENS, progress=lambda *done: seen.append(done))
        np.testing.assert_array_equal(llm.logits, logits)
        llm.reset()
        found = []
        async for token in llm.agenerate(TOKENS, seed=1):
            found.append(token)
            if len(found) == n:
                break
        return found

    assert asyncio.run(first(len(tokens))) == tokens
    assert seen[-1] == (100, 100)


def test_completions_say_what_they_say_without_a_loop(tiny_model: Path) -> None:
    options: dict[str, Any] = {"max_tokens": 8, "temperature": 0}

    async def run(create: Any, asked: Any) -> tuple[Any, Any]:
        return await create(asked, **options), [chunk async for chunk in await create(asked, **options, stream=True)]

    with Llama(tiny_model, n_ctx=200, n_threads=1, h2o=None, chat_template=CHATML) as llm:
        for create, acreate, asked in [
            (llm.create_completion, llm.acreate_completion, "Hello"),
            (llm.create_chat_completion, llm.acreate_chat_completion, [{"role": "user", "content": "Hello"}]),
        ]:
            whole, chunks = asyncio.run(run(acreate, asked))
            expected: Any = create(asked, **options)  # type: ignore[operator]
            assert whole["choices"] == expected["choices"]
            streamed: Any = list(create(asked, **options, stream=True))  # type: ignore[operator]
            assert [chunk["choices"] for chunk in chunks] == [chunk["choices"] for chunk in streamed]
        told, pieces = asyncio.run(run(partial(llm.aask, "A document."), "Who?"))
        assert told == "".join(pieces) == llm.ask("A document.", "Who?", **options)


@pytest.mark.parametrize("stream", [False, True])
def test_cancelling_a_completion_ends_it(llm: Llama, stream: bool) -> None:
    async def run() -> None:
        begun = asyncio.Event()
        loop = asyncio.get_running_loop()

        def tell(*_: Any) -> bool:
            loop.call_soon_threadsafe(begun.set)
            return False

        async def complete() -> None:
            options = {"max_tokens": None, "logit_bias": {EOS: -100}, "stopping_criteria": tell, "stream": stream}
            answer = await llm.acreate_completion(TOKENS, **options)
            if stream:
                async for _ in answer:
                    pass

        task = asyncio.create_task(complete())
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(run())
    n_tokens = llm.n_tokens
    assert len(TOKENS) <= n_tokens < 10_000
    llm.eval(TOKENS)
    assert llm.n_tokens == n_tokens + len(TOKENS)


def test_a_task_that_is_cancelled_at_every_tick_ends_at_once(llm: Llama) -> None:
    """So does anyio. The thread ends the call after its chunk; the event loop does not wake up until then."""
    computing, release = threading.Event(), threading.Event()

    def hold(*_: int) -> None:
        computing.set()
        release.wait(60)

    async def run() -> int:
        task = asyncio.create_task(llm.aeval(random_tokens(19_000), progress=hold))
        await asyncio.to_thread(computing.wait)
        n_ticks = 0
        while not task.done() and n_ticks < 1000:
            task.cancel()
            n_ticks += 1
            await asyncio.sleep(0)
        release.set()
        return n_ticks

    assert asyncio.run(run()) < 10
    n_tokens = llm.n_tokens
    assert 0 < n_tokens < 19_000
    assert n_tokens % 16 == 0
    llm.eval(TOKENS)
    assert llm.n_tokens == n_tokens + len(TOKENS)


@pytest.mark.parametrize("is_cancelled", [False, True])
def test_leaving_early_gives_the_text_away_in_a_thread(is_cancelled: bool, tiny_model: Path, tmp_path: Path) -> None:
    """A text on its way to a library may be large: the event loop does not wait for it."""
    threads: list[threading.Thread] = []

    class Spy(Library):
        def add(self, *arguments: Any) -> None:
            threads.append(threading.current_thread())
            super().add(*arguments)

    async def read(llm: Llama, drawn: asyncio.Event) -> None:
        async for _ in llm.agenerate(random_tokens(600), seed=1, logit_bias={EOS: -100}):
            if llm.n_tokens > 600 + 70:
                drawn.set()
                if not is_cancelled:
                    break

    async def run(llm: Llama) -> None:
        drawn = asyncio.Event()
        task = asyncio.create_task(read(llm, drawn))
        await drawn.wait()
        if is_cancelled:
            task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        while len(threads) < 1:
            await asyncio.sleep(0.01)

    with Llama(tiny_model, n_ctx=20_000, n_threads=1, h2o=None, library=Spy(tmp_path)) as llm:
        asyncio.run(run(llm))
    assert threads
    assert threading.main_thread() not in threads


def test_a_stream_that_is_collected_elsewhere_writes_nothing(tiny_model: Path, tmp_path: Path) -> None:
    """The thread that collects it may be an event loop's."""
    with Llama(tiny_model, n_ctx=2000, n_threads=1, h2o=None, library=Library(tmp_path)) as llm:
        for is_elsewhere in (True, False):
            streams = [llm.generate(random_tokens(600), seed=1)]
            next(streams[0])
            if is_elsewhere:
                thread = threading.Thread(target=streams.clear)
                thread.start()
                thread.join()
            streams.clear()
            llm.reset()
            assert llm.library is not None
            llm.library.flush()
            assert bool(llm.library.texts()) is not is_elsewhere


def test_beginning_does_not_keep_the_loop_waiting(tiny_model: Path) -> None:
    """Another thread has the Llama until the loop says so."""
    entered, release = threading.Event(), threading.Event()
    released = []

    def hold() -> None:
        with llm.lock():  # type: ignore[attr-defined]
            entered.set()
            released.append(release.wait(60))

    async def run() -> int:
        found = llm.agenerate([1, 2, 3], seed=1)  # type: ignore[attr-defined]
        first = asyncio.ensure_future(anext(found))
        await asyncio.sleep(0.05)
        release.set()
        token = await first
        await found.aclose()
        return token

    with Llama(tiny_model, n_ctx=256, n_threads=1, h2o=None, busy="wait") as llm:
        expected = next(llm.generate([1, 2, 3], seed=1))
        llm.reset()
        thread = threading.Thread(target=hold)
        thread.start()
        entered.wait()
        assert asyncio.run(run()) == expected
        thread.join()
    assert released == [True]
