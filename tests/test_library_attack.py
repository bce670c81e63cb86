"""A library whose users are killed, or whose files are damaged, at any moment: texts taken from it are right."""

from __future__ import annotations

import multiprocessing
import os
import random
import subprocess
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPException
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from command_line import h2o_set
from h2o_llama import H2OConfig, Library, Llama, demo_model_path
from h2o_llama._demo.document import standard_library_text
from inputs import LONGER, SEED
from servers import NAME, QUESTIONS, Server, certain_start, serving, with_markers

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600 * max(1, LONGER))]

LIMIT_BYTES = 12_000_000
"""Of the library: texts go all the time."""


def assert_in_order(folder: Path) -> None:
    """`verify` finds all damage, and the library is within its limit."""
    library = Library(folder, limit_bytes=LIMIT_BYTES)
    library.verify(repair=True)
    with Llama(demo_model_path(), n_ctx=1024, n_threads=1, library=library) as llm:
        llm.eval(random_text(200))  # who writes makes room, which one that was killed may not have done
    library.flush()
    assert library.verify() == []
    assert library.n_bytes <= LIMIT_BYTES


def random_text(seed: int) -> list[int]:
    return np.random.default_rng(seed).integers(97, 123, 600).tolist()  # type: ignore[no-any-return]


# --- processes

# the budget is for all keys: with less, a text read in other parts may find other ones where two fit alike
H2O = H2OConfig(local_window=4, heavy_budget=6, sink_tokens=1, lookup_budget=1024, research={"tile": 4}, chunk_size=64)


def read_texts(folder: Path, seed: int) -> None:
    """Read texts that others have read in part, and compare loaded states with computed ones."""
    rng = random.Random(seed)
    library = Library(folder, limit_bytes=LIMIT_BYTES)
    sizes: dict[str, Any] = {"n_ctx": 1024, "n_batch": 1024, "n_threads": 1}
    with (
        Llama(demo_model_path(), h2o=H2O, library=library, **sizes) as llm,
        Llama(demo_model_path(), h2o=H2O, **sizes) as fresh,
    ):
        while True:
            tokens = [
                *random_text(rng.randrange(6))[: rng.randrange(300, 600)],
                *random_text(rng.randrange(100, 130))[:20],
            ]
            llm.reset()
            llm.eval(tokens)
            if llm.n_cached:
                fresh.reset()
                fresh.eval(tokens)
                difference = float(np.abs(llm.logits - fresh.logits).max())
                assert difference < 0.05, f"{llm.n_cached} of {len(tokens)} tokens were taken from another text"
                with (folder / f"hits-{os.getpid()}").open("ab") as hits:
                    hits.write(b".")


def has_taken(folder: Path) -> bool:
    return any(path.stat().st_size for path in folder.glob("hits-*"))


def test_processes_that_are_killed(tmp_path: Path) -> None:
    """Eight read texts that begin alike; one after another is killed (SIGKILL) and started anew.

    Until the time is over, and something was taken.
    """
    folder = tmp_path / "library"
    Library(folder)
    rng = random.Random(SEED)
    context = multiprocessing.get_context("forkserver")  # a new process need not import everything again
    context.set_forkserver_preload([__name__])

    def start() -> multiprocessing.process.BaseProcess:
        process = context.Process(target=read_texts, args=(folder, rng.randrange(1 << 30)))
        process.start()
        return process

    processes = [start() for _ in range(8)]
    end = time.monotonic() + 25 * LONGER
    try:
        while time.monotonic() < end or not has_taken(folder):
            time.sleep(rng.uniform(0.2, 0.8))
            i = rng.randrange(len(processes))
            assert processes[i].is_alive(), f"it ended by itself, with exit code {processes[i].exitcode}"
            processes[i].kill()
            processes[i].join()
            processes[i] = start()
    finally:
        for process in processes:
            process.kill()
            process.join()
    assert Library(folder, limit_bytes=LIMIT_BYTES).verify(repair=True) == []
    assert_in_order(folder)
    assert not list(folder.rglob("*.new"))


# --- servers

CLIENTS = 2
SIZES = (400, 900, 1500)
"""Tokens of the documents: bytes, for the demo model."""
OPTIONS = [*h2o_set(chunk_size=64), "--n-ctx", "2048", "--threads", "1", "--parallel", str(CLIENTS)]

Question = tuple[int, int]


@pytest.mark.parametrize("options", [[], ["--evict"], ["--h2o", "off"]])
def test_servers_that_are_killed(options: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients ask while the server, or its librarian, is killed (SIGKILL); before each start, files are damaged.

    Every answer begins like that of a server without a library, up to the first near tie. Until the time is over, and
    something was taken.
    """
    monkeypatch.setenv("H2O_LLAMA_LIBRARY_BYTES", str(LIMIT_BYTES))
    text, rng = standard_library_text(10_000).decode(), random.Random(SEED)
    documents = [with_markers(text[1000 * i :][:size], i) for i, size in enumerate(SIZES)]
    prompts = {
        (i, j): f"{documents[i]}\n{question}\n{NAME}"
        for i, (j, question) in product(range(len(SIZES)), enumerate(QUESTIONS))
    }
    with serving(tmp_path / "log", "demo", *OPTIONS, *options) as server:
        expected = {pair: known_start(server, prompt) for pair, prompt in prompts.items()}
    assert len(set(filter(None, expected.values()))) >= len(SIZES), "these answers do not tell documents apart"

    library, done = Library(tmp_path / "library"), Counter[str]()
    end = time.monotonic() + 25 / 3 * LONGER
    while time.monotonic() < end or not done["taken"]:
        damage(library, rng)
        with serving(tmp_path / "log", "demo", *OPTIONS, *options, library=library.folder) as server:
            stop = threading.Event()
            with ThreadPoolExecutor(CLIENTS) as pool:
                seeds = [rng.random() for _ in range(CLIENTS)]
                clients = [pool.submit(client, server, prompts, expected, done, seed, stop) for seed in seeds]
                time.sleep(rng.uniform(1, 4))
                if rng.random() < 0.3:
                    subprocess.run(["pkill", "-KILL", "-P", str(server.process.pid)], check=False)
                    time.sleep(rng.uniform(0.5, 1))
                stop.set()
                server.process.kill()
            for ended in clients:
                ended.result()
    assert_in_order(library.folder)


def client(
    server: Server,
    prompts: dict[Question, str],
    expected: dict[Question, str],
    done: Counter[str],
    seed: float,
    stop: threading.Event,
) -> None:
    """Ask until the server is killed."""
    rng = random.Random(seed)
    while not stop.is_set():
        pair = rng.choice(list(prompts))
        try:
            answer = server.complete(prompts[pair], 12)
        except (OSError, HTTPException):
            if stop.wait(5):
                return
            raise
        found = answer["content"]
        assert found.startswith(expected[pair]), f"{pair}: {found!r} does not begin with {expected[pair]!r}"
        done["taken"] += answer["timings"]["cache_n"] > 0


def known_start(server: Server, prompt: str) -> str:
    answer = server.complete(prompt, 12, cache_prompt=False, n_probs=2)
    return certain_start(answer["completion_probabilities"])


def damage(library: Library, rng: random.Random) -> None:
    """Change a byte of one file in ten."""
    for path in library.folder.rglob("*"):
        if path.is_file() and path.name != "lock" and rng.random() < 0.1:
            data = bytearray(path.read_bytes())
            if data:
                data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
                path.write_bytes(data)
