"""A context whose memory sets are chosen by a reference's rule instead of by scores."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from itertools import islice, pairwise
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from h2o_llama._internal import check
from h2o_llama.config import H2OConfig
from h2o_llama.inspect.attention_mass import chunk_masses
from h2o_llama.llama import Llama
from h2o_llama.model import Model, Tokens
from h2o_llama.sequence._evaluation import Progress

Memory = Literal["random", "upper_bound"]
MemorySets = dict[int, NDArray[np.int32]]  # layer -> [n_head_kv, M]


class ReferenceLlama(Llama):
    """A `Llama` that reads a text with the memory sets of a rule, see `references.Reference`.

    The sets follow from the text that `plan` is given, or from the tokens of a sequence's first `eval`. Past the end of
    that text H2O goes on by itself. Weights are shared; another text draws other numbers by the same seed.
    """

    def __init__(self, weights: Model, h2o: H2OConfig, memory: Memory, seed: int, **context: Any) -> None:
        super().__init__(weights, h2o=h2o, **context)
        self._weights = weights
        self._config = h2o
        self._memory = memory
        self._random_seed = seed
        self._is_planned = False
        self._sets: dict[int, MemorySets] = {}  # by the end of their chunk

    def reset(self) -> None:
        """Forget the sequence and the text that was planned for."""
        super().reset()
        self._is_planned = False

    def plan(self, tokens: Tokens) -> None:
        """Choose the memory sets of a text, of which the sequence will be the beginning. The sequence must be empty."""
        ids = check.token_ids("ReferenceLlama.plan", tokens, self.n_vocab)
        size = self.kv.chunk_size
        ends = range(size, len(ids), size)  # of the chunks that have one after them
        choose = self._random if self._memory == "random" else self._upper_bound
        self._sets = dict(zip(ends, choose(ids, ends), strict=False)) if ends else {}
        self._is_planned = True

    def eval(
        self,
        tokens: Tokens,
        *,
        logits: Literal["last", "all"] = "last",
        progress: Progress | None = None,
        dense_tail: int = 0,
        decode: bool = False,
    ) -> None:
        """As `Llama.eval`."""
        if not self._is_planned:
            self.plan(tokens)
        done = self.n_tokens
        end = done + len(tokens)
        outputs = []
        for start, stop in self._parts(done, end):
            self._set_memory(start)
            super().eval(
                tokens[start - done : stop - done],
                logits=logits,
                progress=None if progress is None else _shifted(progress, start - done, len(tokens)),
                dense_tail=min(stop - start, max(0, dense_tail - (end - stop))),
                decode=decode,
            )
            outputs.append(self.logits)
        if logits == "all" and len(outputs) > 1:
            self._logits = np.concatenate(outputs)

    def _parts(self, start: int, end: int) -> list[tuple[int, int]]:
        size = self.kv.chunk_size
        return list(pairwise([start, *range((start // size + 1) * size, end, size), end]))

    def _set_memory(self, position: int) -> None:
        for layer, indices in self._sets.get(position, {}).items():
            self.kv.set_memory_indices(layer, indices)

    def _random(self, ids: NDArray[np.int32], ends: range) -> Iterator[MemorySets]:
        rng = np.random.default_rng([self._random_seed, zlib.crc32(ids.tobytes())])
        # Before the first chunk there is no memory set: all -1.
        last = {layer: self.kv.memory_indices(layer) for layer in self.kv.layers}
        for end in ends:
            for layer, indices in last.items():
                candidates = np.zeros((len(indices), end), dtype=np.bool_)
                heads, slots = np.nonzero(indices >= 0)
                candidates[heads, indices[heads, slots]] = True
                candidates[:, end - ends.step :] = True
                values = np.where(candidates, rng.random(candidates.shape, dtype=np.float32), np.float32(-np.inf))
                last[layer] = memory_set(values, self._config)
            yield dict(last)

    def _upper_bound(self, ids: NDArray[np.int32], ends: range) -> Iterator[MemorySets]:
        masses = chunk_masses(self._weights, ids, chunk_size=ends.step, n_threads=self._params.n_threads)
        for end, of_next_chunk in zip(ends, islice(masses, 1, None), strict=False):
            yield {layer: memory_set(mass[:, :end], self._config) for layer, mass in of_next_chunk.items()}


def memory_set(values: NDArray[np.float32], h2o: H2OConfig) -> NDArray[np.int32]:
    """The sinks, the local window, and the positions of largest value: int32 [n_head_kv, M], ascending, padded with -1.

    Values are float32 [n_head_kv, end], of every position before the end of a chunk; -inf for those that cannot be
    chosen. Of equal values the lower position wins.
    """
    n_heads, end = values.shape
    always = np.zeros(end, dtype=np.bool_)
    always[: h2o.sink_tokens] = True
    always[max(end - h2o.local_window, 0) :] = True
    n = min(h2o.memory_size, end)
    best = np.argsort(-np.where(always, np.float32(np.inf), values), axis=1, kind="stable")[:, :n]
    indices = np.full((n_heads, h2o.memory_size), -1, dtype=np.int32)
    indices[:, :n] = np.sort(best, axis=1)
    return indices


def _shifted(progress: Progress, n_before: int, n_total: int) -> Progress:
    return lambda n_done, _: progress(n_before + n_done, n_total)
