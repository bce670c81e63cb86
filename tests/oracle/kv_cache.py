"""What one sequence keeps of its tokens: K and V as rounded by the cache, and the state of layers without them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from .arrays import Array, IntArray
from .hparams import HParams
from .kv_rounding import Q4_0_BLOCK, CacheRounding, rotate, round_q4_0


class OracleKVCache:
    """Append-only. Per layer: keys and values [n_head_kv, n_tokens, their size], with has_index keys in 4 bits too.

    `index_noise` is what another kernel's rounding would make of keys and queries before the index rounds them.
    """

    def __init__(
        self,
        hparams: HParams,
        kv_type: str,
        has_index: bool = False,
        index_noise: Callable[[Array], Array] | None = None,
    ) -> None:
        self.n_tokens = 0
        self._rounding = [
            CacheRounding(kv_type, hparams.head_dim, keys=True, latents=hparams.latent is not None),
            CacheRounding(kv_type, hparams.value_dim, keys=False, latents=hparams.latent is not None),
        ]
        # Latents are cached once: the values are the first part of the keys.
        self._has_latents = hparams.latent is not None
        self._kv: dict[int, list[Array]] = {}
        self._has_index = has_index
        self._index_noise = index_noise
        # The last input rows of each short convolution, [width - 1, n_embd].
        self.conv: dict[int, Array] = {}
        self._index: dict[int, Array] = {}

    def append(self, il: int, k: Array, v: Array) -> None:
        rounded = [rounding(x) for rounding, x in zip(self._rounding, (k, v), strict=True)]
        if self._has_latents:
            rounded[1] = rounded[0][..., : v.shape[-1]]
        if il in self._kv:
            rounded = [np.concatenate(pair, axis=1) for pair in zip(self._kv[il], rounded, strict=True)]
        self._kv[il] = rounded
        if self._has_index:
            row = round_q4_0(self.rotated(k))
            self._index[il] = np.concatenate([self._index[il], row], axis=1) if il in self._index else row

    def rotated(self, x: Array) -> Array:
        """Keys or queries as the index has them: rotated as the cache does, or by blocks where it does not."""
        rotated = rotate(x, self._rounding[0].rotation or Q4_0_BLOCK)
        return rotated if self._index_noise is None else self._index_noise(rotated)

    def index(self, il: int, positions: slice) -> Array:
        """Keys in 4 bits, rotated."""
        return self._index[il][:, positions]

    def read(self, il: int, positions: slice) -> tuple[Array, Array]:
        """K and V of a range of positions."""
        k, v = self._kv[il]
        return k[:, positions], v[:, positions]

    def gather(self, il: int, indices: IntArray) -> tuple[Array, Array]:
        """K and V of each KV head's own positions; indices [n_head_kv, m] without padding."""
        k, v = self._kv[il]
        return np.take_along_axis(k, indices[..., None], axis=1), np.take_along_axis(v, indices[..., None], axis=1)
