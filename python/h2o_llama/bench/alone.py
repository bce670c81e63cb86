"""A sample in a process of its own: its peak memory is that of one mode."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from h2o_llama._internal.apart import call_apart, resident_bytes
from h2o_llama.bench.case import Case, Sample, Tokens
from h2o_llama.inspect.kv import KVStats


@dataclass(frozen=True)
class Alone:
    """What a process that did nothing else took, and what its context held at the end.

    `peak_rss` is the largest resident set that it had, in bytes; None where the system does not tell. Weights count as
    far as they were read: they are pages of the model's file.
    """

    sample: Sample
    peak_rss: int | None
    stats: KVStats


def measure_alone(case: Case, model_path: str, tokens: Tokens, **changes: Any) -> Alone:
    """Measure a case in a new process. Raises H2OError if the process fails."""
    name = f"[bench] the process that measures {case.mode.name} at {case.n_tokens:,} tokens"
    return call_apart(name, _measure, case, model_path, tokens[: case.n_used], changes)


def _measure(case: Case, model_path: str, tokens: Tokens, changes: dict[str, Any]) -> Alone:
    with case.open(model_path, **changes) as llm:
        case.warm(llm, tokens)
        return Alone(case.measure(llm, tokens), resident_bytes(peak=True), llm.kv.stats)
