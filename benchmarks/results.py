"""What a run measured, and its JSON file."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from h2o_llama import KVStats
from settings import CHUNK_SIZE, DENSE, SETTINGS, Setting


@dataclass(frozen=True)
class Sample:
    """One prefill.

    Attributes
    ----------
    seconds : float
        Wall time.
    cpu_share : float
        CPU time over wall time and threads. Clearly below 1, other processes took part of the machine.
    stats : KVStats
        What `Llama.kv.stats` said after it.
    """

    seconds: float
    cpu_share: float
    stats: KVStats


@dataclass(frozen=True)
class Case:
    """A setting at a prompt length."""

    setting: Setting
    n_tokens: int

    def __str__(self) -> str:
        return f"N = {self.n_tokens:,}, {self.setting.name}"


@dataclass
class Result:
    """All prefills of one case.

    Attributes
    ----------
    samples : list of Sample
    peak_rss : int
        Largest resident set, in bytes, of a process that did nothing else.
    profile : Sample or None
        One more prefill, with profile=True.
    """

    case: Case
    samples: list[Sample]
    peak_rss: int
    profile: Sample | None = None

    @property
    def seconds(self) -> float:
        return median(s.seconds for s in self.samples)

    @property
    def speed(self) -> float:
        """Tokens per second."""
        return self.case.n_tokens / self.seconds

    @property
    def stats(self) -> KVStats:
        """Counts and bytes are the same after every prefill."""
        return self.samples[0].stats

    @property
    def select_ms(self) -> float | None:
        """Milliseconds of building one layer's memory set; None if none was built."""
        if not self.stats.selections:
            return None
        return median(s.stats.select_ms for s in self.samples) / self.stats.selections

    @property
    def other_rss(self) -> int:
        """Peak resident set without what H2O and llama.cpp say they hold for the sequence, in bytes."""
        return self.peak_rss - self.stats.kv_bytes - self.stats.score_bytes - self.stats.memory_bytes


@dataclass(frozen=True)
class Run:
    """Everything that one call of the benchmark measured."""

    machine: dict[str, Any]
    model: dict[str, Any]
    plan: dict[str, Any]
    results: dict[Case, Result]
    kernel: dict[str, Any] | None

    @property
    def lengths(self) -> list[int]:
        return sorted({case.n_tokens for case in self.results})

    def get(self, setting: Setting, n_tokens: int) -> Result | None:
        return self.results.get(Case(setting, n_tokens))

    def of(self, setting: Setting) -> list[Result]:
        """Results of a setting, by N."""
        return sorted((r for c, r in self.results.items() if c.setting is setting), key=lambda r: r.case.n_tokens)

    def speed(self, setting: Setting, n_tokens: int) -> float | None:
        """Tokens per second."""
        result = self.get(setting, n_tokens)
        return None if result is None else result.speed

    def dense_speed(self, n_tokens: int) -> float | None:
        """Tokens per second of the better dense setting."""
        return max((s for setting in DENSE if (s := self.speed(setting, n_tokens))), default=None)

    @property
    def first_speed(self) -> float | None:
        """Tokens per second of the better dense setting in its first chunk."""
        return self.dense_speed(CHUNK_SIZE)

    @property
    def cpu_share(self) -> float:
        """The smallest of all prefills."""
        return min(s.cpu_share for r in self.results.values() for s in r.samples)

    def save(self, path: Path) -> None:
        content = {
            "machine": self.machine,
            "model": self.model,
            "plan": self.plan,
            "prefills": [_result_to_json(r) for r in self.results.values()],
            "kernel": self.kernel,
        }
        path.write_text(json.dumps(content, indent=2) + "\n")

    @classmethod
    def load(cls, path: Path) -> Run:
        content = json.loads(path.read_text())
        results = _by_case(_result_from_json(r) for r in content["prefills"])
        return cls(content["machine"], content["model"], content["plan"], results, content["kernel"])


def ratio(a: float | None, b: float | None) -> float | None:
    """a / b, or None if either was not measured."""
    return None if a is None or b is None else a / b


def _by_case(results: Iterable[Result]) -> dict[Case, Result]:
    return {r.case: r for r in results}


def _result_to_json(result: Result) -> dict[str, Any]:
    return {
        "setting": result.case.setting.name,
        "n_tokens": result.case.n_tokens,
        "tokens_per_second": result.speed,
        "peak_rss": result.peak_rss,
        "samples": [asdict(s) for s in result.samples],
        "profile": result.profile and asdict(result.profile),
    }


def _result_from_json(content: dict[str, Any]) -> Result:
    setting = next(s for s in SETTINGS if s.name == content["setting"])
    samples = [_sample_from_json(s) for s in content["samples"]]
    profile = content["profile"] and _sample_from_json(content["profile"])
    return Result(Case(setting, content["n_tokens"]), samples, content["peak_rss"], profile)


def _sample_from_json(content: dict[str, Any]) -> Sample:
    return Sample(content["seconds"], content["cpu_share"], KVStats(**content["stats"]))
