"""Progress, cancelling, Ctrl-C, and threads."""

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal
from unittest.mock import AsyncMock

import httpx
import numpy as np
import pytest

from compare import assert_all_equal
from h2o_llama import BusyError, Cancelled, H2OConfig, H2OError, Llama, OutOfMemoryError, demo_model_path
from h2o_llama.sequence._state import State
from inputs import random_tokens, slowly
from llamas import open_tiny, view
from spies import Stop

S = 16
# Takes seconds, in dense attention and with large chunks.
LONG = 20_000
SLOW_S = 2048


@pytest.fixture
def h2o(schedule: Literal["single_pass", "two_phase"]) -> H2OConfig:
    return H2OConfig(local_window=4, heavy_budget=6, schedule=schedule, chunk_size=S)


def open_slow(path: Path, h2o: H2OConfig | None) -> Llama:
    slow = h2o and replace(h2o, chunk_size=SLOW_S)
    return Llama(path, n_ctx=LONG, n_batch=LONG, n_ubatch=SLOW_S, n_threads=1, h2o=slow)


# --- progress


def test_progress(h2o: H2OConfig, tiny_model: Path) -> None:
    """Per chunk of each call; calls are of 64 tokens. Also of one chunk, of a second prompt, and without H2O."""
    for config, n_tokens, expected in (
        (h2o, [100], [[16, 32, 48, 64, 80, 96, 100]]),
        (h2o, [10, 10], [[10], [6, 10]]),
        (None, [40], [[16, 32, 40]]),
    ):
        with open_tiny(tiny_model, h2o=config) as llm:
            for n, done in zip(n_tokens, expected, strict=True):
                reports: list[tuple[int, int]] = []
                llm.eval(random_tokens(n), progress=lambda *report, reports=reports: reports.append(report))
                assert reports == [(i, n) for i in done]


# --- cancelling


@pytest.mark.usefixtures("ctrl_c")
@pytest.mark.parametrize(
    "h2o",
    [
        None,
        H2OConfig(local_window=64, heavy_budget=64, schedule="single_pass"),
        H2OConfig(local_window=64, heavy_budget=64, schedule="two_phase"),
    ],
    ids=["dense", "single_pass", "two_phase"],
)
def test_ctrl_c(tiny_model: Path, h2o: H2OConfig | None) -> None:
    with open_slow(tiny_model, h2o) as llm:
        llm.eval([1, 2, 3])
        main_thread = threading.main_thread().ident
        assert main_thread is not None
        timer = threading.Timer(0.1, lambda: signal.pthread_kill(main_thread, signal.SIGINT))
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            llm.eval(random_tokens(LONG - 10))
        timer.join()
        # H2O takes the prompt in one call, dense attention takes it by n_ubatch.
        assert llm.n_tokens < LONG - 10
        assert (llm.n_tokens - 3) % SLOW_S == 0
        assert h2o is None or llm.n_tokens == 3
        llm.reset()
        llm.eval([1, 2, 3])
        assert np.isfinite(llm.logits).all()


# --- threads


def test_the_second_thread_is_refused_and_the_first_goes_on(h2o: H2OConfig, tiny_model: Path) -> None:
    inside, refused = threading.Event(), threading.Event()
    with open_tiny(tiny_model, h2o=h2o) as llm, open_tiny(tiny_model, h2o=h2o) as fresh, ThreadPoolExecutor(1) as pool:

        def progress(n_done: int, n_total: int) -> None:
            inside.set()
            refused.wait(10)

        tokens = random_tokens(60)
        running = pool.submit(llm.eval, tokens, progress=progress)
        assert inside.wait(10)
        uses: list[Callable[[], object]] = [
            lambda: llm.eval([1]),
            llm.reset,
            llm.close,
            lambda: llm.logits,
            lambda: llm.kv.scores(0),
            lambda: next(llm.generate([1])),
            lambda: llm("a"),
        ]
        for use in uses:
            with pytest.raises(H2OError, match="is in use"):
                use()
        refused.set()
        running.result()
        fresh.eval(tokens)
        assert_all_equal(view(llm, history=False), view(fresh, history=False))
        np.testing.assert_array_equal(llm.logits, fresh.logits)


def test_a_second_thread_waits_if_it_shall(tiny_model: Path) -> None:
    """`busy="wait"`: all calls are made, one after the other. A callback would wait for itself: it is refused."""
    with Llama(tiny_model, n_ctx=256, n_threads=1, h2o=None, busy="wait") as llm, ThreadPoolExecutor(4) as pool:
        with llm.lock():
            running = [pool.submit(llm.eval, [i] * 20) for i in range(4)]
            llm.eval([9, 9])
            assert llm.tokens.tolist() == [9, 9]
        for call in running:
            call.result()
        told = llm.tokens[2:].reshape(4, 20)
        assert sorted(told[:, 0].tolist()) == [0, 1, 2, 3]
        assert (told == told[:, :1]).all()
        with pytest.raises(BusyError, match="the call whose callback this is"):
            llm.eval([1], progress=lambda *_: llm.reset())


def text_of(chunks: Any) -> str:
    return "".join(chunk["choices"][0]["text"] for chunk in chunks)


@pytest.mark.parametrize("is_locked", [False, True])
def test_a_stream_is_one_call_until_its_end(is_locked: bool, tiny_model: Path) -> None:
    """What would change its text computes the rest of it first, also on the thread that reads it, or another stream."""
    options: dict[str, Any] = {"max_tokens": 9, "temperature": 0}
    with Llama(tiny_model, n_ctx=256, n_threads=1, h2o=None, busy="wait") as llm:
        expected = {name: text_of([llm(name, **options)]) for name in ("abc", "def")}
        with llm.lock() if is_locked else nullcontext():
            chunks: Any = llm("abc", **options, stream=True)
            read = [next(chunks)]
            assert 3 <= llm.n_tokens < 12  # the thread that reads it may look
            other: Any = llm("def", **options, stream=True)
            assert text_of([next(other), *other]) == expected["def"]
            assert text_of([*read, *chunks]) == expected["abc"]
            chunks = llm("abc", **options, stream=True)
            read = [next(chunks)]
            with llm.lock():
                assert llm.n_tokens == 12
            llm.eval([1])
        assert text_of([*read, *chunks]) == expected["abc"]


def test_nobody_comes_between_what_is_known_and_the_rest_of_a_prompt(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stream's answer would be about the other thread's text, without an error."""
    keep, refused = State.keep, list[BaseException | None]()

    def interrupted(state: State, *asked: Any) -> int:
        n = keep(state, *asked)
        with ThreadPoolExecutor(1) as pool:
            refused.append(pool.submit(llm.eval, random_tokens(20)).exception())
        return n

    with open_tiny(tiny_model, h2o=None) as llm:
        expected = llm("one", max_tokens=4, temperature=0)["choices"][0]["text"]
        monkeypatch.setattr(State, "keep", interrupted)
        chunks = llm("one", max_tokens=4, temperature=0, stream=True)
        assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == expected
    assert [type(error) for error in refused] == [BusyError]


def test_a_stream_that_is_left_is_not_computed(tiny_model: Path) -> None:
    asked = []

    def stop(*_: object) -> bool:
        asked.append(1)
        return False

    with Llama(tiny_model, n_ctx=256, n_threads=1, h2o=None, busy="wait") as llm:
        for is_left in (True, False):
            chunks: Any = llm("abc", max_tokens=None, stream=True, stopping_criteria=stop)
            next(chunks)
            asked.clear()
            with llm.lock() if is_left else nullcontext():
                pass
            n_asked = len(asked)
            assert (n_asked > 100) == is_left
            chunks.close()
            llm("def", max_tokens=1)
            assert len(asked) == n_asked
        chunks = llm("abc", max_tokens=None, stream=True, stopping_criteria=stop)
        next(chunks)
        asked.clear()
    assert not asked
    with pytest.raises(ValueError, match="closed"):
        list(chunks)


def test_what_ends_a_stream_is_for_its_reader(tiny_model: Path) -> None:
    def stop(tokens: Any, _: object) -> bool:
        if len(tokens) == 6:
            raise Stop
        return False

    with Llama(tiny_model, n_ctx=256, n_threads=1, h2o=None, busy="wait") as llm:
        chunks: Any = llm("abc", max_tokens=None, stream=True, stopping_criteria=stop)
        next(chunks)
        assert llm("def", max_tokens=4)["usage"]["completion_tokens"] == 4
        with pytest.raises(Stop):
            list(chunks)


def test_an_answer_ends_by_another_thread_or_its_time(tiny_model: Path) -> None:
    with Llama(tiny_model, n_ctx=256, n_threads=1, h2o=None) as llm, ThreadPoolExecutor(1) as pool:
        llm.cancel()  # nothing
        chunks: Any = llm("abc", max_tokens=None, stream=True)
        next(chunks)
        pool.submit(llm.cancel).result()
        with pytest.raises(Cancelled, match=r"was ended by cancel\(\)"):
            list(chunks)
        assert 3 < llm.n_tokens < 10
        with pytest.raises(Cancelled, match="takes longer than timeout=0 seconds"):
            llm("def", timeout=0)
        assert llm("def", max_tokens=4, timeout=60)["usage"]["completion_tokens"] == 4


@pytest.mark.parametrize("busy", ["wait", "raise"])
def test_waiting_ends(busy: Any, tiny_model: Path) -> None:
    entered, release = threading.Event(), threading.Event()

    def hold() -> None:
        with llm.lock():
            entered.set()
            release.wait(30)

    with Llama(tiny_model, n_ctx=256, n_threads=1, h2o=None, busy=busy, timeout=0.01) as llm:
        thread = threading.Thread(target=hold)
        thread.start()
        entered.wait()
        waits: list[Callable[[], object]] = [lambda: llm.lock().__enter__()]
        if busy == "wait":
            waits += [llm.reset, lambda: llm("a"), lambda: next(llm("a", stream=True))]  # type: ignore[call-overload]
        for wait in waits:
            with pytest.raises(BusyError, match=r"in use by others for 0.01 seconds: try again later"):
                wait()
        release.set()
        thread.join()
        llm.eval([1])
    with Llama(tiny_model, n_ctx=256, n_threads=1, h2o=None, busy="wait", timeout=0) as llm:
        expected = text_of([llm("abc", max_tokens=20, temperature=0)])
        chunks: Any = llm("abc", max_tokens=20, temperature=0, stream=True)
        read = [next(chunks)]
        with pytest.raises(BusyError, match="try again later"):
            llm("def")
        assert text_of([*read, *chunks]) == expected
        chunks = llm("abc", stream=True)
        next(chunks)
        chunks.close()
        llm("def", max_tokens=1)


@pytest.mark.slow
def test_the_program_with_fastapi(monkeypatch: pytest.MonkeyPatch) -> None:
    """docs/fastapi.md, with two threads for a stream and two questions, and the status of errors."""
    page = Path(__file__).parents[2] / "docs" / "fastapi.md"
    (program,) = re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)
    program = program.replace('"qwen2.5-coder-0.5b"', 'demo_model_path(), n_ctx=512, chat_template="chatml"')
    names: dict[str, Any] = {"demo_model_path": demo_model_path}
    exec(program, names)
    app = names["app"]

    ended: list[bool] = []

    async def run() -> list[httpx.Response]:
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(2))
        question = {"document": "Ann signed it.", "question": "Who?"}
        client = httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test")
        async with app.router.lifespan_context(app), client:
            asked = [client.post(path, json=question) for path in ("/stream", "/ask", "/ask")]
            found = await asyncio.wait_for(asyncio.gather(*asked), 60)
            found.append(await client.post("/ask", json={**question, "document": "long " * 200}))
            monkeypatch.setattr(app.state.llm, "acreate_chat_completion", never)
            await asyncio.wait_for(app(*leaving_client(json.dumps(question).encode())), 60)
            fail = AsyncMock(side_effect=OutOfMemoryError("too little memory"))
            monkeypatch.setattr(app.state.llm, "acreate_chat_completion", fail)
            return [*found, await client.post("/ask", json=question)]

    def leaving_client(body: bytes) -> tuple[dict[str, Any], Any, Any]:
        """It disconnects as soon as its request has been read."""
        headers = [(b"content-type", b"application/json")]
        scope = {"type": "http", "method": "POST", "path": "/ask", "query_string": b"", "headers": headers}
        messages = [{"type": "http.request", "body": body}, {"type": "http.disconnect"}]
        return scope, AsyncMock(side_effect=messages), AsyncMock()

    async def never(*_: object, **__: object) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            ended.append(True)
            raise

    stream, *asked, long, failed = asyncio.run(run())
    assert (stream.status_code, len(stream.text) > 0) == (200, True)
    assert [(answer.status_code, answer.json()) for answer in asked] == [(200, stream.text)] * 2
    assert ended == [True]
    assert long.status_code == 422
    assert "do not fit into n_ctx" in long.text
    assert (failed.status_code, failed.json()) == (503, {"detail": "too little memory"})


# --- fork

FORKING = """
import os, sys, threading
from h2o_llama import H2OConfig, H2OError, KVCache, Llama, LosslessConfig, Model, demo_model_path
from h2o_llama.models._quantize import quantize_model

def evaluates():
    llm.eval([65] * 64)

def embeds():
    model.embed("a text", n_threads=2)

def compresses():
    pass  # by threads of its own, which the Llama has from the beginning

def is_within_a_call():
    begun = threading.Event()
    threading.Thread(target=lambda: llm.eval([65] * 8000, progress=lambda *_: begun.set()), daemon=True).start()
    begun.wait()

def has_a_stream():
    next(stream)
    next(stream)

lossless = LosslessConfig() if "PARENT" == "compresses" else None
h2o = H2OConfig(local_window=8, heavy_budget=8, chunk_size=64, evict=True, cold_store="memory") if lossless else None
llm = Llama(demo_model_path(), n_ctx=8192, n_threads=2, h2o=h2o, cold_store_compression=lossless, busy="wait")
stream = llm("a text", stream=True)
model = Model(demo_model_path())
PARENT()
doors = [
    lambda: llm.eval([65]),
    lambda: next(llm.generate([65])),
    lambda: next(llm("a text", stream=True)),
    lambda: llm.logits,
    llm.snapshot,
    llm.fork,
    lambda: llm.lock().__enter__(),
    lambda: model.embed("a text"),
    lambda: Model(demo_model_path()),
    lambda: Llama(model),
    lambda: KVCache(model, kv_size=64, chunk_size=8, local_window=2, heavy_budget=1),
    lambda: quantize_model(demo_model_path(), "q8_0.gguf", type="q8_0"),
]
pid = os.fork()
if pid:
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
for i, use in enumerate(doors):
    try:
        use()
    except H2OError as error:
        if "multiprocessing.get_context" not in str(error):
            print(i, error)
    else:
        print(i, "was not refused")
assert model.tokenize("ab") == [97, 98]
stream.close()
llm.close()
del doors, stream, llm, model
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize("parent", ["evaluates", "has_a_stream", *slowly("embeds", "compresses", "is_within_a_call")])
def test_a_child_of_one_that_computed_is_refused_everywhere(parent: str, tmp_path: Path) -> None:
    """The threads that compute are not in it. It ends as others do."""
    program = FORKING.replace("PARENT", parent)
    command = [sys.executable, "-W", "ignore", "-c", program]
    child = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert (child.returncode, child.stdout) == (0, ""), child.stderr
    assert "Exception ignored" not in child.stderr


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_child_of_one_that_has_not_computed_computes() -> None:
    program = """
import os, sys
from h2o_llama import Llama, demo_model_path
llm = Llama(demo_model_path(), n_ctx=256, n_threads=2, h2o=None)
pid = os.fork()
if pid:
    os.waitpid(pid, 0)
llm.eval([65] * 64)
print(llm.n_tokens)
"""
    command = [sys.executable, "-W", "ignore", "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "64\n64\n"
