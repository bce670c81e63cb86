"""The figures of a benchmark, from what was measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any, Literal

from h2o_llama.bench.case import Case, Sample
from h2o_llama.bench.token_bytes import kv_read
from h2o_llama.inspect.kv import KVStats

Row = dict[str, Any]
Test = Literal["prefill", "generation"]


@dataclass
class Result:
    """What was measured of a case, and what its context held.

    `is_prompt`: its prefill was asked for, not only what is generated after it. `peak_rss` as in `bench.alone.Alone`.
    """

    case: Case
    is_prompt: bool
    stats: KVStats
    peak_rss: int | None
    samples: list[Sample] = field(default_factory=list)


def rows(results: Sequence[Result], weight_bytes: int, bandwidth: float | None) -> list[Row]:
    """A row for each test, length and mode, in this order. Results without samples are left out.

    "test" ("prefill" or "generation"), "n_tokens" (of the prompt), "mode", "group" (`Mode.group`), "n" (samples),
    "seconds" (median, for all tokens), "tokens_per_s", "over_dense" (over the better dense mode of that length with
    upstream's products), "over_own_dense" (of H2O, over the better one with our own: what attention makes), "kv_bytes"
    (as allocated), "state_bytes" (index of keys, scores, memory sets, phase 1's results), "peak_rss" (None with
    "generation"), "samples" (seconds). Only with "generation", else None: "read_bytes" (that a token reads:
    `weight_bytes`, K and V), "read_per_s", and "of_bandwidth", its share of what the machine reads per second.
    """
    found = [r for r in results if r.samples]
    prefills = [_prefill(r) for r in found if r.is_prompt]
    generations = [_generation(r, weight_bytes, bandwidth) for r in found if r.case.n_gen > 0]
    return [*_over_dense(found, prefills), *_over_dense(found, generations)]


def _prefill(result: Result) -> Row:
    row = _row("prefill", result, [s.prefill_s for s in result.samples], result.case.n_tokens)
    return row | {"peak_rss": result.peak_rss, "read_bytes": None, "read_per_s": None, "of_bandwidth": None}


def _generation(result: Result, weight_bytes: int, bandwidth: float | None) -> Row:
    case = result.case
    row = _row("generation", result, [s.generation_s or 0.0 for s in result.samples], case.n_gen)
    positions = range(case.n_tokens + 1, case.n_used)
    h2o = case.mode.h2o
    evicts = h2o is not None and h2o.evict
    kv_bytes = result.stats.token_bytes if evicts else result.stats.kv_bytes / case.n_ctx
    per_position = (kv_bytes, result.stats.index_bytes / case.n_ctx)
    n_bytes = weight_bytes + kv_read(*per_position, positions, h2o, case.chunk_size)
    per_s = n_bytes * row["tokens_per_s"]
    share = None if bandwidth is None else per_s / bandwidth
    return row | {"peak_rss": None, "read_bytes": n_bytes, "read_per_s": per_s, "of_bandwidth": share}


def _row(test: Test, result: Result, seconds: list[float], n_computed: int) -> Row:
    case, stats = result.case, result.stats
    return {
        "test": test,
        "n_tokens": case.n_tokens,
        "mode": case.mode.name,
        "group": case.mode.group,
        "n": len(seconds),
        "seconds": median(seconds),
        "tokens_per_s": n_computed / median(seconds),
        "over_dense": None,
        "over_own_dense": None,
        "kv_bytes": stats.kv_bytes,
        "state_bytes": stats.state_bytes,
        "samples": seconds,
    }


def _over_dense(results: Sequence[Result], rows: list[Row]) -> list[Row]:
    """The rows with their speed over the better dense one's of the same length and products."""
    dense = {r.case.mode.name: r.case.mode.products for r in results if r.case.mode.is_dense}
    best: dict[tuple[int, str], float] = {}
    for row in rows:
        if row["mode"] in dense:
            key = row["n_tokens"], dense[row["mode"]]
            best[key] = max(best.get(key, 0.0), row["tokens_per_s"])
    for row in rows:
        upstream, own = (best.get((row["n_tokens"], products)) for products in ("upstream", "own"))
        if upstream is not None:
            row["over_dense"] = row["tokens_per_s"] / upstream
        if own is not None and row["mode"] not in dense:
            row["over_own_dense"] = row["tokens_per_s"] / own
    return rows


def of_groups(rows: Sequence[Row]) -> list[Row]:
    """The fastest row of each group, for each test and length, with the group as its mode."""
    best: dict[tuple[Test, int, str], Row] = {}
    for row in rows:
        key = row["test"], row["n_tokens"], row["group"]
        if key not in best or row["tokens_per_s"] > best[key]["tokens_per_s"]:
            best[key] = row | {"mode": row["group"]}
    return list(best.values())
