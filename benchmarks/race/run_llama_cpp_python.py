"""llama-cpp-python: see worker.py."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import llama_cpp
from worker import main, timed


class LlamaCppPython:
    def __init__(self, job: dict[str, Any]) -> None:
        self.version = f"llama-cpp-python {llama_cpp.__version__}"
        self.llm = llama_cpp.Llama(
            job["model"],
            n_ctx=len(job["ids"]) + job["n_gen"] + 1,
            n_batch=1024,
            n_ubatch=1024,
            n_threads=job["n_threads"],
            n_threads_batch=job["n_threads"],
            verbose=False,
            **job["options"],
        )

    def speed(self, ids: list[int], n_gen: int) -> tuple[float, float]:
        self.llm.reset()
        return timed(time.perf_counter(), self._generate(ids), n_gen)

    def _generate(self, ids: list[int]) -> Iterator[int]:
        yield from self.llm.generate(ids, temp=0.0, repeat_penalty=1.0, reset=True)


if __name__ == "__main__":
    main(LlamaCppPython)
