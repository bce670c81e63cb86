"""Looking inside: which tokens each KV head kept, and why."""

from abc import ABC, abstractmethod
from contextlib import AbstractContextManager
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from h2o_llama import _core
from h2o_llama._internal import check
from h2o_llama.errors import H2OError
from h2o_llama.lossless import LosslessStats


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
        these that rewinding to a boundary needs. The last boundary has one; with keep_history=True the first boundary
        and the latest seven have one, or fewer where the copies are large.
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

    Raises
    ------
    ValueError
        For a layer, head or tile that the cache does not have, and after `close()`.
    H2OError
        If the cache is in use by another call.
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

    @abstractmethod
    def _memory_end(self, kv: _core.KV, layer: int) -> int:
        """End of the chunk that the layer's current memory set was built for; 0 if none was built."""

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
        """(start, stop) of every chunk begun; the last one may be partial.

        Examples
        --------
        >>> llm.eval(llm.tokenize("x" * 150))
        >>> llm.kv.chunk_boundaries
        [(0, 64), (64, 128), (128, 150)]
        """
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
        """The current memory set: positions, int32 [n_head_kv, M], ascending, padded at the end with -1.

        Examples
        --------
        >>> llm.eval(llm.tokenize("a text of some length, " * 10))
        >>> llm.kv.memory_indices(1).shape, llm.kv.memory_size
        ((2, 7), 7)
        """
        with self._open() as kv:
            return kv.memory_indices(self._layer(kv, layer))

    def local_window_of(self, layer: int, head: int) -> NDArray[np.int32]:
        """The positions of the memory set that are in the local window, int32 [k], ascending.

        Examples
        --------
        >>> llm.eval(llm.tokenize("a text of some length, " * 10))
        >>> llm.kv.local_window_of(1, 0)
        array([189, 190, 191], dtype=int32)
        """
        return self._parts(layer, head)[0]

    def heavy_hitters(self, layer: int, head: int) -> NDArray[np.int32]:
        """The positions of the memory set that are neither sink nor local window, int32 [k], ascending.

        Examples
        --------
        >>> llm.eval(llm.tokenize("a text of some length, " * 10))
        >>> len(llm.kv.heavy_hitters(1, 0)) == llm.h2o.heavy_budget
        True
        """
        return self._parts(layer, head)[1]

    def _parts(self, layer: int, head: int) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        with self._open() as kv:
            layer = self._layer(kv, layer)
            row = kv.memory_indices(layer)[self._head(kv, layer, head)]
            row = row[row >= 0]
            is_local = row >= self._memory_end(kv, layer) - kv.info.local_window
            return row[is_local], row[~is_local & (row >= kv.info.sink_tokens)]

    def scores(self, layer: int) -> NDArray[np.float32]:
        """The score of each position so far, float32 [n_head_kv, n_tokens]: `H2OConfig.scorer` ranks by scores.

        NaN at evicted positions. With heavy_budget=0 there are scores only if keep_history=True; an H2OError otherwise.

        With "sum" the attention mass that the position has received: the sum of softmax weights over all queries that
        saw it and over the query heads of the KV head. "distant" counts only queries at least L positions later.

        Examples
        --------
        >>> llm.eval(llm.tokenize("a text of some length, " * 10))
        >>> llm.kv.scores(1).shape
        (2, 230)
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
            return kv.get_k(self._layer(kv, layer), 0, kv.info.n_tokens)

    def values(self, layer: int) -> NDArray[np.float32]:
        """V as the cache holds it, dequantised and unrotated, float32 [n_head_kv, n_tokens, head_dim].

        NaN at evicted positions.
        """
        with self._open() as kv:
            return kv.get_v(self._layer(kv, layer), 0, kv.info.n_tokens)

    @property
    def stats(self) -> KVStats:
        """Counts, milliseconds and bytes."""
        with self._open() as kv:
            return KVStats(**kv.stats)
