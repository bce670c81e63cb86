"""One sequence under H2O, whatever the schedule: the cache, the scores and the memory sets."""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from . import layers
from .arrays import Array, IntArray
from .dense import dense_forward
from .gguf_model import GGUFModel
from .kv_cache import OracleKVCache
from .kv_rounding import round_bf16
from .selection import select_memory

# (chunk, layer, proposed memory set [n_head_kv, M], scores [n_head_kv, n]) -> the memory set to use. Lets a test follow
# the library where two scores are closer than rounding errors, after it has checked that they are.
ChooseMemory = Callable[[int, int, IntArray, Array], IntArray]


class OracleSequence(ABC):
    """Positions are absolute; chunk c is [cS, (c+1)S)."""

    def __init__(
        self,
        model: GGUFModel,
        S: int,
        L: int,
        H: int,
        A: int = 0,
        score_type: str = "f32",
        kv_type: str = "f16",
        dtype: Any = np.float32,
        choose_memory: ChooseMemory | None = None,
    ) -> None:
        self.model = model
        self.S, self.L, self.H, self.A = S, L, H, A
        self.M = A + L + H
        self.score_type = score_type
        self.kv_type = kv_type
        self.dtype = dtype
        self.choose_memory = choose_memory
        self.reset()

    def reset(self) -> None:
        self.cache = OracleKVCache(self.model.hparams, self.kv_type)
        self.history: list[dict[int, IntArray]] = []
        self.logits: Array = np.zeros((0, self.model.hparams.n_vocab), self.dtype)
        self._scores = {
            il: np.zeros((self.model.hparams.n_head_kv[il], 0), self.dtype)
            for il in self.model.hparams.attention_layers
        }

    @property
    def n_tokens(self) -> int:
        return self.cache.n_tokens

    @property
    def chunk_index(self) -> int:
        return -(-self.n_tokens // self.S)

    def scores(self, layer: int) -> Array:
        """[n_head_kv, n_tokens]."""
        return self._scores[layer]

    def memory_indices(self, layer: int) -> IntArray:
        """The newest memory set [n_head_kv, M]; all -1 before the first is built."""
        if not self.history:
            return np.full((self.model.hparams.n_head_kv[layer], self.M), -1, np.int32)
        return self.history[-1][layer]

    def eval(self, tokens: Sequence[int] | IntArray) -> None:
        """One prefill call of at least two tokens. `logits` then has a row for each of them."""
        ids = np.asarray(tokens, dtype=np.int32)
        if len(ids) < 2:
            raise ValueError("a prefill call has at least two tokens; decode_step() takes one")
        self.logits = layers.output_logits(self.model, self._prefill(ids))

    def decode_step(self, token: int) -> None:
        """Dense attention of one token to the whole cache; scores stay as they are. `logits` has one row."""
        self._begin_chunk(self.n_tokens)
        self._extend_scores(1)
        x = dense_forward(self.model, self.cache, np.asarray([token], dtype=np.int32), self.dtype)
        self.logits = layers.output_logits(self.model, x)

    @abstractmethod
    def _prefill(self, tokens: IntArray) -> Array:
        """Append the tokens: cache, scores, memory sets. Returns their last hidden states [len(tokens), n_embd]."""

    def _pieces(self, start: int, n: int) -> list[tuple[int, int]]:
        """Ranges of positions of [start, start + n), cut at the absolute chunk grid."""
        cuts = [start, *range((start // self.S + 1) * self.S, start + n, self.S), start + n]
        return list(itertools.pairwise(cuts))

    def _memory(self, il: int) -> IntArray:
        """The newest memory set without padding, [n_head_kv, min(M, positions seen)]; empty before the first."""
        memory = self.memory_indices(il)
        n_valid = int((memory[0] >= 0).sum())  # the same for every head
        return memory[:, :n_valid]

    def _begin_chunk(self, position: int) -> None:
        """Lazy build: the first token of chunk c makes M_{c-1}, from the scores as they are now."""
        chunk, offset = divmod(position, self.S)
        if offset or not chunk:
            return
        end = chunk * self.S
        built = {}
        for il, scores in self._scores.items():
            memory = np.stack(
                [
                    select_memory(row[:end], previous, end - self.S, end, L=self.L, H=self.H, A=self.A)
                    for row, previous in zip(scores, self.memory_indices(il), strict=True)
                ]
            )
            if self.choose_memory is not None:
                memory = self.choose_memory(chunk - 1, il, memory, scores[:, :end])
            built[il] = memory
        self.history.append(built)

    def _extend_scores(self, n: int) -> None:
        for il, scores in self._scores.items():
            self._scores[il] = np.pad(scores, ((0, 0), (0, n)))

    def _add_scores(self, il: int, positions: IntArray, colsum: Array) -> None:
        """positions broadcasts to colsum [n_head_kv, n]; no position occurs twice in a row."""
        scores = self._scores[il]
        where = np.broadcast_to(positions, colsum.shape)
        total = np.take_along_axis(scores, where, axis=1) + colsum
        if self.score_type == "bf16":
            total = round_bf16(total).astype(self.dtype)
        np.put_along_axis(scores, where, total, axis=1)
