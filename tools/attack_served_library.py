"""Servers on one library, killed in turn: python tools/attack_served_library.py [--seconds N] [--seed N]

Clients ask `h2o-llama serve` with the demo model about documents. Now the server is killed (SIGKILL), now its
librarian, now files of the library are damaged. Every answer must begin like the one that a server without a library
gives, up to the first near tie. Some texts must have been taken, and `verify` must find all that is damaged. Only on
127.0.0.1.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPException
from itertools import product
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from h2o_llama import Library, Llama, demo_model_path  # noqa: E402
from h2o_llama.demo.document import standard_library_text  # noqa: E402
from load_server import NAME, QUESTIONS, with_markers  # noqa: E402
from servers import Server, certain_start, serving  # noqa: E402

CLIENTS = 2
SIZES = (400, 900, 1500)
"""Tokens of the documents: bytes, for the demo model."""
LIMIT_BYTES = 12_000_000
"""Of the library: texts go all the time."""
VARIANTS = {"keep": [], "evict": ["--evict"], "off": ["--h2o", "off"]}
OPTIONS = ["--chunk", "64", "--n-ctx", "2048", "--threads", "1", "--parallel", str(CLIENTS)]

Question = tuple[int, int]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    os.environ["H2O_LLAMA_LIBRARY_BYTES"] = str(LIMIT_BYTES)
    for name in VARIANTS:
        with tempfile.TemporaryDirectory() as folder:
            attack(name, arguments.seconds / len(VARIANTS), random.Random(arguments.seed), Path(folder))


def attack(name: str, seconds: float, rng: random.Random, folder: Path) -> None:
    """Start servers and kill them until the time is over, then look at what they have left."""
    text = standard_library_text(10_000).decode()
    documents = [with_markers(text[1000 * i :][:size], random.Random(i)) for i, size in enumerate(SIZES)]
    prompts = {
        (i, j): f"{documents[i]}\n{question}\n{NAME}"
        for i, (j, question) in product(range(len(SIZES)), enumerate(QUESTIONS))
    }
    with serving(folder / "log", "demo", *OPTIONS, *VARIANTS[name]) as server:
        expected = {pair: known_start(server, prompt) for pair, prompt in prompts.items()}
    assert len(set(filter(None, expected.values()))) >= len(SIZES), "these answers do not tell documents apart"

    library, done = Library(folder / "library"), Counter[str]()
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        damage(library, rng)
        with serving(folder / "log", "demo", *OPTIONS, *VARIANTS[name], library=library.folder) as server:
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
        done["servers"] += 1
    library.verify(repair=True)
    problems = library.verify()
    with Llama(demo_model_path(), n_ctx=1024, n_threads=1, library=library) as llm:
        llm.eval(llm.tokenize(text[-600:]))  # who writes makes room, which one that was killed may not have done
    library.flush()
    print(f"attack_served_library: {name}: {dict(done)}; {library.n_bytes:,} bytes are left", flush=True)
    if problems or not done["taken"] or library.n_bytes > LIMIT_BYTES:
        sys.exit("\n".join([f"attack_served_library: {name}: the library is not in order", *problems]))


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
            answer = ask(server, prompts[pair])
        except (OSError, HTTPException):
            if stop.wait(5):
                return
            raise
        found = answer["content"]
        assert found.startswith(expected[pair]), f"{pair}: {found!r} does not begin with {expected[pair]!r}"
        done["answers"] += 1
        done["taken"] += answer["timings"]["cache_n"] > 0


def known_start(server: Server, prompt: str) -> str:
    answer = ask(server, prompt, cache_prompt=False, n_probs=2)
    return certain_start(answer["completion_probabilities"])


def ask(server: Server, prompt: str, **options: Any) -> Any:
    return server.complete(prompt, 12, **options)


def damage(library: Library, rng: random.Random) -> None:
    """Change a byte of one file in ten."""
    for path in library.folder.rglob("*"):
        if path.is_file() and path.name != "lock" and rng.random() < 0.1:
            data = bytearray(path.read_bytes())
            if data:
                data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
                path.write_bytes(data)


if __name__ == "__main__":
    main()
