"""What each figure must reach."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Bound:
    """A figure's title, its limit, whether it may not be below (else not above) that, and how it is written."""

    title: str
    limit: float
    is_least: bool
    format: str = "{:.3f}"

    def holds(self, value: float) -> bool:
        """False for NaN."""
        return value >= self.limit if self.is_least else value <= self.limit

    @property
    def text(self) -> str:
        return ("≥ " if self.is_least else "≤ ") + self.format.format(self.limit)


BOUNDS = {
    "lossy": Bound("closed tokens over kept ones, layers that evict", 3.2, is_least=True),
    "lossy_ppl": Bound("continuation perplexity over dense, evicting to that ratio, cold store", 1.02, is_least=False),
    "front": Bound("lossless ratio, first two layers, in groups", 1.40, is_least=True),
    "all": Bound("lossless ratio, all layers, in groups", 1.18, is_least=True),
    "fallbacks": Bound("blocks that were stored raw", 0, is_least=False, format="{:.0f}"),
    "queue_peak": Bound("jobs waiting for the codec's threads, at most", 8, is_least=False, format="{:.0f}"),
    "decode_us": Bound("decoding, µs (p95): measured", 1, is_least=True, format="{:.0f}"),
    "encode": Bound("encoding, MB/s per core", 400, is_least=True, format="{:,.0f}"),
    "decode": Bound("decoding, MB/s per core", 1200, is_least=True, format="{:,.0f}"),
    "cold_ppl": Bound("continuation perplexity over dense, cold store, M + B = 512", 1.02, is_least=False),
    "cold_ppl_double": Bound("continuation perplexity over dense, cold store, M + B = 1,024", 1.01, is_least=False),
    "cold_speed": Bound("generation with cold store over eviction alone", 0.8, is_least=True, format="{:.2f}"),
    "full_speed": Bound("generation with rows only checked, over the raw store", 0.97, is_least=True, format="{:.2f}"),
    "store_speed": Bound("generation with an encoded store, over the raw one", 0.95, is_least=True, format="{:.2f}"),
    "store_same": Bound("rounds of it with the same logits, bit for bit", 4, is_least=True, format="{:.0f}"),
    "store_rss": Bound("resident memory of encoded rows over raw ones, less 1 / ratio", 0.05, is_least=False),
    "cold_rss": Bound("peak memory with a cold store on disk, over that at 65,536 tokens", 1.1, is_least=False),
}
