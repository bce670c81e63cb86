"""A look inside the KV cache of a sequence."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from h2o_llama import _core
from h2o_llama._internal import check
from h2o_llama.config import H2OConfig
from h2o_llama.errors import H2OError
from h2o_llama.inspect.kv import KVStats, KVView, read_history
from h2o_llama.lossless import LosslessStats

if TYPE_CHECKING:
    from h2o_llama.sequence.sequence import Sequence


class SequenceKV(KVView):
    """`Sequence.kv`. With h2o=None only `n_tokens` and `stats` work, the others raise H2OError."""

    def __init__(self, sequence: Sequence, owner: str, record: bool) -> None:
        self._sequence = sequence
        self._owner = owner
        self._record = record

    @contextmanager
    def _open(self) -> Iterator[_core.KV]:
        with self._sequence._use_context() as context:
            kv = _core.KV.of_context(context)
            if kv is None:
                raise H2OError(f"[{self._owner}] H2O is off: pass h2o=H2OConfig() to Llama")
            yield kv

    def _memory_end(self, kv: _core.KV, layer: int) -> int:
        return kv.info.n_memory_sets * kv.info.chunk_size

    @property
    def n_tokens(self) -> int:
        """Tokens in the sequence."""
        return self._sequence.n_tokens

    @property
    def stats(self) -> KVStats:
        """Counts, milliseconds and bytes."""
        with self._sequence._use_context() as context:
            kv = _core.KV.of_context(context)
            h2o = self._sequence.h2o
            stats = KVStats(kv_bytes=context.kv_bytes) if kv is None or h2o is None else _with_memory(kv, h2o)
            return replace(stats, drafted_tokens=context.n_drafted, accepted_tokens=context.n_accepted)

    def set_memory_indices(self, layer: int, indices: ArrayLike) -> None:
        """Replace the memory set that the next chunk attends to, by a choice of your own.

        Possible when a chunk has just been completed: eval S tokens, set the memory sets of some or all layers, eval
        on. Layers that are not set keep the choice of `H2OConfig.scorer`.

        Parameters
        ----------
        layer : int
            Layer.
        indices : array_like, integer [n_head_kv, M]
            For every KV head min(M, n_tokens) positions of the sequence (fewer with `keep_ratio`), strictly ascending,
            padded at the end with -1. With `shared_heads` the same for all.

        Raises
        ------
        ValueError
            If they are anything else.
        H2OError
            If the sequence does not end where a chunk ends.
        """
        with self._open() as kv:
            layer, info = self._layer(kv, layer), kv.info
            if self._sequence.h2o is not None and self._sequence.h2o.evict:
                raise ValueError(f"[{self._owner}] with evict=True memory sets cannot be set: positions are gone")
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
            if self._sequence.h2o is not None and self._sequence.h2o.shared_heads and (array != array[0]).any():
                raise ValueError(f"[{self._owner}] with shared_heads=True all rows of indices must be equal")
            kv.set_memory_indices(layer, np.ascontiguousarray(array, dtype=np.int32))

    def lookup_indices(self, tile: int) -> NDArray[np.int32]:
        """What the queries of a tile have looked up: positions, and the query that asked, int32 [k, 2], by the query.

        A query sees the newest `lookup_budget` positions of this and earlier tiles up to and including its own.

        Parameters
        ----------
        tile : int
            Tile i holds the positions from i * `H2OConfig.tile` on.

        Raises
        ------
        ValueError
            If the sequence has no such tile.
        H2OError
            With lookup_budget=0 or retrieval="index", or if the tile is not in the last two chunks and there is no
            record=True.
        """
        with self._open() as kv:
            info = kv.info
            if info.lookup_budget == 0:
                raise H2OError(f"[{self._owner}] nothing is looked up: pass H2OConfig(lookup_budget=…)")
            if self._sequence.h2o is not None and self._sequence.h2o.has_key_index:
                raise H2OError(
                    f"[{self._owner}] with retrieval='index' every query, layer and head has positions of its own, "
                    "which are not kept: retrieval='ngrams' has the same for all"
                )
            i = check.integer(self._owner, "tile", tile, 0, -(-info.n_tokens // info.tile) - 1)
            if i * info.tile < info.lookup_start:
                raise H2OError(
                    f"[{self._owner}] tile {i} is before position {info.lookup_start}, from where on lookups are kept: "
                    "pass record=True to Llama"
                )
            return kv.lookup(i)

    @property
    def history(self) -> list[Mapping[int, NDArray[np.int32]]]:
        """The memory sets of all chunks so far, M_0 first: mappings from layer to int32 [n_head_kv, M].

        Raises
        ------
        H2OError
            Without record=True, or after `Llama.restore` of what was not recorded.

        Examples
        --------
        >>> llm.eval(llm.tokenize("a text of some length, " * 10))  # of a Llama with record=True
        >>> len(llm.kv.history), llm.kv.history[0][1].shape
        (3, (2, 19))
        """
        with self._open() as kv:
            if not self._record:
                raise H2OError(f"[{self._owner}] history is not recorded: pass record=True to Llama")
            try:
                return read_history(kv)
            except ValueError:
                raise H2OError(
                    f"[{self._owner}] history is not complete: the restored snapshot was made without record=True"
                ) from None


def _with_memory(kv: _core.KV, h2o: H2OConfig) -> KVStats:
    """The core's statistics, and what the memory sets hold of the closed chunks."""
    info = kv.info
    closed = info.n_memory_sets * info.chunk_size
    kept = kv.n_memory(closed)
    lossless = kv.lossless_stats
    last = 0 if closed == 0 else kv.n_memory(closed - info.chunk_size) + info.chunk_size - kept
    return replace(
        KVStats.of(kv.stats),
        n_tokens=info.n_tokens,
        closed_tokens=closed,
        kept_tokens=kept,
        floor_tokens=min(info.sink_tokens + info.local_window, closed),
        target_tokens=min(info.memory_size, closed) if h2o.keep_ratio is None else h2o.keep_ratio * closed,
        evicted_tokens=closed - kept if h2o.evict else 0,
        last_evicted_tokens=last if h2o.evict else 0,
        lossless=None if lossless is None else LosslessStats.of(lossless),
    )
