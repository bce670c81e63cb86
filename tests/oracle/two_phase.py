"""Schedule `two_phase`: all chunks' intra attention first, then chunk by chunk the attention to the memory set."""

from __future__ import annotations

from typing import Any

import numpy as np

from . import layers
from .arrays import Array, IntArray
from .attention import attend
from .gguf_model import GGUFModel
from .sequence import OracleSequence
from .softmax_state import SoftmaxState, fuse
from .weights import UnsupportedModel


class OracleTwoPhase(OracleSequence):
    """Phase 1 writes K and V and starts the scores; phase 2 runs the layers again and fuses."""

    def __init__(self, model: GGUFModel, *args: Any, **kwargs: Any) -> None:
        if not model.hparams.has_two_phases:
            raise UnsupportedModel("two phases with layers that remember something else than the whole text")
        super().__init__(model, *args, **kwargs)

    @property
    def chunk_sink(self) -> int:
        return min(8, self.S // 16)

    def _prefill(self, tokens: IntArray) -> Array:
        start = self.n_tokens
        intra, x = self._phase1(tokens, start)
        if start + len(tokens) <= self.S:
            return x
        pieces = self._pieces(start, len(tokens))
        return np.concatenate([self._phase2(tokens, start, piece, intra) for piece in pieces])

    def _phase1(self, tokens: IntArray, start: int) -> tuple[dict[int, SoftmaxState], Array]:
        """Intra attention of the whole call: states per layer, and the last hidden states."""
        positions = np.arange(start, start + len(tokens), dtype=np.int32)
        states = {}

        def attention(il: int, x: Array) -> Array:
            q = layers.query(self.model, il, x, positions)
            self.cache.append(il, *layers.key_value(self.model, il, x, positions))
            parts = [
                self._intra(il, q[:, first - start : last - start], first, last)
                for first, last in self._pieces(start, len(tokens))
            ]
            states[il] = SoftmaxState(*(np.concatenate(field, axis=1) for field in zip(*parts, strict=True)))
            return states[il].o

        self._extend_scores(len(tokens))
        x = layers.forward(self.model, self.cache, tokens, self.dtype, attention)
        self.cache.n_tokens += len(tokens)
        return states, x

    def _intra(self, il: int, q: Array, first: int, last: int) -> SoftmaxState:
        """Causal attention of the positions [first, last) to their own chunk, scored."""
        chunk_start = first // self.S * self.S
        k, v = self.cache.read(il, slice(chunk_start, last))
        queries, keys = np.arange(first, last), np.arange(chunk_start, last)
        state, colsum = attend(q, k, v, keys <= queries[:, None], self._counts(queries, keys))
        self._add_scores(il, keys[None, :], colsum)
        return state

    def _phase2(self, tokens: IntArray, start: int, piece: tuple[int, int], intra: dict[int, SoftmaxState]) -> Array:
        """Hidden states of one piece, its intra attention fused with that to the memory set."""
        first, last = piece
        self._begin_chunk(first)
        self._look_up(first, last)
        rows = slice(first - start, last - start)
        positions = np.arange(first, last, dtype=np.int32)

        def attention(il: int, x: Array) -> Array:
            state = SoftmaxState(*(field[:, rows] for field in intra[il]))
            if first >= self.S:
                q = layers.query(self.model, il, x, positions)
                state = fuse(self._attend_past(il, q, positions, np.arange(0)), state)
            return state.o

        return layers.forward(self.model, self.cache, tokens[rows], self.dtype, attention)
