"""K and V of one sequence, as rounded by the cache."""

from __future__ import annotations

import numpy as np

from .arrays import Array, IntArray
from .gguf_model import HParams
from .kv_rounding import CacheRounding


class OracleKVCache:
    """Append-only. Per layer: keys and values [n_head_kv, n_tokens, head_dim]."""

    def __init__(self, hparams: HParams, kv_type: str) -> None:
        self.n_tokens = 0
        self._rounding = [CacheRounding(kv_type, hparams.head_dim, keys=keys) for keys in (True, False)]
        self._kv: dict[int, list[Array]] = {}

    def append(self, il: int, k: Array, v: Array) -> None:
        rounded = [rounding(x) for rounding, x in zip(self._rounding, (k, v), strict=True)]
        if il in self._kv:
            rounded = [np.concatenate(pair, axis=1) for pair in zip(self._kv[il], rounded, strict=True)]
        self._kv[il] = rounded

    def read(self, il: int, positions: slice) -> tuple[Array, Array]:
        """K and V of a range of positions."""
        k, v = self._kv[il]
        return k[:, positions], v[:, positions]

    def gather(self, il: int, indices: IntArray) -> tuple[Array, Array]:
        """K and V of each KV head's own positions; indices [n_head_kv, m] without padding."""
        k, v = self._kv[il]
        return np.take_along_axis(k, indices[..., None], axis=1), np.take_along_axis(v, indices[..., None], axis=1)
