"""How fast it is: measures it and writes the report docs/performance.md, with its pictures.

    h2o-llama pull qwen2.5-coder-0.5b && h2o-llama pull django-docs
    python benchmarks/performance.py                 # everything, about 25 minutes on two idle cores
    python benchmarks/performance.py --report-only   # the report again, from what was measured
    python benchmarks/performance.py --quick         # a little of everything: to see that it works

Figures are kept in build/performance; with --quick they and the report are in build/performance-quick. The first table
is of a model that people know, in the type that they have, Q4_K_M. If benchmarks/peers.py has written race*.json into
it, the page has their tables, too. Needs matplotlib and gguf: pip install "h2o-llama[bench]".
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import typer

import kernel
import parts
import peers
import products
from h2o_llama import H2OConfig
from h2o_llama._internal.machine import describe
from h2o_llama.bench import Bench, Plan, Report, beside_dense
from h2o_llama.bench.rows import of_groups
from h2o_llama.bench.tables import facts, tables
from h2o_llama.cli.progress import progress_bars
from h2o_llama.eval import Setting
from h2o_llama.inspect.plots import bench_plots
from h2o_llama.models._files import check_model_file
from h2o_llama.models._named import find_text
from h2o_llama.sequence._params import available_cpus
from pages import environment, equal_files
from random_model import ModelSpec, model_file
from settings import CHUNK_SIZE, DEFAULT

ROOT = Path(__file__).parents[1]
MODEL, TEXT = "qwen2.5-coder-0.5b", "django-docs"
FOLDER = ROOT / "build" / "performance"

TWO_PHASE = replace(DEFAULT, schedule="two_phase")
NGRAMS = replace(DEFAULT, retrieval="ngrams")
OTHERS = [NGRAMS, replace(DEFAULT, decode="memory"), replace(NGRAMS, decode="memory")]


@dataclass(frozen=True)
class Effort:
    """How much is measured: of a real model, the random one, the parts, products and kernels."""

    real_lengths: tuple[int, ...]
    real_dense_max: int
    lengths: tuple[int, ...]
    dense_max: int
    repetitions: int
    part_lengths: tuple[int, ...]
    kernel_repeats: int


FULL = Effort((1024, 8192, 16384), 8192, (1024, 4096, 8192, 16384, 32768), 16384, 2, (8192,), 15)
QUICK = Effort((1024,), 1024, (1024, 2048), 1024, 1, (2048,), 1)


def main(
    report_only: Annotated[bool, typer.Option("--report-only", help="Measure nothing.")] = False,
    quick: Annotated[bool, typer.Option("--quick", help="Measure a little, and write the report there.")] = False,
    threads: Annotated[int | None, typer.Option(min=1, help="Threads; by default one for each CPU.")] = None,
) -> None:
    """Measure how fast it is, and write the report."""
    effort, folder = (QUICK, FOLDER.with_name("performance-quick")) if quick else (FULL, FOLDER)
    try:
        if not report_only:
            folder.mkdir(parents=True, exist_ok=True)
            measure(folder, effort, threads or available_cpus())
        for path in write_report(folder, folder if quick else ROOT / "docs"):
            print(path)
    except (ValueError, FileNotFoundError) as error:
        raise typer.BadParameter(str(error)) from None


def measure(folder: Path, effort: Effort, n_threads: int) -> None:
    """Write all figures into a folder."""
    text = find_text(TEXT).read_bytes()
    check_model_file("performance", MODEL)  # if it is not here, fail before anything is measured

    def plan(configs: list[H2OConfig], lengths: tuple[int, ...], dense_max: int) -> Plan:
        modes = beside_dense([Setting.of(config) for config in configs])
        return Plan(modes, lengths, (dense_max,), 32, effort.repetitions, dense_max, CHUNK_SIZE, n_threads)

    random = plan([DEFAULT, TWO_PHASE, *OTHERS], effort.lengths, effort.dense_max)
    real = plan([DEFAULT, *OTHERS], effort.real_lengths, effort.real_dense_max)

    _write(folder / "real.json", lambda: bench(MODEL, real, text))
    _write(folder / "random.json", lambda: bench(model_file(ModelSpec()), random, None))
    _write(folder / "parts.json", lambda: json.dumps(list(parts.parts(effort.part_lengths, n_threads)), indent=1))
    repeats = effort.kernel_repeats
    lines = products.products(repeats, n_threads, products.TYPES.split(","), (1, 8, 1024))
    _write(folder / "products.json", lambda: json.dumps(list(lines), indent=1))
    _write(folder / "kernel.json", lambda: kernels(folder / "kernel.json", n_threads, repeats))


def bench(model: str | Path, plan: Plan, text: bytes | None) -> str:
    """What `h2o-llama bench --json` would write."""
    started = describe()
    with closing(Bench(model, plan, text)) as measured:
        with progress_bars(auto_refresh=False) as update:
            measured.run(update)
        return Report.of(measured, started).to_json()


def kernels(path: Path, n_threads: int, repeats: int) -> str:
    """What kernel.py writes: a process of its own, since NumPy's threads are set before NumPy is loaded."""
    script = Path(__file__).with_name("kernel.py")
    options = ["--threads", str(n_threads), "--repeats", str(repeats), "--json", str(path)]
    subprocess.run([sys.executable, str(script), *options], check=True, stdout=subprocess.DEVNULL)
    return path.read_text()


def write_report(folder: Path, target: Path) -> list[Path]:
    """Write performance.md and its pictures into `target`. Raises FileNotFoundError if something was not measured."""
    random, real = (Report.from_json((folder / f"{name}.json").read_text()) for name in ("random", "real"))
    of_default = sorted((r for r in random.rows if _is_default(r)), key=lambda r: r["n_tokens"])
    races = [json.loads(path.read_text()) for path in sorted(folder.glob("race*.json"))]
    template = environment().get_template("performance.md.j2")
    text = template.render(
        h2o=H2OConfig(),
        spec=ModelSpec(),
        random=random,
        real=real,
        facts=facts,
        tables=lambda report: "\n\n".join(table.markdown() for table in tables(report)),
        longest=[r for r in of_default if r["test"] == "prefill" and r["over_dense"]][-1],
        deepest=[r for r in of_default if r["test"] == "generation"][-1],
        parts=parts.table(json.loads((folder / "parts.json").read_text())),
        kernels=kernel.table(json.loads((folder / "kernel.json").read_text())),
        races=[peers.report(race) for race in races],
        products=products.table(json.loads((folder / "products.json").read_text())),
    )
    report = target / "performance.md"
    report.write_text(text, encoding="utf-8")
    with equal_files("performance"):
        return [report, *bench_plots(of_groups(random.rows), target)]


def _is_default(row: dict[str, object]) -> bool:
    return row["mode"] == Setting.of(DEFAULT).name


def _write(path: Path, content: Callable[[], str]) -> None:
    start = time.monotonic()
    path.write_text(content())
    print(f"{path.stem}: {time.monotonic() - start:.0f} s", file=sys.stderr)


if __name__ == "__main__":
    typer.run(main)
