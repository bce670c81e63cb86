"""A look inside the KV cache of a `Llama`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from h2o_llama import _core
from h2o_llama.errors import H2OError
from h2o_llama.kv import KVStats, KVView, read_history

if TYPE_CHECKING:
    from h2o_llama.llama import Llama


class LlamaKV(KVView):
    """`Llama.kv`. With h2o=None only `n_tokens` and `stats` work, the others raise H2OError."""

    _owner = "Llama.kv"

    def __init__(self, llm: Llama, record: bool) -> None:
        self._llm = llm
        self._record = record

    @contextmanager
    def _open(self) -> Iterator[_core.KV]:
        with self._llm.use_context() as context:
            kv = _core.KV.of_context(context)
            if kv is None:
                raise H2OError(f"[{self._owner}] H2O is off: pass h2o=H2OConfig() to Llama")
            yield kv

    def _memory_end(self, kv: _core.KV, layer: int) -> int:
        return kv.info.n_memory_sets * kv.info.chunk_size

    @property
    def n_tokens(self) -> int:
        """Tokens in the sequence."""
        return self._llm.n_tokens

    @property
    def stats(self) -> KVStats:
        """Counts, milliseconds and bytes."""
        with self._llm.use_context() as context:
            kv = _core.KV.of_context(context)
            return KVStats(kv_bytes=context.kv_bytes) if kv is None else KVStats.of(kv.stats)

    @property
    def history(self) -> list[Mapping[int, NDArray[np.int32]]]:
        """The memory sets of all chunks so far, M_0 first: mappings from layer to int32 [n_head_kv, M].

        Raises
        ------
        H2OError
            Without record=True.
        """
        with self._open() as kv:
            if not self._record:
                raise H2OError(f"[{self._owner}] history is not recorded: pass record=True to Llama")
            return read_history(kv)
