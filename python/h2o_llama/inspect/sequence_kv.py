"""A look inside the KV cache of a sequence."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from types import MappingProxyType

import numpy as np
from numpy.typing import ArrayLike, NDArray

from h2o_llama import _core
from h2o_llama._internal import check
from h2o_llama.config import H2OConfig
from h2o_llama.errors import H2OError
from h2o_llama.inspect.kv import KVStats, KVView
from h2o_llama.lossless import LosslessStats
from h2o_llama.sequence._state import State


class SequenceKV(KVView):
    """`Sequence.kv`. With h2o=None only `n_tokens` and `stats` work, the others raise H2OError."""

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

    def _memory_end(self, kv: _core.KV, layer: int) -> int:
        return kv.info.n_memory_sets * kv.info.chunk_size

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

        Raises
        ------
        ValueError
            If they are anything else.
        H2OError
            If the sequence does not end where a chunk ends.
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

        Raises
        ------
        H2OError
            With lookup_budget=0; or if they are not kept, as for earlier tiles without keep_history=True, in a
            restored snapshot, or where tokens of the tile were removed.

        Examples
        --------
        >>> llm.eval(llm.tokenize("a text of some length, " * 10))  # in chunks of 64 and tiles of 32
        >>> llm.kv.extra_keys(1, 0, 7).shape  # tile 7 begins at position 224
        (86,)
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
                    f"[{self._owner}] extra keys of tile {tile} are not kept. Earlier tiles keep theirs with "
                    "keep_history=True. Tokens that attend to everything choose none"
                )
            return keys

    def attention(self, layer: int, head: int) -> NDArray[np.float32]:
        """Attention of the last tokens of a prompt, such as the question, to each position, float32 [n_tokens].

        For each position it is the sum of softmax weights over the dense tail of the last `eval` with
        keep_attention=True, and over the query heads of the KV head. With scores and `scorer="distant"`, a query does
        not count for the last L positions before it.

        Raises
        ------
        H2OError
            If no call has kept it: with keep_attention=True, a dense_tail, and K and V in memory it is kept.

        Examples
        --------
        >>> llm.eval(llm.tokenize("a text of some length, " * 10), dense_tail=8, keep_attention=True)
        >>> llm.kv.attention(1, 0).shape
        (230,)
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

        Raises
        ------
        H2OError
            Without keep_history=True, or after restoring a snapshot of a sequence without it.

        Examples
        --------
        >>> llm.eval(llm.tokenize("a text of some length, " * 10))  # of a Llama with keep_history=True
        >>> len(llm.kv.history), llm.kv.history[0][1].shape
        (3, (2, 7))
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
