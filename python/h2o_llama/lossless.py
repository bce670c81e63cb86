"""How the cold store is compressed, and what came of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from h2o_llama import _check, _core

_OWNER = "LosslessConfig"
_MAX_CACHE_MB = 2**40


@dataclass(frozen=True)
class LosslessConfig:
    """What is done with the K and V that eviction takes away: those of a cold store.

    Nothing is lost: logits, memory sets, K and V are the same, bit for bit, whatever is chosen here. Threads of their
    own encode a chunk that was closed while the next one is computed.

    Parameters
    ----------
    mode : {"store", "full", "probe"}
        - "store": blocks are stored as frames of the codec, in place of the rows, and decoded when they are read: the
          cold store takes fewer bytes, generation more time.
        - "full": blocks are encoded, decoded and compared; the rows stay as they are. It shows that they come back.
        - "probe": a block in 16 is encoded, only to be counted: what "store" would save.
    codec : {"auto", "zstd", "lz4", "rle"}
        As in `h2o_llama.codec.encode`.
    block_tokens : int, default 16
        Tokens of a block, which is of one layer's K or V and is decoded as a whole. Small ones are decoded sooner, and
        are less compressed.
    threads : int, default 2
        How many encode and decode beside the computation.
    max_queue : int, default 8
        How many chunks wait for them at most. Where there are more, one stays as it is until the next one is stored.
    cache_mb : float, default 32
        Megabytes of what was decoded that are kept: a quarter are blocks, for all sequences together, the rest, of each
        sequence, rows that generated tokens have looked up. The least recently used make room. 0: next to nothing, and
        nothing is decoded ahead.
    strict : bool, default False
        With "store", decode every frame and compare, before the rows go.

    Raises
    ------
    ValueError
        If a value has the wrong type or is out of range.
    """

    mode: Literal["store", "full", "probe"] = "store"
    codec: Literal["auto", "zstd", "lz4", "rle"] = "auto"
    block_tokens: int = 16
    threads: int = 2
    max_queue: int = 8
    cache_mb: float = 32.0
    strict: bool = False

    def __post_init__(self) -> None:
        _check.choice(_OWNER, "mode", self.mode, ("store", "full", "probe"))
        _check.choice(_OWNER, "codec", self.codec, ("auto", "zstd", "lz4", "rle"))
        for name, high in (("block_tokens", _check.INT32_MAX), ("threads", _check.MAX_THREADS), ("max_queue", 2**16)):
            object.__setattr__(self, name, _check.integer(_OWNER, name, getattr(self, name), 1, high))
        object.__setattr__(self, "cache_mb", _check.real(_OWNER, "cache_mb", self.cache_mb, 0.0, _MAX_CACHE_MB))
        object.__setattr__(self, "strict", _check.flag(_OWNER, "strict", self.strict))


@dataclass(frozen=True)
class LosslessStats:
    """What the codec of a cold store has done since the `Llama` was opened, for all sequences together.

    A block is `LosslessConfig.block_tokens` tokens of one layer's K or V.

    Attributes
    ----------
    encoded_blocks, raw_blocks, failed_blocks : int
        Blocks that became shorter, that did not, and that could not be encoded or stored or came back changed: these
        and the raw ones stay as they are.
    skipped_blocks : int
        Blocks of chunks that found the queue full. They are tried again when the next chunk is stored.
    k_bytes, v_bytes, stored_k_bytes, stored_v_bytes : int
        Of the first three kinds: bytes of the rows, and bytes of what became of them.
    waiting_chunks, queue_peak : int
        Chunks that are not encoded yet; the most tasks that ever waited for a thread.
    cache_hits, cache_misses, cache_bytes : int
        Blocks that were read: from the cache, and decoded; bytes in the cache of blocks now.
    ahead_blocks, ahead_used_blocks : int
        Blocks that were decoded ahead, and those of them that were then read from the cache.
    encode_us, decode_us : (float, float, float)
        Microseconds for a block, of the last 4,096: percentiles 50, 95 and 99.
    """

    encoded_blocks: int
    raw_blocks: int
    failed_blocks: int
    skipped_blocks: int
    k_bytes: int
    v_bytes: int
    stored_k_bytes: int
    stored_v_bytes: int
    waiting_chunks: int
    queue_peak: int
    cache_hits: int
    cache_misses: int
    cache_bytes: int
    ahead_blocks: int
    ahead_used_blocks: int
    encode_us: tuple[float, float, float]
    decode_us: tuple[float, float, float]

    @property
    def fallback_blocks(self) -> int:
        """Blocks that did not become shorter, whatever the reason."""
        return self.raw_blocks + self.failed_blocks + self.skipped_blocks

    @property
    def k_ratio(self) -> float:
        """Bytes of K over what became of them; 1 before anything is encoded."""
        return self.k_bytes / self.stored_k_bytes if self.stored_k_bytes else 1.0

    @property
    def v_ratio(self) -> float:
        return self.v_bytes / self.stored_v_bytes if self.stored_v_bytes else 1.0

    @property
    def ratio(self) -> float:
        """Of both together."""
        stored = self.stored_k_bytes + self.stored_v_bytes
        return (self.k_bytes + self.v_bytes) / stored if stored else 1.0

    @classmethod
    def of(cls, stats: _core.LosslessStats) -> LosslessStats:
        (k_bytes, v_bytes), (stored_k_bytes, stored_v_bytes) = stats.bytes_raw, stats.bytes_stored
        encode_50, encode_95, encode_99 = stats.encode_us
        decode_50, decode_95, decode_99 = stats.decode_us
        return cls(
            encoded_blocks=stats.n_encoded,
            raw_blocks=stats.n_raw,
            failed_blocks=stats.n_failed,
            skipped_blocks=stats.n_skipped,
            k_bytes=k_bytes,
            v_bytes=v_bytes,
            stored_k_bytes=stored_k_bytes,
            stored_v_bytes=stored_v_bytes,
            waiting_chunks=stats.n_waiting,
            queue_peak=stats.queue_peak,
            cache_hits=stats.n_hits,
            cache_misses=stats.n_misses,
            cache_bytes=stats.bytes_cache,
            ahead_blocks=stats.n_ahead,
            ahead_used_blocks=stats.n_used,
            encode_us=(encode_50, encode_95, encode_99),
            decode_us=(decode_50, decode_95, decode_99),
        )
