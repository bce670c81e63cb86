"""`aeval` and `agenerate`: what the blocking ones do, without blocking the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from h2o_llama import H2OConfig, Llama
from inputs import random_tokens

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


def test_cancelling_ends_the_call_and_not_the_sequence(llm: Llama) -> None:
    """The loop goes on meanwhile; what was unfinished is undone, and the next call finds nobody in its way."""

    async def run() -> int:
        chunks = asyncio.Event()
        loop = asyncio.get_running_loop()
        task = asyncio.create_task(
            llm.aeval(random_tokens(19_000), progress=lambda *_: loop.call_soon_threadsafe(chunks.set))
        )
        await chunks.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return llm.n_tokens

    n_tokens = asyncio.run(run())
    assert 0 < n_tokens < 19_000
    assert n_tokens % 16 == 0
    llm.eval(TOKENS)
    assert llm.n_tokens == n_tokens + len(TOKENS)


def test_errors_come_through(llm: Llama) -> None:
    def stop(*_: int) -> None:
        raise KeyError("progress")

    with pytest.raises(ValueError, match=r"\[Llama.eval\] tokens must not be empty"):
        asyncio.run(llm.aeval([]))
    with pytest.raises(KeyError, match="progress"):
        asyncio.run(llm.aeval(TOKENS, progress=stop))
    with pytest.raises(ValueError, match="progress must be"):
        asyncio.run(llm.aeval(TOKENS, progress=3))
