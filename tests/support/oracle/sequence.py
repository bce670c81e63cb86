"""One sequence under H2O: the cache, the scores and the memory sets, in each of the two schedules."""

import itertools
import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

import numpy as np

from . import layers
from .attention import SoftmaxState, attend, fuse
from .cache import CachePositions, OracleKVCache
from .model import GGUFModel, UnsupportedModel
from .rounding import Array
from .selection import SCORERS, candidate_ranks, select_memory
from .top_keys import choose_keys, index_budget

# (chunk, layer, proposed memory set [n_head_kv, M], ranks [n_head_kv, n]) -> the memory set to use. Lets a test follow
# the library where two ranks are closer than rounding errors, after it has checked that they are.
ChooseMemory = Callable[[int, int, Array, Array], Array]


class OracleSequence:
    """Positions are absolute; chunk c is [cS, (c+1)S), tile t of a chunk begins tT after it.

    The schedule `single_pass`: chunk by chunk through the model once, with K and V of hidden states that saw the memory
    set.
    """

    chunk_sink = 0  # first positions of each later chunk that are heavy hitters only if nothing else is left

    def __init__(
        self,
        model: GGUFModel,
        S: int,
        L: int,
        H: int,
        A: int = 0,
        kv_type: str = "f16",
        dtype: Any = np.float32,
        choose_memory: ChooseMemory | None = None,
        scorer: str = "sum",
        B: int = 0,
        T: int = 64,
        dense_layers: Sequence[int] = (),
        decode: str = "full",
        keep_ratio: float | None = None,
        block_tokens: int = 16,
        ema_alpha: float = 0.9,
        shared_heads: bool = False,
        positions: str = "text",
        n_ctx_train: int | None = None,
        index_noise: Callable[[Array], Array] | None = None,
    ) -> None:
        self.model, self.dtype, self.choose_memory = model, dtype, choose_memory
        self.S, self.L, self.H, self.A, self.M = S, L, H, A, A + L + H
        self.kv_type, self.scorer = kv_type, SCORERS[scorer]
        self.dense_layers, self.decode = set(dense_layers), decode
        self.keep_ratio, self.block_tokens, self.ema_alpha = keep_ratio, block_tokens, ema_alpha
        self.shared_heads = shared_heads
        self.B, self.T = B, T
        self.cache = OracleKVCache(model.hparams, kv_type, has_index=self.B > 0, index_noise=index_noise)
        n_trained = n_ctx_train or model.hparams.n_ctx_train
        self.cache_positions = CachePositions(model, S, n_trained, kv_type) if positions == "cache" else None
        self.history: list[dict[int, Array]] = []
        # What tiles have chosen by the index of keys, by layer and tile: of each KV head, ascending.
        self.chosen: dict[tuple[int, int], list[Array]] = {}
        self.logits: Array = np.zeros((0, model.hparams.n_vocab), dtype)
        self._scores = {
            il: np.zeros((model.hparams.n_head_kv[il], 0), dtype)
            for il in model.hparams.attention_layers
            if il not in self.dense_layers
        }
        # The part of generated tokens of the open chunk: added when the chunk closes, or a prompt follows.
        self._pending = {il: np.zeros_like(scores) for il, scores in self._scores.items()}

    @property
    def n_tokens(self) -> int:
        return self.cache.n_tokens

    @property
    def chunk_index(self) -> int:
        return -(-self.n_tokens // self.S)

    def scores(self, layer: int) -> Array:
        """[n_head_kv, n_tokens]."""
        scores = self._scores[layer] + self._pending[layer]
        if self.scorer.blocks:
            h = self.model.hparams
            scores = scores * ((1 - self.ema_alpha) / (h.n_head[layer] // h.n_head_kv[layer] * self.S))
        return scores

    def memory_indices(self, layer: int) -> Array:
        """The newest memory set [n_head_kv, M]; all -1 before the first is built."""
        if not self.history:
            return np.full((self.model.hparams.n_head_kv[layer], self.M), -1, np.int32)
        return self.history[-1][layer]

    def _tile_of(self, position: int) -> int:
        chunk, offset = divmod(position, self.S)
        return chunk * -(-self.S // self.T) + offset // self.T

    def eval(self, tokens: Sequence[int] | Array, dense_tail: int = 0) -> None:
        """One prefill call. `logits` then has a row for each of them.

        The last `dense_tail` of them attend to all positions before them, and look nothing up.
        """
        ids = np.asarray(tokens, dtype=np.int32)
        self._settle()
        n_sparse = len(ids) - min(dense_tail, len(ids))
        parts = [self._prefill(ids[:n_sparse])] if n_sparse else []
        if n_sparse < len(ids):
            start, tail = self.n_tokens, ids[n_sparse:]
            parts += [self._dense(tail[a - start : b - start]) for a, b in self._pieces(start, len(tail))]
        self.logits = layers.output_logits(self.model, np.concatenate(parts))

    def _dense(self, tokens: Array, is_scored: bool = True) -> Array:
        """Append tokens that lie in one chunk and attend to everything. Returns their last hidden states."""
        first, last = self.n_tokens, self.n_tokens + len(tokens)
        self._begin_chunk(first)
        self._extend_scores(len(tokens))
        positions = np.arange(first, last, dtype=np.int32)
        keys = np.arange(last)

        def attention(il: int, x: Array) -> Array:
            self.cache.append(il, *layers.key_value(self.model, il, x, positions))
            q = layers.query(self.model, il, x, positions)
            seen = keys <= positions[:, None]
            state, colsum = attend(q, *self.cache.read(il, slice(last)), seen, self._counts(positions, keys))
            if is_scored and il in self._scores:
                self._add_scores(il, keys[None, :], colsum)
            return state.o

        return self._forward(tokens, attention)

    def _forward(self, tokens: Array, attention: layers.AttentionToText) -> Array:
        """Through all layers, which append to the cache."""
        x = layers.forward(self.model, self.cache, tokens, self.dtype, attention)
        self.cache.n_tokens += len(tokens)
        return x

    def decode_step(self, token: int) -> None:
        """A generated token, which attends to what `decode` says. With "full" scores do not change."""
        ids = np.array([token], dtype=np.int32)
        is_sparse = self.decode == "memory"
        rows = self._sparse(ids, is_generated=True) if is_sparse else self._dense(ids, is_scored=False)
        self.logits = layers.output_logits(self.model, rows)

    def _sparse(self, tokens: Array, is_generated: bool = False) -> Array:
        """Append tokens of one chunk, which attend to their past and to it. Returns their last hidden states."""
        first, last = self.n_tokens, self.n_tokens + len(tokens)
        self._begin_chunk(first)
        self._extend_scores(len(tokens))
        positions = np.arange(first, last, dtype=np.int32)

        def attention(il: int, x: Array) -> Array:
            self.cache.append(il, *layers.key_value(self.model, il, x, positions))
            if il in self._scores and self.cache_positions is not None:
                self.cache_positions.append(il, x)
            q = layers.query(self.model, il, x, self._rotations(il, positions))
            if il in self.dense_layers:
                return attend(q, *self.cache.read(il, slice(0, last)), np.arange(last) <= positions[:, None])[0].o
            # One softmax over the chunk so far, causally, and the past.
            chunk = np.arange(first // self.S * self.S, last)
            return self._attend_past(il, q, positions, chunk, is_generated).o

        return self._forward(tokens, attention)

    def _prefill(self, tokens: Array) -> Array:
        """Append the tokens: cache, scores, memory sets. Returns their last hidden states [len(tokens), n_embd]."""
        start = self.n_tokens
        pieces = self._pieces(start, len(tokens))
        return np.concatenate([self._sparse(tokens[first - start : last - start]) for first, last in pieces])

    def _pieces(self, start: int, n: int) -> list[tuple[int, int]]:
        """Ranges of positions of [start, start + n), cut at the absolute chunk grid."""
        cuts = [start, *range((start // self.S + 1) * self.S, start + n, self.S), start + n]
        return list(itertools.pairwise(cuts))

    def _memory(self, il: int) -> Array:
        """The newest memory set without padding, [n_head_kv, min(M, positions seen)]; empty before the first."""
        memory = self.memory_indices(il)
        n_valid = int((memory[0] >= 0).sum())  # the same for every head
        return memory[:, :n_valid]

    def _rotations(self, il: int, positions: Array) -> Array:
        """Where RoPE has queries at these positions of one chunk."""
        if il not in self._scores or self.cache_positions is None or not self.cache_positions.has(int(positions[0])):
            return positions
        return self.cache_positions.places(positions, int(positions[0]) // self.S * self.S)

    def _attend_past(
        self, il: int, q: Array, positions: Array, chunk: Array, is_generated: bool = False
    ) -> SoftmaxState:
        """Attention to the whole memory set, to lookups, and causally to positions of the open chunk.

        One softmax; all but lookups is scored.
        """
        memory = self._memory(il)
        looked_up, is_visible = np.arange(0), np.zeros((len(memory), len(positions), 0), dtype=bool)
        if self.B:
            start = int(positions[0]) // self.S * self.S
            looked_up, index = np.arange(start), self.cache.index(il, slice(0, start))
            # Tiles of a prompt lie on a grid that begins with the chunk, tiles of generated tokens with the call.
            tiles = (positions - (positions[0] if is_generated else start)) // self.T
            is_visible = choose_keys(self.cache.rotated(q), index, memory, index_budget(self.B, self.S, start), tiles)
            for position, visible in zip(positions.tolist(), is_visible.swapaxes(0, 1), strict=True):
                self.chosen[il, self._tile_of(position)] = [np.flatnonzero(row) for row in visible]
        others = np.concatenate([chunk, looked_up])
        keys = np.concatenate([memory, np.broadcast_to(others, (len(memory), len(others)))], axis=1)
        n_scored = keys.shape[1] - len(looked_up)
        # Every head sees the same keys of the chunk, and all of its memory set: that is older than any query.
        in_memory = np.ones((len(positions), memory.shape[1]), dtype=bool)
        shared = np.concatenate([in_memory, chunk <= positions[:, None]], axis=1)
        allowed = np.concatenate(
            [np.broadcast_to(part, (len(memory), *part.shape[-2:])) for part in (shared, is_visible)], axis=2
        )
        k, v = self.cache.gather(il, keys)
        if self.cache_positions is not None and self.cache_positions.has(int(positions[0])):
            k = self.cache_positions.keys(il, keys, int(positions[0]) // self.S * self.S)
        state, colsum = attend(q, k, v, allowed, self._counts(positions, keys))
        self._add_scores(il, keys[:, :n_scored], colsum[:, :n_scored], is_generated)
        return state

    def _begin_chunk(self, position: int) -> None:
        """Lazy build: the first token of chunk c makes M_{c-1}, from the current scores."""
        chunk, offset = divmod(position, self.S)
        if offset or not chunk:
            return
        end = chunk * self.S
        built = {}
        self._settle()
        for il, scores in self._scores.items():
            memory, ranks = self._select(il, end)
            if self.choose_memory is not None:
                memory = self.choose_memory(chunk - 1, il, memory, ranks)
            built[il] = memory
            if self.scorer.blocks:
                for row, kept in zip(scores, memory, strict=True):
                    kept = kept[kept >= 0]
                    row[kept] = np.asarray(self.ema_alpha, self.dtype) * row[kept]
        self.history.append(built)

    def _select(self, il: int, end: int) -> tuple[Array, Array]:
        """The memory set [n_head_kv, M] of the chunk that ends at `end`, and the ranks [n_head_kv, end]."""
        memory, ranks = [], []
        scores = self._scores[il]
        if self.shared_heads:
            scores = np.broadcast_to(scores.mean(axis=0, keepdims=True), scores.shape)
        for row, previous in zip(scores, self.memory_indices(il), strict=True):
            chunk = (previous, end - self.S, end)
            rank = candidate_ranks(
                row[:end],
                *chunk,
                L=self.L,
                A=self.A,
                scorer=self.scorer,
                S=self.S,
                chunk_sink=self.chunk_sink,
                block_tokens=self.block_tokens,
            )
            chosen = select_memory(rank, *chunk, L=self.L, H=self._heavy_budget(end), A=self.A)
            memory.append(np.pad(chosen, (0, self.M - len(chosen)), constant_values=-1))
            ranks.append(rank)
        return np.stack(memory), np.stack(ranks)

    def _heavy_budget(self, end: int) -> int:
        """H, or what of the ratio of [0, end) is left to heavy hitters, in whole blocks."""
        if self.keep_ratio is None:
            return self.H
        unit = self.block_tokens if self.scorer.blocks else 1
        kept = math.ceil(Fraction(str(self.keep_ratio)) * end / unit) * unit
        return max(0, min(kept - self.L - self.A, self.H))

    def _counts(self, queries: Array, keys: Array) -> Array:
        """Which queries [n_q] count for which keys [n_k] or [n_head_kv, n_k]: [.., n_q, n_k]."""
        return self.scorer.counts(queries[:, None], keys[..., None, :], self.L)

    def _extend_scores(self, n: int) -> None:
        for il, scores in self._scores.items():
            self._scores[il] = np.pad(scores, ((0, 0), (0, n)))
            self._pending[il] = np.pad(self._pending[il], ((0, 0), (0, n)))

    def _add_scores(self, il: int, positions: Array, colsum: Array, is_generated: bool = False) -> None:
        """positions broadcasts to colsum [n_head_kv, n]; no position occurs twice in a row."""
        scores = self._pending[il] if is_generated else self._scores[il]
        where = np.broadcast_to(positions, colsum.shape)
        total = np.take_along_axis(scores, where, axis=1) + colsum
        np.put_along_axis(scores, where, total, axis=1)

    def _settle(self) -> None:
        for il, pending in self._pending.items():
            self._scores[il] = self._scores[il] + pending
            pending[:] = 0


class OracleTwoPhase(OracleSequence):
    """The schedule `two_phase`: all chunks' intra attention, then chunk by chunk the attention to the memory set.

    Phase 1 writes K and V and starts the scores; phase 2 runs the layers again and fuses.
    """

    def __init__(self, model: GGUFModel, *args: Any, **kwargs: Any) -> None:
        if not model.hparams.has_two_phases:
            raise UnsupportedModel("two phases with layers that remember something else than the whole text")
        super().__init__(model, *args, **kwargs)
        self.chunk_sink = min(8, self.S // 16)

    def _prefill(self, tokens: Array) -> Array:
        start = self.n_tokens
        intra, x = self._phase1(tokens, start)
        if start + len(tokens) <= self.S:
            return x
        pieces = self._pieces(start, len(tokens))
        return np.concatenate([self._phase2(tokens, start, piece, intra) for piece in pieces])

    def _phase1(self, tokens: Array, start: int) -> tuple[dict[int, SoftmaxState], Array]:
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
        return states, self._forward(tokens, attention)

    def _intra(self, il: int, q: Array, first: int, last: int) -> SoftmaxState:
        """Causal attention of the positions [first, last) to their own chunk, scored."""
        chunk_start = first // self.S * self.S
        k, v = self.cache.read(il, slice(chunk_start, last))
        queries, keys = np.arange(first, last), np.arange(chunk_start, last)
        state, colsum = attend(q, k, v, keys <= queries[:, None], self._counts(queries, keys))
        self._add_scores(il, keys[None, :], colsum)
        return state

    def _phase2(self, tokens: Array, start: int, piece: tuple[int, int], intra: dict[int, SoftmaxState]) -> Array:
        """Hidden states of one piece, its intra attention fused with that to the memory set."""
        first, last = piece
        self._begin_chunk(first)
        rows = slice(first - start, last - start)
        positions = np.arange(first, last, dtype=np.int32)

        def attention(il: int, x: Array) -> Array:
            state = SoftmaxState(*(field[:, rows] for field in intra[il]))
            if first >= self.S:
                q = layers.query(self.model, il, x, positions)
                state = fuse(self._attend_past(il, q, positions, np.arange(0)), state)
            return state.o

        return layers.forward(self.model, self.cache, tokens[rows], self.dtype, attention)


def dense(model: GGUFModel, tokens: Sequence[int] | Array, kv_type: str = "f32") -> OracleSequence:
    """A sequence that has read these tokens in one chunk: each attends to all before it."""
    oracle = OracleSequence(model, S=len(tokens), L=0, H=0, kv_type=kv_type)
    oracle.eval(tokens)
    return oracle
