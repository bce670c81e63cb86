"""What one sequence keeps of its tokens: K and V as rounded by the cache, and the state of layers without them."""

from collections.abc import Callable

import numpy as np

from . import layers
from .model import GGUFModel, HParams
from .rounding import BLOCK, Array, CacheRounding, rotate, round_8_to_4_bits, round_q4_0, round_q8_0


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
        # Latents are cached once: the values are the first part of the keys.
        self._has_latents = hparams.rank > 0
        self._round_k = CacheRounding(kv_type, hparams.head_dim, keys=True, latents=self._has_latents)
        self._round_v = CacheRounding(kv_type, hparams.value_dim, keys=False, latents=self._has_latents)
        self._has_index, self._index_noise = has_index, index_noise
        self._rows: dict[int, list[Array]] = {}  # K, V, and the index
        # The last input rows of each short convolution, [width - 1, n_embd].
        self.conv: dict[int, Array] = {}

    def append(self, il: int, k: Array, v: Array) -> None:
        rounded = self._round_k(k)
        new = [rounded, rounded[..., : v.shape[-1]] if self._has_latents else self._round_v(v)]
        if self._has_index:
            is_of_bytes = self._round_k.rotation > 0  # the cache's own rows
            index = self.rotated(k)
            new.append(round_8_to_4_bits(round_q8_0(index)) if is_of_bytes else round_q4_0(index))
        old = self._rows.get(il)
        self._rows[il] = new if old is None else [np.concatenate(pair, axis=1) for pair in zip(old, new, strict=True)]

    def rotated(self, x: Array) -> Array:
        """Keys or queries as the index has them: rotated as the cache does, or by blocks where it does not."""
        rotated = rotate(x, self._round_k.rotation or BLOCK)
        return rotated if self._index_noise is None else self._index_noise(rotated)

    def index(self, il: int, positions: slice) -> Array:
        """Keys in 4 bits, rotated."""
        return self._rows[il][2][:, positions]

    def read(self, il: int, positions: slice) -> tuple[Array, Array]:
        """K and V of a range of positions."""
        k, v = self._rows[il][:2]
        return k[:, positions], v[:, positions]

    def gather(self, il: int, indices: Array) -> tuple[Array, Array]:
        """K and V of each KV head's own positions; indices [n_head_kv, m] without padding."""
        k, v = self._rows[il][:2]
        return np.take_along_axis(k, indices[..., None], axis=1), np.take_along_axis(v, indices[..., None], axis=1)


class CachePositions:
    """Positions in the cache of one sequence, beyond the T tokens that the model was trained for.

    By the definition: keys are stored before RoPE, and rotated whenever they are attended to. The chunk is at the
    last S of T positions, the memory set at those before, and at 0 whatever is further away. So nothing here knows of a
    first rotation, or of differences. A chunk that ends within the trained length has the positions of the text.
    """

    def __init__(self, model: GGUFModel, S: int, n_trained: int, kv_type: str) -> None:
        self._model, self._S, self._n_trained = model, S, n_trained
        self._round = CacheRounding(kv_type, model.hparams.head_dim, keys=True)
        self._keys: dict[int, Array] = {}

    def has(self, position: int) -> bool:
        """Whether the chunk of this position has positions in the cache."""
        return (position // self._S + 1) * self._S > self._n_trained

    def places(self, positions: Array, chunk_start: int) -> Array:
        """Where RoPE has these positions for a chunk that has positions in the cache."""
        return np.maximum(positions - (chunk_start - (self._n_trained - self._S)), 0)

    def append(self, il: int, x: Array) -> None:
        """A layer's keys of the tokens with hidden states x."""
        k, _ = layers.key_value(self._model, il, x, np.zeros(len(x), np.int32))  # rotated by nothing
        self._keys[il] = np.concatenate([self._keys[il], k], axis=1) if il in self._keys else k

    def keys(self, il: int, positions: Array, chunk_start: int) -> Array:
        """Keys [n_head_kv, n, d] of each KV head's own positions [n_head_kv, n], for queries of a chunk."""
        k = np.take_along_axis(self._keys[il], positions[..., None], axis=1)
        places, rope = self.places(positions, chunk_start), self._model.hparams.rope[il]
        return self._round(np.stack([rope(head[:, None], at)[:, 0] for head, at in zip(k, places, strict=True)]))
