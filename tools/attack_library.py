"""Several processes on one library, killed in turn: python tools/attack_library.py [--seconds N] [--processes N]

Each reads texts that begin alike, over and over, and compares what it took from the library with what it computes. One
after another is killed (SIGKILL) and started anew. The library is so small that texts go all the time. At the end no
process may have found anything wrong, and `verify` nothing damaged.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from h2o_llama import H2OConfig, Library, Llama, demo_model_path

LIMIT_BYTES = 12_000_000
# the budget is for all keys: with less, a text read in other parts may find other ones where two fit alike
H2O = H2OConfig(local_window=4, heavy_budget=6, sink_tokens=1, lookup_budget=1024, tile=4, chunk_size=64)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument("--processes", type=int, default=8)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--work", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.work is not None:
        work(arguments.work, arguments.seed)
        return
    with tempfile.TemporaryDirectory() as folder:
        attack(Path(folder) / "library", arguments.seconds, arguments.processes, random.Random(arguments.seed))


def attack(folder: Path, seconds: float, n_processes: int, rng: random.Random) -> None:
    """Kill processes until the time is over and a text was taken, then look at the files that they left."""
    Library(folder)

    def n_hits() -> int:
        return sum(path.stat().st_size for path in folder.glob("hits-*"))

    def start() -> subprocess.Popen[bytes]:
        command = [sys.executable, __file__, f"--work={folder}", f"--seed={rng.randrange(1 << 30)}"]
        return subprocess.Popen(command, stdout=subprocess.DEVNULL)

    processes, n_killed = [start() for _ in range(n_processes)], 0
    end = time.monotonic() + seconds
    try:
        while time.monotonic() < end or (n_hits() == 0 and time.monotonic() < end + 20 * seconds):
            time.sleep(rng.uniform(0.2, 0.8))
            i = rng.randrange(n_processes)
            if processes[i].poll() is not None:
                sys.exit(f"attack_library: a process ended by itself, with exit code {processes[i].returncode}")
            processes[i].kill()
            processes[i].wait()
            processes[i] = start()
            n_killed += 1
    finally:
        for process in processes:
            process.kill()
            process.wait()
    library = Library(folder, limit_bytes=LIMIT_BYTES)
    problems = library.verify(repair=True)
    with Llama(demo_model_path(), n_ctx=1024, n_threads=1, library=library) as llm:
        llm.eval(text(200)[:600])  # who writes makes room, which one that was killed may not have done
    library.flush()
    left = list(folder.rglob("*.new"))
    print(f"{n_killed} processes killed, {n_hits()} texts taken and right; {library.n_bytes:,} bytes are left")
    if problems or left or n_hits() == 0 or library.n_bytes > LIMIT_BYTES:
        sys.exit("\n".join(["attack_library: the library is not in order", *problems, *map(str, left)]))


def work(folder: Path, seed: int) -> None:
    """Read texts, some tokens of which others have read."""
    rng = random.Random(seed)
    library = Library(folder, limit_bytes=LIMIT_BYTES)
    sizes: dict[str, Any] = {"n_ctx": 1024, "n_batch": 1024, "n_threads": 1}
    with (
        Llama(demo_model_path(), h2o=H2O, library=library, **sizes) as llm,
        Llama(demo_model_path(), h2o=H2O, **sizes) as fresh,
    ):
        while True:
            tokens = [*text(rng.randrange(6))[: rng.randrange(300, 600)], *text(rng.randrange(100, 130))[:20]]
            llm.reset()
            llm.eval(tokens)
            if llm.n_cached:
                fresh.reset()
                fresh.eval(tokens)
                difference = float(np.abs(llm.logits - fresh.logits).max())
                if difference > 0.05:
                    sys.exit(
                        f"attack_library: what was taken from the library is another text: {llm.n_cached} of "
                        f"{len(tokens)} tokens were taken, logits differ by {difference:.3g}"
                    )
                with (folder / f"hits-{os.getpid()}").open("ab") as hits:
                    hits.write(b".")


def text(seed: int) -> list[int]:
    return np.random.default_rng(seed).integers(97, 123, 600).tolist()  # type: ignore[no-any-return]


if __name__ == "__main__":
    main()
