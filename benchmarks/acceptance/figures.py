"""The figures of the gate. Each measurement yields (bound's name, case, value)."""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from acceptance import lossless, memory, stored
from acceptance.prompts import LENGTHS, TURNS, Tokens, prompts, synthetic
from h2o_llama import H2OConfig, Llama, LosslessConfig, Model
from h2o_llama.eval._losses import read_windows, summary

Figure = tuple[str, str, float]

N_AFTER = 256
"""Tokens after a prompt whose losses are compared."""

TARGET_RATIO = 3.2

_CHUNK = 1024
_LOSSY_CHUNK = 256  # so that short prompts have closed chunks, too
_FRONT = 2  # layers
_PLACES = range(7_000, 8_000, 250)  # on the grid of chunks where prompts end


@dataclass(frozen=True)
class Gate:
    """The measured model, with its weights loaded, the text, and the number of threads.

    `long` is how many tokens the packaged model reads for the memory of a process.
    """

    weights: Model
    text: bytes
    threads: int | None
    long: int

    def figures(self) -> Iterator[Figure]:
        """Each of the gate's figures."""
        for part in (
            self.lossy,
            self.lossless,
            self.cold,
            self.speed,
            self.stored,
            self.process,
        ):
            yield from part()

    def open(
        self, h2o: H2OConfig | None, n_ctx: int, chunk: int = _CHUNK, lossless: LosslessConfig | None = None
    ) -> Llama:
        return Llama(
            self.weights,
            n_ctx=n_ctx,
            n_ubatch=chunk,
            n_batch=4096,
            n_threads=self.threads,
            h2o=h2o,
            cold_store_compression=lossless,
        )

    @cached_property
    def tokens(self) -> Tokens:
        return np.array(self.weights.tokenize(self.text), dtype=np.int32)

    @cached_property
    def prompts(self) -> dict[str, list[Tokens]]:
        return dict(prompts(self.weights, self.text, self.tokens, N_AFTER))

    def lossy(self) -> Iterator[Figure]:
        """Evicting to a ratio, into a cold store: the reached ratio, and the cost of the text after it."""
        h2o = H2OConfig(
            chunk_size=_LOSSY_CHUNK,
            evict=True,
            cold_store="memory",
            lookup_budget=stored.N_LOOKUP,
            research={"keep_ratio": 1 / TARGET_RATIO},
        )
        n_ctx = max(TURNS, *LENGTHS.values()) + N_AFTER
        with self.open(None, n_ctx) as dense, self.open(h2o, n_ctx, _LOSSY_CHUNK) as llm:
            for name, parts in self.prompts.items():
                found = [self._added(dense, {name: llm}, tokens, _LOSSY_CHUNK)[name] for tokens in parts]
                yield "lossy_ppl", name, statistics.geometric_mean(found)
                yield "lossy", name, llm.kv.stats.lossy_ratio
            llm.reset()
            llm.eval(synthetic(llm, LENGTHS["long"]))
            yield "lossy", "one token over and over", llm.kv.stats.lossy_ratio

    def _added(self, dense: Llama, llms: dict[str, Llama], tokens: Tokens, chunk: int) -> dict[str, float]:
        """Perplexity of the tokens after a prompt over dense attention's."""
        first = len(tokens) - N_AFTER
        found, _ = read_windows(dense, llms, tokens[None], first, chunk)
        return {name: float(np.exp(summary(losses)["nats_added"])) for name, losses in found.items()}

    def lossless(self) -> Iterator[Figure]:
        """K and V of real text; all of it is decoded and compared."""
        with self.open(H2OConfig(), lossless.GROUP) as llm:
            llm.eval(self.prompts["medium"][0][: lossless.GROUP])
            rows = lossless.measure(llm)
            front = [row for row in rows if row.layer in llm.kv.layers[:_FRONT]]
        yield "front", "F16", lossless.ratio(front)
        yield "all", "F16", lossless.ratio(rows)
        raw = sum(row.raw for row in rows)
        yield "encode", "F16", raw / sum(row.encode_s for row in rows) / 1e6
        yield "decode", "F16", raw / sum(row.decode_s for row in rows) / 1e6
        yield "fallbacks", "F16", sum(row.stored >= row.raw for row in rows)

    def cold(self) -> Iterator[Figure]:
        """Places all over the chunk grid: what the text after a prompt costs with a cold store."""
        sizes = {
            name: getattr(_COLD, name) for name in ("local_window", "heavy_budget", "sink_tokens", "lookup_budget")
        }
        doubled = replace(_COLD, **{name: 2 * size for name, size in sizes.items()})
        n_ctx = _PLACES.stop + N_AFTER
        tokens = self.tokens
        ratios: dict[str, list[float]] = {"cold_ppl": [], "cold_ppl_double": []}
        with self.open(None, n_ctx) as dense, self.open(_COLD, n_ctx) as cold, self.open(doubled, n_ctx) as double:
            llms = dict(zip(ratios, (cold, double), strict=True))
            for i, n in enumerate(_PLACES):
                start = i * (len(tokens) - n_ctx) // len(_PLACES)
                for name, ratio in self._added(dense, llms, tokens[start : start + n + N_AFTER], _CHUNK).items():
                    ratios[name].append(ratio)
        for name, values in ratios.items():
            yield name, f"prompts of {_PLACES[0]:,} to {_PLACES[-1]:,}", statistics.geometric_mean(values)

    def speed(self) -> Iterator[Figure]:
        """In turns: generation with a cold store, and without."""
        tokens = self.prompts["long"][0]
        with self.open(_COLD, len(tokens)) as cold, self.open(H2OConfig(evict=True), len(tokens)) as evict:
            for llm in (cold, evict):
                llm.eval(tokens[:-N_AFTER])
            parts = np.split(tokens[-N_AFTER:], 8)
            ratios = [stored.seconds(evict, part) / stored.seconds(cold, part) for part in parts]
        yield "cold_speed", "long", statistics.median(ratios)

    def stored(self) -> Iterator[Figure]:
        """The cold store compressed: speed, results and memory against the raw one."""
        n = LENGTHS["long"] + stored.N_ROUNDS * stored.CHUNK
        tokens = self.tokens[:n]
        yield from stored.figures(lambda h2o, lossless: self.open(h2o, n, stored.CHUNK, lossless), tokens)
        found = stored.memory(self.weights.model_path, tokens)
        if found is not None:
            yield "store_rss", "long", found

    def process(self) -> Iterator[Figure]:
        """A process that reads for long."""
        with tempfile.TemporaryDirectory() as folder:
            found = memory.peaks(self.long, folder)
        if found is not None:
            first, last = found
            yield "cold_rss", f"packaged model, {self.long:,} tokens", last / first


_COLD = H2OConfig(evict=True, cold_store="memory")
