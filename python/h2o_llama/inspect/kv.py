"""Looking inside: which tokens each KV head kept, and why."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from types import MappingProxyType

import numpy as np
from numpy.typing import ArrayLike, NDArray

from h2o_llama import _core
from h2o_llama._internal import check
from h2o_llama.config import H2OConfig
from h2o_llama.errors import H2OError
from h2o_llama.lossless import LosslessStats
from h2o_llama.sequence._state import State


@dataclass(frozen=True)
class KVStats:
    """Counts since the last reset, and sizes.

    Without H2O all but `drafted_tokens`, `accepted_tokens` and `kv_bytes` is 0.

    Attributes
    ----------
    single_pass_runs, phase1_runs, phase2_runs, decode_steps : int
        Passes through the model: chunks under "single_pass"; under "two_phase" first phases (one per prefill call) and
        second phases (one per chunk); generated tokens, each with its draft.
    tail_runs : int
        Passes for tokens of a dense tail, one for each chunk that it reaches into.
    graphs_reused : int
        How many of these passes used the graph of the one before, instead of building it anew.
    prefill_tokens : int
        Prompt tokens processed.
    drafted_tokens, accepted_tokens : int
        Tokens that `generate` computed ahead, and how many of them it came to.
    single_pass_ms, phase1_ms, phase2_ms, decode_ms, tail_ms, select_ms : float
        Milliseconds in each of them, and in building memory sets. A pass for several sequences is shared out.
    gather_ms, attention_ms, score_ms : float
        With profile=True, milliseconds in gathering K and V, in attention (which gathers by itself where it is one
        operator; choosing by the index of keys is part of it) and in adding to the scores. The rest is the layers'
        products, norms and RoPE. Decode steps are counted where attention is one operator.
    selections : int
        Memory sets built (layers times chunks).
    kv_bytes, index_bytes, cold_bytes, score_bytes, memory_bytes, intra_bytes : int
        Bytes of the K and V cache, the index of keys, the cold store, the scores, the memory
        sets, and of the (m, l, o) that phase 1 leaves for phase 2, which all sequences share. Without H2O `kv_bytes` is
        that of all sequences.
    side_bytes : int
        Bytes of the layers that H2O leaves to llama.cpp: rows of sliding windows, recurrent states, and the copies of
        these that rewinding to a boundary or to a call's start needs: at most eight, fewer where they are large.
    token_bytes : int
        Bytes of one token's K and V in all layers.
    n_tokens, closed_tokens, kept_tokens : int
        Tokens of the text; of its chunks whose memory sets are built; of these, how many each memory set holds.
    floor_tokens, target_tokens : int, float
        How many closed tokens a memory set always holds (sinks and local window), and how many it should hold by
        `keep_ratio`, or by M.
    evicted_tokens, last_evicted_tokens : int
        With evict=True, the closed tokens that each layer and KV head has dropped, in all and when the last chunk was
        closed. `select_ms` is the time that it took, with choosing them.
    lossless : LosslessStats or None
        The cold store's codec, if `Llama` was given a `LosslessConfig`. A reset does not clear these.
    """

    single_pass_runs: int = 0
    phase1_runs: int = 0
    phase2_runs: int = 0
    decode_steps: int = 0
    tail_runs: int = 0
    graphs_reused: int = 0
    prefill_tokens: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    single_pass_ms: float = 0.0
    phase1_ms: float = 0.0
    phase2_ms: float = 0.0
    decode_ms: float = 0.0
    tail_ms: float = 0.0
    select_ms: float = 0.0
    gather_ms: float = 0.0
    attention_ms: float = 0.0
    score_ms: float = 0.0
    selections: int = 0
    kv_bytes: int = 0
    index_bytes: int = 0
    side_bytes: int = 0
    cold_bytes: int = 0
    score_bytes: int = 0
    memory_bytes: int = 0
    intra_bytes: int = 0
    token_bytes: int = 0
    n_tokens: int = 0
    closed_tokens: int = 0
    kept_tokens: int = 0
    floor_tokens: int = 0
    target_tokens: float = 0.0
    evicted_tokens: int = 0
    last_evicted_tokens: int = 0
    lossless: LosslessStats | None = None

    @property
    def keep_ratio(self) -> float:
        """Part of the closed tokens that a memory set holds; 1 before the first chunk is closed."""
        return self.kept_tokens / self.closed_tokens if self.closed_tokens else 1.0

    @property
    def lossy_ratio(self) -> float:
        """How many times fewer tokens a memory set holds than were closed: 1 / `keep_ratio`."""
        return 1 / self.keep_ratio

    @property
    def state_bytes(self) -> int:
        """Bytes of all but K and V: index of keys, scores, memory sets, phase 1's results."""
        return self.index_bytes + self.score_bytes + self.memory_bytes + self.intra_bytes


class KVView(ABC):
    """Read access to a KV cache with scores and memory sets.

    Layers are the model's layer indices, heads are KV heads, positions count from the beginning of the sequence. Every
    array is a copy.

    Raises ValueError for a layer, head or tile that the cache does not have, and after `close()`; H2OError if the cache
    is in use by another call.
    """

    _owner: str

    @abstractmethod
    def _open(self) -> AbstractContextManager[_core.KV]:
        """The core's cache, for one call."""

    def _info(self) -> _core.KVInfo:
        with self._open() as kv:
            return kv.info

    def _layer(self, kv: _core.KV, layer: int) -> int:
        layers = kv.layers
        index = check.integer(self._owner, "layer", layer, 0)
        if index not in layers:
            raise ValueError(f"[{self._owner}] layer {index} has no K/V in the cache, expected one of {layers}")
        return index

    def _head(self, kv: _core.KV, layer: int, head: int) -> int:
        return check.integer(self._owner, "head", head, 0, kv.n_head_kv(layer) - 1)

    @property
    def n_tokens(self) -> int:
        """Tokens in the sequence."""
        return self._info().n_tokens

    @property
    def chunk_size(self) -> int:
        """S, the tokens per chunk."""
        return self._info().chunk_size

    @property
    def memory_size(self) -> int:
        """M, the positions in a full memory set."""
        return self._info().memory_size

    @property
    def chunk_index(self) -> int:
        """Number of chunks begun, ceil(n_tokens / S)."""
        return self._info().chunk_index

    @property
    def chunk_boundaries(self) -> list[tuple[int, int]]:
        """(start, stop) of every chunk begun; the last one may be partial."""
        info = self._info()
        starts = range(0, info.n_tokens, info.chunk_size)
        return [(start, min(start + info.chunk_size, info.n_tokens)) for start in starts]

    @property
    def memory_initialized(self) -> bool:
        """Whether a memory set was built: when the second chunk's first token came."""
        return self._info().n_memory_sets > 0

    @property
    def layers(self) -> list[int]:
        """The layers that have K/V in the cache."""
        with self._open() as kv:
            return kv.layers

    def memory_indices(self, layer: int) -> NDArray[np.int32]:
        """The current memory set: positions, int32 [n_head_kv, M], ascending, padded at the end with -1."""
        with self._open() as kv:
            return kv.memory_indices(self._layer(kv, layer))

    def local_window_of(self, layer: int, head: int) -> NDArray[np.int32]:
        """The positions of the memory set that are in the local window, int32 [k], ascending."""
        return self._parts(layer, head)[0]

    def heavy_hitters(self, layer: int, head: int) -> NDArray[np.int32]:
        """The positions of the memory set that are neither sink nor local window, int32 [k], ascending."""
        return self._parts(layer, head)[1]

    def _parts(self, layer: int, head: int) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        with self._open() as kv:
            layer = self._layer(kv, layer)
            row = kv.memory_indices(layer)[self._head(kv, layer, head)]
            row = row[row >= 0]
            is_local = row >= kv.memory_end(layer) - kv.info.local_window
            return row[is_local], row[~is_local & (row >= kv.info.sink_tokens)]

    def scores(self, layer: int) -> NDArray[np.float32]:
        """The score of each position so far, float32 [n_head_kv, n_tokens]: `H2OConfig.scorer` ranks by scores.

        NaN at evicted positions. With heavy_budget=0 there are scores only if keep_history=True; an H2OError otherwise.

        With "sum" the attention mass that the position has received: the sum of softmax weights over all queries that
        saw it and over the query heads of the KV head. "distant" counts only queries at least L positions later.
        """
        with self._open() as kv:
            layer = self._layer(kv, layer)
            if not kv.info.has_scores:
                raise H2OError(
                    f"[{self._owner}] scores of this text were not kept, as no heavy hitters are ranked: pass "
                    "H2OConfig(heavy_budget=…), or keep_history=True to Llama"
                )
            return kv.scores(layer)

    def keys(self, layer: int) -> NDArray[np.float32]:
        """K as the cache holds it (after RoPE), dequantised and unrotated, float32 [n_head_kv, n_tokens, head_dim].

        NaN at evicted positions.
        """
        with self._open() as kv:
            return kv.get_k(self._layer(kv, layer), kv.info.n_tokens)

    def values(self, layer: int) -> NDArray[np.float32]:
        """V as the cache holds it, dequantised and unrotated, float32 [n_head_kv, n_tokens, head_dim].

        NaN at evicted positions.
        """
        with self._open() as kv:
            return kv.get_v(self._layer(kv, layer), kv.info.n_tokens)

    @property
    def stats(self) -> KVStats:
        """Counts, milliseconds and bytes."""
        with self._open() as kv:
            return KVStats(**kv.stats)


class SequenceKV(KVView):
    """`Sequence.kv`. With h2o=None only `n_tokens` and `stats` work, the others raise H2OError.

    Examples
    --------
    >>> text = llm.tokenize("a text of some length, " * 10)  # 230 tokens, in chunks of 64 and tiles of 32
    >>> llm.eval(text, dense_tail=6, keep_attention=True)
    >>> kv = llm.kv
    >>> kv.chunk_boundaries[-1], kv.memory_indices(1).shape, kv.scores(1).shape
    ((192, 230), (2, 7), (2, 230))
    >>> kv.local_window_of(1, 0), len(kv.heavy_hitters(1, 0))
    (array([189, 190, 191], dtype=int32), 0)
    >>> kv.extra_keys(1, 0, 6).shape, kv.attention(1, 0).shape  # tile 6 begins at position 192
    ((92,), (230,))
    >>> len(kv.history), kv.history[0][1].shape  # of a Llama with keep_history=True
    (3, (2, 7))
    """

    def __init__(self, state: State) -> None:
        self._state = state
        self._owner = f"{state.owner}.kv"
        self._h2o = state.engine.params.h2o

    @contextmanager
    def _open(self) -> Iterator[_core.KV]:
        with self._state.used() as context:
            kv = _core.KV.of_context(context)
            if kv is None:
                raise H2OError(f"[{self._owner}] H2O is off: pass h2o=H2OConfig() to Llama")
            yield kv

    @property
    def n_tokens(self) -> int:
        """Tokens in the sequence."""
        with self._state.used() as context:
            return context.n_tokens

    @property
    def stats(self) -> KVStats:
        """Counts, milliseconds and bytes."""
        with self._state.used() as context:
            kv = _core.KV.of_context(context)
            stats = (
                KVStats(kv_bytes=context.kv_bytes) if kv is None or self._h2o is None else _with_memory(kv, self._h2o)
            )
            return replace(stats, drafted_tokens=self._state.drafted, accepted_tokens=self._state.accepted)

    def set_memory_indices(self, layer: int, indices: ArrayLike) -> None:
        """Replace the memory set that the next chunk attends to, by a choice of your own.

        Possible when a chunk has just been completed: eval S tokens, set the memory sets of some or all layers, eval
        on. Layers that are not set keep the choice of `H2OConfig.scorer`.

        `indices` are integers [n_head_kv, M]: for every KV head min(M, n_tokens) positions of the sequence (fewer with
        `keep_ratio`), strictly ascending, padded at the end with -1. With `shared_heads` they are the same for all.

        Raises ValueError if they are anything else, H2OError if the sequence does not end where a chunk ends.
        """
        with self._open() as kv:
            layer, info = self._layer(kv, layer), kv.info
            if self._h2o is not None and self._h2o.evict:
                raise ValueError(f"[{self._owner}] with evict=True memory sets cannot be set: the rest is evicted")
            if info.n_tokens == 0 or info.n_tokens % info.chunk_size:
                raise H2OError(
                    f"[{self._owner}] a memory set can be set when a chunk of {info.chunk_size} tokens has just been "
                    f"completed, but the sequence has {info.n_tokens} tokens: eval up to the chunk's end first"
                )
            shape, n = (kv.n_head_kv(layer), info.memory_size), kv.n_memory(info.n_tokens)
            try:
                array = np.asarray(indices)
            except ValueError:  # ragged
                array = np.empty(0)
            if array.shape != shape or array.dtype.kind not in "iu":
                raise check.bad_argument(self._owner, "indices", f"an integer array of shape {shape}", indices)
            kept = array[:, :n]
            is_valid = kept.min() >= 0 and kept.max() < info.n_tokens and (np.diff(kept.astype(np.int64)) > 0).all()
            if not is_valid or (array[:, n:] != -1).any():
                raise ValueError(
                    f"[{self._owner}] every row of indices must hold {n} strictly ascending positions from 0 to "
                    f"{info.n_tokens - 1}, then only -1"
                )
            if self._h2o is not None and self._h2o.shared_heads and (array != array[0]).any():
                raise ValueError(f"[{self._owner}] with shared_heads=True all rows of indices must be equal")
            kv.set_memory_indices(layer, np.ascontiguousarray(array, dtype=np.int32))

    def extra_keys(self, layer: int, head: int, tile: int) -> NDArray[np.int32]:
        """The positions that a tile's queries read in addition to chunk and memory set, int32 [n], ascending.

        The queries chose them together; where several calls share a tile, these are the last call's choice. Tokens
        that attend to everything (a dense tail, decode="full") choose none.

        A chunk has k = ceil(S / T) tiles, T = `H2OConfig.tile`: tile i of chunk c is number c * k + i.

        Raises H2OError with lookup_budget=0; or if they are not kept, as in a restored snapshot, where tokens of the
        tile were removed, and, without keep_history=True, for all tiles but a prompt's last one.
        """
        with self._open() as kv:
            info = kv.info
            layer = self._layer(kv, layer)
            head = self._head(kv, layer, head)
            if info.lookup_budget == 0:
                raise H2OError(f"[{self._owner}] nothing chooses extra keys: pass H2OConfig(lookup_budget=…)")
            chunk, n = divmod(info.n_tokens - 1, info.chunk_size)
            last = chunk * -(-info.chunk_size // info.tile) + n // info.tile if info.n_tokens else -1
            keys = kv.extra_keys(layer, head, check.integer(self._owner, "tile", tile, 0, last))
            if keys is None:
                raise H2OError(
                    f"[{self._owner}] extra keys of tile {tile} are not kept. Earlier tiles, and generated tokens, "
                    "keep theirs with keep_history=True. Tokens that attend to everything choose none"
                )
            return keys

    def attention(self, layer: int, head: int) -> NDArray[np.float32]:
        """Attention of the last tokens of a prompt, such as the question, to each position, float32 [n_tokens].

        For each position it is the sum of softmax weights over the dense tail of the last `eval` with
        keep_attention=True, and over the query heads of the KV head. With scores and `scorer="distant"`, a query does
        not count for the last L positions before it.

        Raises H2OError if no call has kept it: with keep_attention=True, a dense_tail, and K and V in memory it is
        kept.
        """
        with self._open() as kv:
            layer = self._layer(kv, layer)
            head = self._head(kv, layer, head)
            weights = kv.attention(layer)
            if weights is None:
                raise H2OError(
                    f"[{self._owner}] no attention is kept: pass dense_tail and keep_attention=True to `eval`, without "
                    "eviction, and for a layer that is not dense"
                )
            found: NDArray[np.float32] = weights[head]
            return found

    @property
    def history(self) -> list[Mapping[int, NDArray[np.int32]]]:
        """The memory sets of all chunks so far, M_0 first: mappings from layer to int32 [n_head_kv, M].

        Raises H2OError without keep_history=True, or after restoring a snapshot of a sequence without it.
        """
        with self._open() as kv:
            if not self._state.engine.params.keep_history:
                raise H2OError(f"[{self._owner}] history is not kept: pass keep_history=True to Llama")
            try:
                n = kv.info.n_memory_sets
                return [MappingProxyType({layer: kv.history(i, layer) for layer in kv.layers}) for i in range(n)]
            except ValueError:
                raise H2OError(
                    f"[{self._owner}] history is not complete: the restored snapshot was made without keep_history=True"
                ) from None


def _with_memory(kv: _core.KV, h2o: H2OConfig) -> KVStats:
    """The core's statistics, and what the memory sets hold of the closed chunks."""
    info = kv.info
    closed = info.n_memory_sets * info.chunk_size
    kept = kv.n_memory(closed)
    lossless = kv.lossless_stats
    last = 0 if closed == 0 else kv.n_memory(closed - info.chunk_size) + info.chunk_size - kept
    return replace(
        KVStats(**kv.stats),
        n_tokens=info.n_tokens,
        closed_tokens=closed,
        kept_tokens=kept,
        floor_tokens=min(info.sink_tokens + info.local_window, closed),
        target_tokens=min(info.memory_size, closed) if h2o.keep_ratio is None else h2o.keep_ratio * closed,
        evicted_tokens=closed - kept if h2o.evict else 0,
        last_evicted_tokens=last if h2o.evict else 0,
        lossless=None if lossless is None else LosslessStats(**lossless),
    )
