"""The KV cache on its own, for unit tests and research."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
from numpy.typing import ArrayLike, NDArray

from h2o_llama import _core
from h2o_llama._internal import check
from h2o_llama._internal.lock import Lock
from h2o_llama._internal.machine import check_fits, core_errors, kv_bytes_at_least
from h2o_llama.config import H2OConfig
from h2o_llama.inspect.kv import KVView
from h2o_llama.model import HasModel, Model
from h2o_llama.models._files import KV_TYPES


class KVCache(KVView):
    """A KV cache with scores and memory sets that is filled by hand instead of by a model's attention.

    The same code that inference runs: column sums of softmax weights go in, memory sets and gathered K and V come out.

    Raises ValueError if an argument has the wrong type, shape or range; H2OError if the model has no plain KV cache, or
    memory runs out.

    Parameters
    ----------
    model : str, os.PathLike, Model or Llama
        A GGUF file, the name of a fetched model, or a loaded model: it gives the layers, the heads and their sizes.
    kv_size : int
        How many tokens the cache can hold.
    chunk_size, local_window, heavy_budget, sink_tokens : int
        S, L, H and A, see `H2OConfig`.
    scorer, block_tokens, ema_alpha, shared_heads : str, int, float, bool
        How heavy hitters are chosen, see `H2OConfig`; the default is the plain sum of the given scores.
    type_k, type_v : str
        Types of K and V, such as "f16" or "q8_0".

    Examples
    --------
    >>> cache = KVCache(model, kv_size=64, chunk_size=8, local_window=2, heavy_budget=1)
    >>> cache.next_chunk(8)
    >>> n_head_kv = cache.scores(0).shape[0]
    >>> cache.init_chunk_scores(0, 0, np.tile([0, 1, 0, 5, 0, 0, 0, 0], (n_head_kv, 1)))
    >>> cache.build_memory_set(0, 8)
    >>> cache.memory_indices(0)[0]
    array([3, 6, 7], dtype=int32)
    """

    _owner = "KVCache"

    def __init__(
        self,
        model: str | os.PathLike[str] | Model | HasModel,
        *,
        kv_size: int,
        chunk_size: int,
        local_window: int,
        heavy_budget: int,
        sink_tokens: int = 0,
        scorer: str = "sum",
        type_k: str = "f16",
        type_v: str = "f16",
        block_tokens: int = H2OConfig.block_tokens,
        ema_alpha: float = H2OConfig.ema_alpha,
        shared_heads: bool = False,
    ) -> None:
        config = H2OConfig(
            local_window=local_window,
            heavy_budget=heavy_budget,
            sink_tokens=sink_tokens,
            scorer=scorer,
            chunk_size=chunk_size,
            lookup_budget=0,
            research={"block_tokens": block_tokens, "ema_alpha": ema_alpha, "shared_heads": shared_heads},
        )
        kv_size = check.integer(self._owner, "kv_size", kv_size, 1)
        check.choice(self._owner, "type_k", type_k, KV_TYPES)
        check.choice(self._owner, "type_v", type_v, KV_TYPES)

        core_model = Model._of(model)._handle
        needed = kv_bytes_at_least(core_model, kv_size, type_k, type_v)
        check_fits(self._owner, "kv_size", kv_size, needed, "{} for the KV cache")
        self._claim = Lock(self._owner)
        with core_errors():
            self._kv = _core.KVCache(core_model, kv_size, config.as_text(), type_k, type_v)

    @contextmanager
    def _open(self) -> Iterator[_core.KVCache]:
        with self._claim, core_errors():
            yield self._kv

    @property
    def kv_size(self) -> int:
        """How many tokens the cache can hold."""
        return self._info().kv_size

    def reset(self) -> None:
        """Forget everything."""
        with self._open() as kv:
            kv.clear()

    def next_chunk(self, n: int) -> None:
        """Append n tokens to the sequence. Their scores and K/V may be set before or after."""
        with self._open() as kv:
            kv.next_chunk(check.integer(self._owner, "n", n, 0, kv.info.kv_size - kv.info.n_tokens))

    def init_chunk_scores(self, layer: int, start: int, colsum: ArrayLike) -> None:
        """Add column sums of intra attention, float32 [n_head_kv or n_head, n]: score[start + i] += colsum[:, i].

        Rows of query heads are summed in each group.
        """
        with self._open() as kv:
            layer = self._layer(kv, layer)
            array = self._colsum(kv, layer, colsum, None)
            start = check.integer(self._owner, "start", start, 0, kv.info.kv_size - array.shape[1])
            kv.init_chunk_scores(layer, start, array)

    def accumulate_memory_scores(self, layer: int, colsum: ArrayLike) -> None:
        """Add column sums of inter attention, float32 [n_head_kv or n_head, M]: score[memory[i]] += colsum[:, i].

        They are in the order of `memory_indices`. Entries at padding are ignored.
        """
        with self._open() as kv:
            layer = self._layer(kv, layer)
            kv.accumulate_memory_scores(layer, self._colsum(kv, layer, colsum, kv.info.memory_size))

    def build_memory_set(self, layer: int, chunk_end: int) -> None:
        """Build the layer's memory set out of its current one and the chunk that ends before position chunk_end.

        The chunk may be partial. Chunks are built in order, as each memory set is chosen out of the one before; a
        ValueError otherwise.
        """
        with self._open() as kv:
            layer = self._layer(kv, layer)
            end = check.integer(self._owner, "chunk_end", chunk_end, 1, kv.info.kv_size)
            before, chunk_size = kv.memory_end(layer), kv.info.chunk_size
            if not (end - 1) // chunk_size * chunk_size <= before <= end:
                low, high = max(before, 1), min((before // chunk_size + 1) * chunk_size, kv.info.kv_size)
                raise ValueError(
                    f"[{self._owner}] chunk_end must be from {low} to {high}, as chunks are built in order and layer "
                    f"{layer} has a memory set of the first {before} positions, got {end}. Build the chunks between, "
                    "or reset() to begin again"
                )
            kv.build_memory_set(layer, end)

    def set_kv(self, layer: int, start: int, k: ArrayLike, v: ArrayLike) -> None:
        """Write K and V, float32 [n_head_kv, n, head_dim], of positions start to start + n.

        They are rounded to the cache's types.
        """
        with self._open() as kv:
            layer = self._layer(kv, layer)
            n_head_kv = kv.n_head_kv(layer)
            k_array = check.float_array(self._owner, "k", k, (n_head_kv, None, kv.head_size_k(layer)))
            v_array = check.float_array(self._owner, "v", v, (n_head_kv, k_array.shape[1], kv.head_size_v(layer)))
            start = check.integer(self._owner, "start", start, 0, kv.info.kv_size - k_array.shape[1])
            kv.set_kv(layer, start, k_array, v_array)

    def gather_k_memory(self, layer: int) -> NDArray[np.float32]:
        """K of the memory set, gathered as inference does: float32 [n_head_kv, M, head_dim], padding is 0."""
        return self._gather(layer, _core.KV.get_k)

    def gather_v_memory(self, layer: int) -> NDArray[np.float32]:
        """V of the memory set, gathered as inference does: float32 [n_head_kv, M, head_dim], padding is 0."""
        return self._gather(layer, _core.KV.get_v)

    def _gather(self, layer: int, get: Callable[[_core.KV, int, int], NDArray[np.float32]]) -> NDArray[np.float32]:
        with self._open() as kv:
            layer = self._layer(kv, layer)
            positions = kv.memory_indices(layer)[..., None]
            rows = np.take_along_axis(get(kv, layer, kv.info.kv_size), np.maximum(positions, 0), axis=1)
            return np.where(positions >= 0, rows, np.float32(0))

    def _colsum(self, kv: _core.KVCache, layer: int, colsum: ArrayLike, n: int | None) -> NDArray[np.float32]:
        array = check.float_array(self._owner, "colsum", colsum, (None, n))
        rows = (kv.n_head_kv(layer), kv.n_head(layer))
        if array.shape[0] not in rows:
            raise ValueError(
                f"[{self._owner}] colsum must have a row per KV head ({rows[0]}) or per query head ({rows[1]}), "
                f"got {array.shape[0]} rows"
            )
        sums: NDArray[np.float32] = array.reshape(rows[0], len(array) // rows[0], array.shape[1]).sum(axis=1)
        return sums
