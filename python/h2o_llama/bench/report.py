"""What a benchmark found, and its files."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from h2o_llama.bench.measure import Bench
from h2o_llama.bench.rows import Row

# "samples" is a list, and only in JSON.
COLUMNS = (
    *("test", "n_tokens", "mode", "group", "n", "seconds", "tokens_per_s", "over_dense", "over_own_dense"),
    *("kv_bytes", "state_bytes", "peak_rss", "read_bytes", "read_per_s", "of_bandwidth"),
)


@dataclass(frozen=True)
class Report:
    """Everything that a benchmark says: on what, of what and how it was measured, and `h2o_llama.bench.rows.rows`.

    `bandwidth` is the bytes per second that the CPU reads from memory. `cpu_share` is the least of all prefills, see
    `bench.case.Sample`; None with layers on a GPU, where it says nothing.
    """

    machine: dict[str, Any]
    model: dict[str, Any]
    plan: dict[str, Any]
    bandwidth: float | None
    cpu_share: float | None
    rows: list[Row]

    @classmethod
    def of(cls, bench: Bench, started: dict[str, Any]) -> Report:
        """What a benchmark has found so far. `started` is the machine as it was described before."""
        plan, weights = bench.plan, bench.weights
        shares = [s.cpu_share for r in bench.results for s in r.samples]
        return cls(
            machine=started,
            model={
                "file": Path(weights.model_path).name,
                "desc": weights.desc,
                "bytes": weights.model_bytes,
                "read_bytes": bench.weight_bytes,
            },
            plan={
                "chunk_size": plan.chunk_size,
                "n_threads": plan.n_threads,
                "n_gpu_layers": plan.n_gpu_layers,
                "n_gen": plan.n_gen,
                "repetitions": plan.repetitions,
                "changes": json.loads(json.dumps(dict(plan.changes), default=str)),
                "modes": [asdict(mode) for mode in plan.modes],
            },
            bandwidth=bench.bandwidth,
            cpu_share=min(shares, default=None) if plan.n_gpu_layers == 0 else None,
            rows=bench.rows(),
        )

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=1) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Report:
        return cls(**json.loads(text))

    def to_csv(self) -> str:
        """A line for each row; what there is none of is empty."""
        out = io.StringIO()
        writer = csv.DictWriter(out, COLUMNS, extrasaction="ignore", lineterminator="\n")
        writer.writeheader()
        writer.writerows(self.rows)
        return out.getvalue()
