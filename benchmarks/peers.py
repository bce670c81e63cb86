"""The race: one GGUF file, the same token ids, read by h2o-llama and by others on this machine, one after another.

    python benchmarks/peers.py q8_0.gguf --openvino-python ov/bin/python
    python benchmarks/peers.py q8_0.gguf --lengths 1024 --positions 0 --repetitions 1 --json race.json

llama.cpp is this package without H2O and its products. OpenVINO is what a Python of its own finds: `python -m venv ov
&& ov/bin/pip install openvino-genai` (2026.4.1 was tried). A missing or failing peer has a line with the reason.

Each measurement is a process of its own, which has read 128 tokens before; a figure is a median. K and V are of the
type that each peer takes by default. H2O and OpenVINO's sparse attention leave the last tokens of a prompt dense, 128
and 100. The loss of sparse attention is measured on the log-probabilities before these tokens, against the same peer's
dense attention.
"""

import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import numpy as np
import typer
from numpy.typing import NDArray

from h2o_llama import Model
from h2o_llama._bench import prompt_tokens
from h2o_llama._internal.machine import available_cpus, describe
from tables import MB, Table

TAIL = 128  # last tokens, which no figure of quality is of


class PeerError(Exception):
    """Why a peer has no figure."""


@dataclass(frozen=True)
class Peer:
    """Who takes part: its name in peer.py, the Python that runs it, and options by their names.

    Of several variants the faster counts, for reading and for generating. `dense` is the name of the one that differs
    by dense attention alone.
    """

    name: str
    kind: str
    python: str | None
    variants: Mapping[str, Mapping[str, Any]] = field(default_factory=lambda: {"": {}})
    dense: str | None = None

    def run(self, variant: str, **job: Any) -> dict[str, Any]:
        """What peer.py says of a job. Raises PeerError."""
        if self.python is None:
            raise PeerError("not asked for")
        print(f"{len(job['ids']):,} tokens: {self.name} {variant}", file=sys.stderr)
        with TemporaryDirectory() as folder:
            result = Path(folder) / "result.json"
            job |= {"peer": self.kind, "options": self.variants[variant], "result": str(result)}
            command = [self.python, str(Path(__file__).with_name("peer.py"))]
            try:
                done = subprocess.run(command, input=json.dumps(job), capture_output=True, text=True, errors="replace")
            except OSError as error:
                raise PeerError(str(error)) from error
            if done.returncode or not result.exists():
                lines = [line for line in done.stderr.splitlines() if line.strip()]
                raise PeerError(lines[-1] if lines else f"exit code {done.returncode}")
            found: dict[str, Any] = json.loads(result.read_text())
            return found

    def speed(self, repetitions: int, **job: Any) -> dict[str, Any]:
        """Seconds to the first token and of each one after it, peak memory and share of the CPU; or a reason."""
        try:
            samples = {name: [self.run(name, **job) for _ in range(repetitions)] for name in self.variants}
        except PeerError as error:
            return {"peer": self.name, "reason": str(error)}

        def fastest(figure: str) -> tuple[float, str]:
            return min((median(s[figure] for s in found), variant) for variant, found in samples.items())

        first_s, variant = fastest("first_s")
        peaks = [s["peak_rss"] for s in samples[variant] if s["peak_rss"] is not None]
        return {
            "peer": self.name,
            "version": samples[variant][0]["version"],
            "variant": variant,
            "first_s": first_s,
            "token_s": fastest("token_s")[0],
            "peak_rss": max(peaks, default=None),
            "cpu_share": min(s["cpu_share"] for s in samples[variant]),
            "samples": samples,
        }

    def logprobs(self, **job: Any) -> NDArray[np.float32]:
        with TemporaryDirectory() as folder:
            path = Path(folder) / "logprobs.npy"
            self.run(next(iter(self.variants)), logprobs=str(path), **job)
            logprobs: NDArray[np.float32] = np.load(path)
            return logprobs


def everyone(openvino: str | None) -> list[Peer]:
    """All peers, with the Python that has OpenVINO."""
    upstream, own = (
        {f"flash attention {x}": {"flash_attn": x, "matmul_kernels": products} for x in ("on", "off")}
        for products in ("upstream", "own")
    )
    memory = {"h2o": {"decode": "memory"}}
    dense = "llama.cpp, own products"
    return [
        Peer("llama.cpp", "h2o", sys.executable, upstream),
        Peer(dense, "h2o", sys.executable, own),
        Peer("H2O", "h2o", sys.executable, {"": {"h2o": {}}}, dense),
        Peer("H2O, decode memory", "h2o", sys.executable, {"": memory}, dense),
        Peer("OpenVINO GenAI", "openvino", openvino, {"1,024 tokens at once": {"batch": 1024}, "all at once": {}}),
        Peer("OpenVINO GenAI, XAttention", "openvino", openvino, {"": {"sparse": "XATTENTION"}}, "OpenVINO GenAI"),
    ]


def judge(peers: list[Peer], rows: list[dict[str, Any]], ids: list[int], **job: Any) -> None:
    """Add "loss" and "kl", over the peer's own dense attention, to the rows of peers that have one."""
    found: dict[str, NDArray[np.float32]] = {}
    by_name = {peer.name: peer for peer in peers}
    following = np.asarray(ids[job["first"] + 1 : job["stop"] + 1])
    for row in rows:
        peer = by_name[row["peer"]]
        if peer.dense is None or "reason" in row:
            continue
        try:
            for one in (by_name[peer.dense], peer):
                if one.name not in found:
                    found[one.name] = one.logprobs(ids=ids, **job)
        except (PeerError, KeyError) as error:
            row["reason"] = str(error)
            continue
        dense, sparse = found[peer.dense], found[peer.name]
        if dense.ndim == 2:
            row["kl"] = float((np.exp(dense) * (dense - sparse)).sum(axis=1).mean())
            dense, sparse = (np.take_along_axis(values, following[:, None], axis=1) for values in (dense, sparse))
        row["loss"] = float((dense - sparse).mean())


def table(n_tokens: int, rows: list[dict[str, Any]]) -> str:
    """In Markdown."""

    def cell(row: dict[str, Any], name: str, text: str, scale: float = 1.0) -> str:
        return "–" if row.get(name) is None else format(row[name] * scale, text)

    lines = [
        [
            f"{row['peer']}, {row['variant']}" if row.get("variant") else row["peer"],
            cell(row, "first_s", ".2f"),
            f"{n_tokens / row['first_s']:,.0f}" if "first_s" in row else "–",
            cell(row, "token_s", ".1f", 1000),
            cell(row, "peak_rss", ",.0f", 1 / MB),
            cell(row, "kl", ".4f"),
            cell(row, "loss", "+.4f"),
        ]
        for row in rows
    ]
    columns = ["first token, s", "tokens/s", "ms per token", "peak memory, MB", "KL", "loss"]
    reasons = "\n".join(f"- {row['peer']}: {row['reason']}" for row in rows if "reason" in row)
    least = min((row["cpu_share"] for row in rows if "cpu_share" in row), default=1.0)
    busy = f"Doubtful: others left as little as {least:.0%} of its CPU time to a peer." if least < 0.9 else ""
    return Table(f"{n_tokens:,} tokens", columns, lines, "\n\n".join(filter(None, [reasons, busy]))).markdown()


def main(
    model: Annotated[Path, typer.Argument(help="A GGUF file that all of them read: Q8_0, say.", exists=True)],
    lengths: Annotated[str, typer.Option(help="Prompt lengths.")] = "1024,4096,8192,16384,32768",
    n_gen: Annotated[int, typer.Option(min=1, help="Tokens to generate after each, besides the first.")] = 32,
    repetitions: Annotated[int, typer.Option("--repetitions", "-r", min=1, help="Samples; figures are medians.")] = 3,
    positions: Annotated[int, typer.Option(min=0, help="Positions that quality is of; 0: leave it out.")] = 512,
    quality_max: Annotated[int, typer.Option(min=0, help="Leave quality out of longer prompts.")] = 8192,
    dense_max: Annotated[int, typer.Option(min=0, help="Leave dense attention out of longer prompts.")] = 32768,
    threads: Annotated[int | None, typer.Option("--threads", "-t", min=1, help="By default one for each CPU.")] = None,
    text: Annotated[Path | None, typer.Option(help="Text to read; by default source of Python.", exists=True)] = None,
    openvino_python: Annotated[str | None, typer.Option(help="A Python that has openvino-genai.")] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write all figures to this file.")] = None,
) -> None:
    """Print Markdown tables: KL divergence and loss are in nats per token, before the last 128 of the prompt.

    OpenVINO gives no logits, only the log-probabilities of a prompt's tokens, so it has no KL divergence.
    """
    sizes = sorted({int(n) for n in lengths.split(",")})
    with Model(model) as llm:
        ids = prompt_tokens(llm, None if text is None else text.read_bytes(), sizes[-1]).tolist()
    job = {"model": str(model), "n_gen": n_gen, "n_threads": threads or available_cpus()}
    machine, everything = describe(), []
    print(f"{machine['cpu']}, {job['n_threads']} threads, {machine['date']:.10}. {model.name}.")
    for n in sizes:
        peers = [p for p in everyone(openvino_python) if p.dense is not None or n <= dense_max]
        rows = [peer.speed(repetitions, ids=ids[:n], **job) for peer in peers]
        if positions > 0 and TAIL < n <= quality_max:
            stop = n - TAIL
            judge(peers, rows, ids[:n], first=max(0, stop - positions), stop=stop, **job)
        print(f"\n{table(n, rows)}", flush=True)
        everything += [{"n_tokens": n, **row} for row in rows]
        if json_file is not None:
            json_file.write_text(json.dumps({"machine": machine, **job, "rows": everything}, indent=1) + "\n")


if __name__ == "__main__":
    typer.run(main)
