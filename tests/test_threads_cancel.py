"""Progress, cancelling, Ctrl-C, and threads."""

from __future__ import annotations

import itertools
import signal
import threading
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

from compare import assert_all_equal
from h2o_llama import BusyError, H2OConfig, H2OError, Llama, demo_model_path
from inputs import random_tokens
from llamas import view

S = 16
# Takes seconds, in dense attention and with large chunks.
LONG = 20_000
SLOW_S = 2048


class Stop(Exception):
    pass


@pytest.fixture
def h2o(schedule: Literal["single_pass", "two_phase"]) -> H2OConfig:
    return H2OConfig(local_window=4, heavy_budget=6, schedule=schedule, chunk_size=S)


def open_tiny(path: Path, h2o: H2OConfig | None) -> Llama:
    return Llama(path, n_ctx=256, n_batch=64, n_ubatch=S, n_threads=1, h2o=h2o)


def open_slow(path: Path, h2o: H2OConfig | None) -> Llama:
    slow = h2o and replace(h2o, chunk_size=SLOW_S)
    return Llama(path, n_ctx=LONG, n_batch=LONG, n_ubatch=SLOW_S, n_threads=1, h2o=slow)


def stop_at(limit: int, reports: list[int] | None = None) -> Callable[[int, int], None]:
    """A progress that raises Stop when so many tokens are done."""

    def progress(n_done: int, n_total: int) -> None:
        if reports is not None:
            reports.append(n_done)
        if n_done >= limit:
            raise Stop

    return progress


# --- progress


def test_progress(h2o: H2OConfig, tiny_model: Path) -> None:
    """Per chunk of each call; calls are of 64 tokens. Also of one chunk, of a second prompt, and without H2O."""
    for config, n_tokens, expected in (
        (h2o, [100], [[16, 32, 48, 64, 80, 96, 100]]),
        (h2o, [10, 10], [[10], [6, 10]]),
        (None, [40], [[16, 32, 40]]),
    ):
        with open_tiny(tiny_model, config) as llm:
            for n, done in zip(n_tokens, expected, strict=True):
                reports: list[tuple[int, int]] = []
                llm.eval(random_tokens(n), progress=lambda *report, reports=reports: reports.append(report))
                assert reports == [(i, n) for i in done]


def test_progress_of_generate_and_completion(h2o: H2OConfig, tiny_model: Path) -> None:
    with open_tiny(tiny_model, h2o) as llm:
        reports: list[int] = []
        next(llm.generate(random_tokens(40), progress=lambda n_done, n: reports.append(n_done)))
        assert reports == [16, 32, 40]
        reports.clear()
        llm(random_tokens(20), max_tokens=3, progress=lambda n_done, n: reports.append(n_done))
        assert reports == [16, 20]


# --- cancelling


def test_finished_calls_stay(h2o: H2OConfig, tiny_model: Path) -> None:
    """150 tokens are calls of 64, 64 and 22; the second is cancelled."""
    tokens = random_tokens(150)
    with open_tiny(tiny_model, h2o) as llm, open_tiny(tiny_model, h2o) as fresh:
        with pytest.raises(Stop):
            llm.eval(tokens, progress=stop_at(80))
        assert llm.n_tokens == 64
        llm.eval(tokens[64:])
        fresh.eval(tokens)
        np.testing.assert_allclose(llm.logits, fresh.logits, rtol=1e-4, atol=1e-4)


def test_cancelling_without_h2o(tiny_model: Path) -> None:
    tokens = random_tokens(100)
    with open_tiny(tiny_model, None) as llm, open_tiny(tiny_model, None) as fresh:
        with pytest.raises(Stop):
            llm.eval(tokens, progress=stop_at(32))
        assert llm.n_tokens == 32
        llm.eval(tokens[32:])
        fresh.eval(tokens)
        np.testing.assert_array_equal(llm.logits, fresh.logits)


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


def test_eval_releases_the_gil(tiny_model: Path) -> None:
    with open_slow(tiny_model, None) as llm:
        stop = threading.Event()

        def progress(n_done: int, n_total: int) -> None:
            if stop.is_set():
                raise Stop

        raised: list[BaseException] = []

        def work() -> None:
            try:
                llm.eval(random_tokens(LONG), progress=progress)
            except BaseException as error:
                raised.append(error)

        thread = threading.Thread(target=work)
        thread.start()
        # This thread gets its turns while the other one is computing its first call.
        ticks = sum(1 for _ in itertools.takewhile(lambda _: thread.is_alive(), map(time.sleep, [0.001] * 100)))
        stop.set()
        thread.join()
        assert ticks == 100
        assert [type(error) for error in raised] == [Stop]


def test_the_second_thread_is_refused_and_the_first_goes_on(h2o: H2OConfig, tiny_model: Path) -> None:
    with open_tiny(tiny_model, h2o) as llm, open_tiny(tiny_model, h2o) as fresh:
        inside, refused = threading.Event(), threading.Event()

        def progress(n_done: int, n_total: int) -> None:
            inside.set()
            refused.wait(10)

        tokens = random_tokens(60)
        thread = threading.Thread(target=lambda: llm.eval(tokens, progress=progress))
        thread.start()
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
        thread.join()
        fresh.eval(tokens)
        assert_all_equal(view(llm, history=False), view(fresh, history=False))
        np.testing.assert_array_equal(llm.logits, fresh.logits)


def test_a_second_thread_waits_if_it_shall(tiny_model: Path) -> None:
    """`busy="wait"`: all calls are made, one after the other. A callback would wait for itself: it is refused."""
    with Llama(tiny_model, n_ctx=256, n_threads=1, h2o=None, busy="wait") as llm:
        threads = [threading.Thread(target=llm.eval, args=([i] * 20,)) for i in range(4)]
        with llm.lock():
            for thread in threads:
                thread.start()
            llm.eval([9, 9])
            assert llm.tokens.tolist() == [9, 9]
        for thread in threads:
            thread.join()
        told = llm.tokens[2:].reshape(4, 20)
        assert sorted(told[:, 0].tolist()) == [0, 1, 2, 3]
        assert (told == told[:, :1]).all()
        with pytest.raises(BusyError, match="the call whose callback this is"):
            llm.eval([1], progress=lambda *_: llm.reset())


@pytest.mark.parametrize("stream", [False, True])
def test_a_whole_answer_is_waited_for(stream: bool) -> None:
    """Not only a step of it, and also where several threads read the stream, one after the other."""
    with Llama(demo_model_path(), n_ctx=512, n_threads=1, h2o=None, busy="wait", chat_template="chatml") as llm:
        messages: dict[str, Any] = {name: [{"role": "user", "content": name}] for name in ("first", "second")}
        options: dict[str, Any] = {"max_tokens": 20, "temperature": 0}
        answers: dict[str, str] = {}

        def ask(name: str) -> None:
            answer: Any = llm.create_chat_completion(messages[name], **options)
            answers[name] = answer["choices"][0]["message"]["content"]

        for name in messages:
            ask(name)
        expected = dict(answers)
        answers.clear()
        others = [threading.Thread(target=ask, args=("second",)) for _ in range(2)]
        if stream:
            chunks: Any = llm.create_chat_completion(messages["first"], **options, stream=True)
            text, reader = [], lambda: text.extend([next(chunks) for _ in range(3)])
            for other in [threading.Thread(target=reader), threading.Thread(target=reader), *others]:
                other.start()
                other.join(None if other not in others else 0.05)
            with pytest.raises(BusyError, match="in use by another thread"):
                llm._engine.claim._take(False)
            text += list(chunks)
            answers["first"] = "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in text)
        else:
            others.append(threading.Thread(target=ask, args=("first",)))
            for other in others:
                other.start()
        for other in others:
            other.join()
        assert answers == expected


def test_a_stream_is_one_call_until_its_end(tiny_model: Path) -> None:
    with Llama(tiny_model, n_ctx=256, n_threads=1, h2o=None, busy="wait") as llm:
        chunks: Any = llm("abc", max_tokens=9, stream=True)
        next(chunks)
        assert llm.n_tokens >= 3  # the thread that reads it may look
        with pytest.raises(BusyError, match=r"in use by a stream of this thread.*close\(\) it"):
            llm("def")
        chunks.close()
        other = threading.Thread(target=llm, args=("def",))
        other.start()
        other.join()
        assert llm.tokens[:3].tolist() == list(b"def")


def test_a_lock_keeps_others_out(tiny_model: Path) -> None:
    refused: list[BaseException] = []

    def other() -> None:
        try:
            llm.eval([1])
        except BusyError as error:
            refused.append(error)

    with open_tiny(tiny_model, None) as llm:
        for is_locked in (True, False):
            thread = threading.Thread(target=other)
            with llm.lock() if is_locked else nullcontext():
                thread.start()
                thread.join()
        assert len(refused) == 1
        assert llm.n_tokens == 1


def test_each_thread_with_its_own_context(h2o: H2OConfig, tiny_model: Path) -> None:
    tokens = [random_tokens(100, seed=seed) for seed in range(4)]
    expected = []
    with open_tiny(tiny_model, h2o) as llm:
        for ids in tokens:
            llm.reset()
            llm.eval(ids)
            expected.append(llm.logits)
    results: dict[int, Any] = {}

    def work(i: int) -> None:
        with open_tiny(tiny_model, h2o) as own:
            own.eval(tokens[i])
            results[i] = own.logits

    threads = [threading.Thread(target=work, args=(i,)) for i in range(len(tokens))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for i, logits in enumerate(expected):
        np.testing.assert_array_equal(results[i], logits)
