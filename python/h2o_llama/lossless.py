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

    Examples
    --------
    >>> h2o = H2OConfig(chunk_size=64, evict=True, cold_store="memory")
    >>> with Llama(model, n_ctx=1024, h2o=h2o, cold_store_compression=LosslessConfig()) as llm:
    ...     llm.eval(llm.tokenize("a text of some length, " * 40))
    ...     print(llm.kv.stats.cold_bytes > 0)
    True
    """

    n_threads: int = 2

    def __post_init__(self) -> None:
        n_threads = check.integer(_OWNER, "n_threads", self.n_threads, 1, check.MAX_THREADS)
        object.__setattr__(self, "n_threads", n_threads)

    def as_text(self) -> dict[str, str]:
        """The core's options."""
        return {"lossless": "on", "codec_threads": str(self.n_threads)}


@dataclass(frozen=True)
class LosslessStats:
    """What the codec of a cold store has done since the `Llama` was opened, for all sequences together.

    A block is a chunk's rows of one layer's K or V.

    Attributes
    ----------
    encoded_blocks, raw_blocks, failed_blocks : int
        Blocks that became shorter, that did not, and that could not be encoded or stored: these and the raw ones are
        stored raw.
    k_bytes, v_bytes, stored_k_bytes, stored_v_bytes : int
        Bytes of these: of the raw rows, and as stored.
    waiting_chunks : int
        Chunks that are not encoded yet.
    """

    encoded_blocks: int
    raw_blocks: int
    failed_blocks: int
    k_bytes: int
    v_bytes: int
    stored_k_bytes: int
    stored_v_bytes: int
    waiting_chunks: int

    @property
    def ratio(self) -> float:
        """Raw bytes of K and V over their stored bytes; 1 before anything is encoded."""
        stored = self.stored_k_bytes + self.stored_v_bytes
        return (self.k_bytes + self.v_bytes) / stored if stored else 1.0
