"""How the cold store is compressed, and what came of it."""

from dataclasses import dataclass

from h2o_llama._internal import check

_OWNER = "LosslessConfig"


@dataclass(frozen=True)
class LosslessConfig:
    """How a cold store compresses evicted K and V.

    Nothing is lost: logits, memory sets, K and V are the same, bit for bit, with every setting. Threads of their
    own encode a chunk that was closed while the next one is computed. A few rows are decoded together, so that a
    looked-up row takes little time.

    Raises ValueError if a value has the wrong type or is out of range.

    Parameters
    ----------
    n_threads : int, default 2
        How many threads encode, in addition to the computation's.
    max_queue : int, default 8
        How many chunks wait for them at most. A further one stays raw until the next one is stored.

    Examples
    --------
    >>> h2o = H2OConfig(chunk_size=64, evict=True, cold_store="memory")
    >>> with Llama(model, n_ctx=1024, h2o=h2o, cold_store_compression=LosslessConfig()) as llm:
    ...     llm.eval(llm.tokenize("a text of some length, " * 40))
    ...     print(llm.kv.stats.cold_bytes > 0)
    True
    """

    n_threads: int = 2
    max_queue: int = 8

    def __post_init__(self) -> None:
        for name, high in (("n_threads", check.MAX_THREADS), ("max_queue", 2**16)):
            object.__setattr__(self, name, check.integer(_OWNER, name, getattr(self, name), 1, high))

    def as_text(self) -> dict[str, str]:
        """The core's options."""
        return {"lossless": "on", "codec_threads": str(self.n_threads), "codec_max_queue": str(self.max_queue)}


@dataclass(frozen=True)
class LosslessStats:
    """What the codec of a cold store has done since the `Llama` was opened, for all sequences together.

    A block is a chunk's rows of one layer's K or V.

    Attributes
    ----------
    encoded_blocks, raw_blocks, failed_blocks : int
        Blocks that became shorter, that did not, and that could not be encoded or stored: these and the raw ones are
        stored raw.
    skipped_blocks : int
        Blocks of chunks that found the queue full. They are tried again when the next chunk is stored.
    k_bytes, v_bytes, stored_k_bytes, stored_v_bytes : int
        Bytes of the first three kinds: of the raw rows, and as stored.
    waiting_chunks, queue_peak : int
        Chunks that are not encoded yet; the most tasks that ever waited for a thread.
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

    @property
    def ratio(self) -> float:
        """Raw bytes of K and V over their stored bytes; 1 before anything is encoded."""
        stored = self.stored_k_bytes + self.stored_v_bytes
        return (self.k_bytes + self.v_bytes) / stored if stored else 1.0
