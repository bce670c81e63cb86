"""h2o-llama, with H2O or without: see worker.py."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import numpy as np
from worker import main, timed

from h2o_llama import H2OConfig, Llama, __version__, _core
from h2o_llama.sequence.generating import DENSE_TAIL


class H2OLlama:
    def __init__(self, job: dict[str, Any]) -> None:
        options = dict(job["options"])
        h2o = options.pop("h2o", None)
        self.version = f"h2o-llama {__version__}, llama.cpp {_core.UPSTREAM_COMMIT[:9]}"
        self.llm = Llama(
            job["model"],
            n_ctx=len(job["ids"]) + job["n_gen"] + 1,
            n_threads=job["n_threads"],
            h2o=None if h2o is None else H2OConfig(**h2o),
            **options,
        )

    def speed(self, ids: list[int], n_gen: int) -> tuple[float, float]:
        self.llm.reset()
        return timed(time.perf_counter(), self._generate(ids), n_gen)

    def _generate(self, ids: list[int]) -> Iterator[int]:
        """The most probable tokens, whether or not the text ends; as `Llama.generate`, which has a dense tail too."""
        self.llm.eval(ids, dense_tail=DENSE_TAIL)
        while True:
            token = int(self.llm.logits[-1].argmax())
            yield token
            self.llm.eval([token], decode=True)

    def logprobs(self, ids: list[int], job: dict[str, Any]) -> None:
        self.llm.reset()
        first, stop = job["first"], job["stop"]
        if first > 0:
            self.llm.eval(ids[:first])
        self.llm.eval(ids[first:stop], logits="all")
        logits = self.llm.logits - self.llm.logits.max(axis=1, keepdims=True)
        np.save(job["logprobs"], logits - np.log(np.exp(logits).sum(axis=1, keepdims=True)))


if __name__ == "__main__":
    main(H2OLlama)
