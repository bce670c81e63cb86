"""The race: one GGUF file, the same token ids, read by h2o-llama and by others on this machine, one after another.

    python benchmarks/peers.py q8_0.gguf --openvino-python ov/bin/python --llama-cpp-python lcp/bin/python
    python benchmarks/peers.py q8_0.gguf --lengths 1024 --positions 0 --repetitions 1 --json race.json

Peers are what a Python of their own finds: `python -m venv ov && ov/bin/pip install openvino-genai` (2026.4.1 was
tried), and `lcp/bin/pip install llama-cpp-python`. One that is not there, or fails, has a line with the reason.

Each measurement is a process of its own, which has read 128 tokens before; a figure is a median. K and V are of the
type that each peer takes by default. H2O and OpenVINO's sparse attention leave the last tokens of a prompt dense, 128
and 100. What sparse attention costs is told by the log-probabilities before these, over those of the same peer's dense
attention.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import numpy as np
import typer
from numpy.typing import NDArray

from h2o_llama import Model
from h2o_llama._internal.machine import describe
from h2o_llama.bench.prompt import prompt_tokens
from h2o_llama.bench.tables import MB, Table
from h2o_llama.sequence._params import available_cpus

PROGRAMS = Path(__file__).with_name("race")
TAIL = 128  # last tokens, which no figure of quality is of

Variants = Mapping[str, Mapping[str, Any]]

# of h2o-llama
FLASH = ("on", "off")
UPSTREAM: Variants = {f"flash attention {x}": {"flash_attn": x, "products": "upstream"} for x in FLASH}
OWN: Variants = {f"flash attention {x}": {"flash_attn": x, "products": "own"} for x in FLASH}


class PeerError(Exception):
    """Why a peer has no figure."""


@dataclass(frozen=True)
class Peer:
    """Who takes part: a program of the folder race/, the Python that runs it, and options by their names.

    Of several variants the faster counts, for reading and for generating. `dense` is the name of the one that differs
    by dense attention alone.
    """

    name: str
    program: Path
    python: str | None
    variants: Variants = field(default_factory=lambda: {"": {}})
    dense: str | None = None

    def run(self, task: str, variant: str, **job: Any) -> dict[str, Any]:
        """What the program says of a job, see race/worker.py. Raises PeerError."""
        if self.python is None:
            raise PeerError("not asked for")
        with TemporaryDirectory() as folder:
            result = Path(folder) / "result.json"
            job |= {"task": task, "options": self.variants[variant], "result": str(result)}
            command = [self.python, str(self.program)]
            try:
                done = subprocess.run(command, input=json.dumps(job), capture_output=True, text=True, errors="replace")
            except OSError as error:
                raise PeerError(str(error)) from error
            if done.returncode or not result.exists():
                lines = [line for line in done.stderr.splitlines() if line.strip()]
                raise PeerError(lines[-1] if lines else f"exit code {done.returncode}")
            found: dict[str, Any] = json.loads(result.read_text())
            return found


def everyone(openvino: str | None, llama_cpp: str | None) -> list[Peer]:
    """All peers, with the Pythons that have them."""
    ours, theirs = PROGRAMS / "run_h2o.py", PROGRAMS / "run_openvino.py"
    memory = {"h2o": {"decode": "memory"}}
    ngrams = {"h2o": {"retrieval": "ngrams", "decode": "memory"}}
    flash = {f"flash attention {name}": {"flash_attn": name == "on"} for name in FLASH}
    return [
        Peer("llama.cpp", ours, sys.executable, UPSTREAM),
        Peer("llama.cpp, own products", ours, sys.executable, OWN),
        Peer("H2O", ours, sys.executable, {"": {"h2o": {}}}, "llama.cpp, own products"),
        Peer("H2O, decode memory", ours, sys.executable, {"": memory}, "llama.cpp, own products"),
        Peer("H2O, n-grams, decode memory", ours, sys.executable, {"": ngrams}, "llama.cpp, own products"),
        Peer("OpenVINO GenAI", theirs, openvino, {"1,024 tokens at once": {"batch": 1024}, "all at once": {}}),
        Peer("OpenVINO GenAI, XAttention", theirs, openvino, {"": {"sparse": "XATTENTION"}}, "OpenVINO GenAI"),
        Peer("llama-cpp-python", PROGRAMS / "run_llama_cpp_python.py", llama_cpp, flash),
    ]


@dataclass(frozen=True)
class Race:
    """What is measured of each peer: prompts of these lengths, and `n_gen` tokens after them.

    Quality is of `n_positions` before the last 128 of a prompt of at most `quality_max` tokens: OpenVINO GenAI computes
    the logits of all of them. Dense attention reads prompts of at most `dense_max` tokens: its time grows as N².
    """

    model: str
    ids: Sequence[int]
    lengths: Sequence[int]
    n_gen: int
    n_threads: int
    repetitions: int
    n_positions: int
    quality_max: int = 8192
    dense_max: int = 32768

    @property
    def settings(self) -> dict[str, Any]:
        """All but the token ids."""
        return {name: value for name, value in asdict(self).items() if name != "ids"}

    def run(self, peers: Sequence[Peer]) -> Iterator[dict[str, Any]]:
        """A row for each length and peer.

        "n_tokens", "peer", "version", "variant" (that reads faster), "first_s", "tokens_per_s", "token_s" (of the
        variant that generates faster), "peak_rss", "cpu_share" (the least), "samples" (by variant, as the programs gave
        them), "kl", "loss" and "dense_nats" (see `quality`), "reason" (why some are None).
        """
        for n_tokens in self.lengths:
            taking_part = [peer for peer in peers if peer.dense is not None or n_tokens <= self.dense_max]
            rows = {peer.name: _row(peer, n_tokens) for peer in taking_part}
            for _ in range(self.repetitions):
                for peer in taking_part:
                    self._take_samples(peer, rows[peer.name])
            for row in rows.values():
                _summarise(row)
            self._judge(taking_part, rows, n_tokens)
            yield from rows.values()

    def _job(self, n_tokens: int) -> dict[str, Any]:
        ids = list(self.ids[:n_tokens])
        return {"model": self.model, "ids": ids, "n_gen": self.n_gen, "n_threads": self.n_threads}

    def _take_samples(self, peer: Peer, row: dict[str, Any]) -> None:
        """One of each variant; a peer that has failed is not tried again."""
        try:
            for variant in peer.variants if row["reason"] is None else ():
                _say(row["n_tokens"], peer.name, variant)
                row["samples"].setdefault(variant, []).append(peer.run("speed", variant, **self._job(row["n_tokens"])))
        except PeerError as error:
            row["reason"] = str(error)

    def _judge(self, peers: Sequence[Peer], rows: Mapping[str, dict[str, Any]], n_tokens: int) -> None:
        """Quality of those that can be compared with their own dense attention."""
        stop = n_tokens - TAIL
        first = max(0, stop - self.n_positions)
        by_name = {peer.name: peer for peer in peers}
        found: dict[str, NDArray[np.float32]] = {}
        for peer in peers:
            if (
                peer.dense not in by_name
                or not first < stop
                or n_tokens > self.quality_max
                or rows[peer.name]["reason"] is not None
            ):
                continue
            _say(n_tokens, peer.name, "quality")
            try:
                for one in (by_name[peer.dense], peer):
                    if one.name not in found:
                        found[one.name] = self._logprobs(one, n_tokens, first, stop)
            except PeerError as error:
                rows[peer.name]["reason"] = str(error)
                continue
            following = np.asarray(self.ids[first + 1 : stop + 1])
            rows[peer.name] |= quality(found[peer.dense], found[peer.name], following)

    def _logprobs(self, peer: Peer, n_tokens: int, first: int, stop: int) -> NDArray[np.float32]:
        with TemporaryDirectory() as folder:
            path = Path(folder) / "logprobs.npy"
            job = self._job(n_tokens) | {"first": first, "stop": stop, "logprobs": str(path)}
            peer.run("logprobs", next(iter(peer.variants)), **job)
            logprobs: NDArray[np.float32] = np.load(path)
            return logprobs


def quality(dense: NDArray[np.float32], sparse: NDArray[np.float32], ids: NDArray[np.int_]) -> dict[str, float | None]:
    """What sparse attention costs: nats per token ("loss") more than dense ("dense_nats"), and KL divergence ("kl").

    The latter is None without all of a vocabulary. Log-probabilities are [n, n_vocab], or [n] of the ids alone, which
    are those of the next tokens.
    """
    kl = None
    if dense.ndim == 2:
        kl = float((np.exp(dense) * (dense - sparse)).sum(axis=1).mean())
        dense, sparse = (np.take_along_axis(logprobs, ids[:, None], axis=1) for logprobs in (dense, sparse))
    return {"kl": kl, "loss": float((dense - sparse).mean()), "dense_nats": float(-dense.mean())}


def _say(n_tokens: int, *what: str) -> None:
    print(f"{n_tokens:,} tokens: {', '.join(filter(None, what))}", file=sys.stderr)


def _row(peer: Peer, n_tokens: int) -> dict[str, Any]:
    speed = ("version", "variant", "first_s", "tokens_per_s", "token_s", "peak_rss", "cpu_share")
    figures = (*speed, "kl", "loss", "dense_nats", "reason")
    return {"n_tokens": n_tokens, "peer": peer.name, **dict.fromkeys(figures), "samples": {}}


def _summarise(row: dict[str, Any]) -> None:
    if row["reason"] is not None:
        return

    def fastest(figure: str) -> tuple[float, str]:
        return min((median(s[figure] for s in samples), variant) for variant, samples in row["samples"].items())

    row["first_s"], row["variant"] = fastest("first_s")
    samples = row["samples"][row["variant"]]
    row["version"] = samples[0]["version"]
    row["tokens_per_s"] = row["n_tokens"] / row["first_s"]
    row["token_s"], _ = fastest("token_s")
    row["cpu_share"] = min(sample["cpu_share"] for sample in samples)
    row["peak_rss"] = max((s["peak_rss"] for s in samples if s["peak_rss"] is not None), default=None)


def report(found: Mapping[str, Any]) -> str:
    """What is in the JSON file, as Markdown: machine and versions, a table for each length, what was not measured."""
    machine, rows, n_threads = found["machine"], found["rows"], found["n_threads"]
    versions = "; ".join(dict.fromkeys(row["version"] for row in rows if row["version"]))
    threads = f"{n_threads} thread{'s' if n_threads > 1 else ''}"
    least = min((row["cpu_share"] for row in rows if row["cpu_share"] is not None), default=1.0)
    busy = f" Doubtful: others left as little as {least:.0%} of its CPU time to a peer." if least < 0.9 else ""
    parts = [f"{machine['cpu']}, {threads}, {machine['date'][:10]}. {Path(found['model']).name}. {versions}.{busy}"]
    for n_tokens in found["lengths"]:
        lines = [_line(row) for row in rows if row["n_tokens"] == n_tokens]
        columns = ["first token, s", "tokens/s", "ms per token", "peak memory, MB", "KL", "loss"]
        parts.append(Table(f"{n_tokens:,} tokens", columns, lines, "").markdown())
    parts.append(
        "Of flash attention on and off the better counts, named for reading. KL divergence and loss in nats per token, "
        f"are over the peer's own dense attention, at {found['n_positions']} positions before the last {TAIL}. "
        "OpenVINO gives no logits, only the log-probabilities of a prompt's tokens."
    )
    reasons = dict.fromkeys(f"- {row['peer']}: {row['reason']}" for row in rows if row["reason"] is not None)
    if reasons:
        parts.append("Not measured:\n\n" + "\n".join(reasons))
    return "\n\n".join(parts)


def _line(row: Mapping[str, Any]) -> list[str]:
    def cell(name: str, text: str, scale: float = 1.0) -> str:
        return "–" if row[name] is None else format(row[name] * scale, text)

    name = f"{row['peer']}, {row['variant']}" if row["variant"] else row["peer"]
    speed = [cell("first_s", ".2f"), cell("tokens_per_s", ",.0f"), cell("token_s", ".1f", 1000)]
    return [name, *speed, cell("peak_rss", ",.0f", 1 / MB), cell("kl", ".4f"), cell("loss", "+.4f")]


def main(
    model: Annotated[Path, typer.Argument(help="A GGUF file that all of them read: Q8_0, say.", exists=True)],
    lengths: Annotated[str, typer.Option(help="Prompt lengths.")] = "1024,4096,8192,16384,32768",
    n_gen: Annotated[int, typer.Option(min=1, help="Tokens to generate after each, besides the first.")] = 32,
    repetitions: Annotated[int, typer.Option("--repetitions", "-r", min=1, help="Rounds, of which medians count.")] = 3,
    positions: Annotated[int, typer.Option(min=0, help="Positions that quality is of; 0: leave it out.")] = 512,
    quality_max: Annotated[int, typer.Option(min=0, help="Leave quality out of longer prompts.")] = 8192,
    dense_max: Annotated[int, typer.Option(min=0, help="Leave dense attention out of longer prompts.")] = 32768,
    threads: Annotated[int | None, typer.Option("--threads", "-t", min=1, help="By default one for each CPU.")] = None,
    text: Annotated[Path | None, typer.Option(help="Text to read; by default source of Python.", exists=True)] = None,
    openvino_python: Annotated[str | None, typer.Option(help="A Python that has openvino-genai.")] = None,
    llama_cpp_python: Annotated[str | None, typer.Option(help="A Python that has llama-cpp-python.")] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write all figures to this file.")] = None,
) -> None:
    """Print Markdown tables."""
    sizes = sorted({int(n) for n in lengths.split(",")})
    with Model(model) as llm:
        ids = prompt_tokens(llm, None if text is None else text.read_bytes(), sizes[-1]).tolist()
    limits = (quality_max, dense_max)
    race = Race(str(model), ids, sizes, n_gen, threads or available_cpus(), repetitions, positions, *limits)
    found = {"machine": describe(), **race.settings, "rows": []}
    try:
        for row in race.run(everyone(openvino_python, llama_cpp_python)):
            found["rows"].append(row)
    finally:  # what was measured before Ctrl-C counts too
        if json_file is not None:
            json_file.write_text(json.dumps(found, indent=1) + "\n")
        print(report(found))


if __name__ == "__main__":
    typer.run(main)
