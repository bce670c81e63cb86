"""Several sequences generate at once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from h2o_llama import _core
from h2o_llama.sampling import Sampler
from h2o_llama.sequence.engine import Engine
from h2o_llama.sequence.sequence import Sequence


@dataclass(frozen=True)
class Start:
    """Where a sequence begins to generate: checked ids, int32 [n], to append first, which the sampler has seen."""

    sequence: Sequence
    ids: NDArray[np.int32]
    dense_tail: int
    sampler: Sampler


class ManyGenerations(Iterator[dict[Sequence, int]]):
    """What `Llama.generate_many` returns: in each step the next token of every sequence that has not ended."""

    def __init__(self, engine: Engine, starts: list[Start], max_tokens: int | None) -> None:
        self._engine = engine
        self._starts = starts  # prompts that are not in their sequences yet
        self._samplers: dict[Sequence, Sampler] = {}  # of those that generate
        self._n_texts: dict[Sequence, int] = {}
        self._drawn: dict[Sequence, int] = {}  # tokens that a step which failed has drawn: their samplers have them
        self._n_left = max_tokens

    def stop(self, sequence: Sequence) -> None:
        """End a sequence: it gets no more tokens. The others go on."""
        self._starts = [start for start in self._starts if start.sequence is not sequence]
        self._samplers.pop(sequence, None)
        self._drawn.pop(sequence, None)

    def __next__(self) -> dict[Sequence, int]:
        while self._starts:
            start = self._starts[0]
            self._n_texts[start.sequence] = start.sequence._n_texts
            if len(start.ids) > 0:
                start.sequence.eval(start.ids, dense_tail=start.dense_tail)
            self._samplers[start.sequence] = start.sampler
            self._starts.pop(0)
        if self._n_left == 0:
            raise StopIteration
        with self._engine.claim:
            self._draw()
            if not self._drawn:
                raise StopIteration
            self._append(self._drawn)
        tokens, self._drawn = self._drawn, {}
        if self._n_left is not None:
            self._n_left -= 1
        return tokens

    def _draw(self) -> None:
        """The next token of each sequence. Those that have none have ended."""
        for sequence, sampler in list(self._samplers.items()):
            sequence._check_text("Llama.generate_many", self._n_texts[sequence])
            if sequence in self._drawn:
                continue
            context = sequence.open_context()
            token = sampler.sample(context) if context.n_tokens < self._engine.n_ctx else None
            if token is None or self._engine.model.is_eog(token):
                del self._samplers[sequence]
            else:
                self._drawn[sequence] = token

    def _append(self, tokens: dict[Sequence, int]) -> None:
        rows = np.empty((len(tokens), self._engine.model.n_vocab), dtype=np.float32)
        for sequence in tokens:
            sequence.keep_logits(None)
        contexts = [sequence.open_context() for sequence in tokens]
        _core.Context.decode_each(contexts, np.array(list(tokens.values()), dtype=np.int32), rows)
        for sequence, row in zip(tokens, rows, strict=True):
            sequence.keep_logits(row[np.newaxis])
