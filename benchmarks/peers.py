"""The race: one GGUF file, the same token ids, read by h2o-llama and by OpenVINO GenAI on this machine.

    python benchmarks/peers.py q8_0.gguf
    python benchmarks/peers.py q8_0.gguf --lengths 1024 --positions 0 --repetitions 1

h2o-llama is measured as by `h2o-llama bench`: "llama.cpp" is this package without H2O and its products. OpenVINO takes
part after `pip install openvino-genai` (2026.4.1 was tried); otherwise a line has the reason.

Each measurement is a process of its own; a figure is a median, of several variants the fastest. K and V are of the type
that each peer takes by default. KL divergence and loss, in nats per token, are over the same peer's dense attention, at
the last positions before the prompt's last 128. OpenVINO gives the log-probabilities of a prompt's tokens only.
"""

import sys
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import numpy as np
import typer

from h2o_llama import H2OConfig, Llama, Model
from h2o_llama._bench import DENSE, Bench, Mode, prompt_tokens
from h2o_llama._internal.apart import call_apart
from h2o_llama._internal.machine import available_cpus, describe
from h2o_llama.eval._losses import compare
from kernels import markdown

TAIL = 128  # last tokens, which no figure of quality is of: OpenVINO leaves 100 of them dense
H2O = {"H2O": H2OConfig(), "H2O, decode memory": H2OConfig(decode="memory")}
OPENVINO = {"dense": [("", 1024), ("", 0)], "XAttention": [("XATTENTION", 0)]}
COLUMNS = ("first token, s", "tokens/s", "ms per token", "peak memory, MB", "KL", "loss")


def openvino_rows(model: str, ids: list[int], n_gen: int, repetitions: int, n_threads: int) -> dict[str, Any]:
    """[seconds to the first token, of each one after it, bytes] by OpenVINO's name, or a reason."""
    try:
        from openvino_peer import VERSION, speed
    except ImportError as error:
        return {"OpenVINO GenAI": str(error)}
    rows: dict[str, Any] = {}
    for name, variants in OPENVINO.items():
        samples = [
            [call_apart(VERSION, speed, model, ids, n_gen, n_threads, *variant) for _ in range(repetitions)]
            for variant in variants
        ]
        rows[f"{VERSION}, {name}"] = min([median(figure) for figure in zip(*each, strict=True)] for each in samples)
    return rows


def quality(model: str, ids: list[int], positions: range, n_threads: int, names: Mapping[str, Any]) -> dict[str, Any]:
    """(KL or None, loss) by name, of peers with sparse attention."""
    targets = np.array(ids[positions.start + 1 : positions.stop + 1], dtype=np.int32)
    with Model(model, matmul_kernels="own") as weights:

        def logits(h2o: H2OConfig | None) -> Any:
            with Llama(weights, n_ctx=len(ids), n_threads=n_threads, h2o=h2o, matmul_kernels="own") as llm:
                llm.eval(ids[: positions.start])
                llm.eval(ids[positions.start : positions.stop], logits="all")
                return llm.logits

        (losses,) = compare(logits(None), [logits(H2OConfig())], targets)
    found = {name: (losses["kld"].mean(), (losses["nats"] - losses["nats_dense"]).mean()) for name in H2O}
    if any("XAttention" in name for name in names):
        from openvino_peer import VERSION, logprobs

        dense, sparse = (call_apart(VERSION, logprobs, model, ids, n_threads, mode) for mode in ("", "XATTENTION"))
        chosen = slice(positions.start + 1, positions.stop + 1)
        found[f"{VERSION}, XAttention"] = None, np.mean(np.subtract(dense[chosen], sparse[chosen]))
    return found


def main(
    model: Annotated[Path, typer.Argument(help="A GGUF file that all of them read: Q8_0, say.", exists=True)],
    lengths: Annotated[str, typer.Option(help="Prompt lengths.")] = "1024,4096,8192,16384,32768",
    n_gen: Annotated[int, typer.Option(min=1, help="Tokens to generate after each, besides the first.")] = 32,
    repetitions: Annotated[int, typer.Option("--repetitions", "-r", min=1, help="Samples; figures are medians.")] = 3,
    positions: Annotated[int, typer.Option(min=0, help="Positions that quality is of; 0: leave it out.")] = 512,
    threads: Annotated[int | None, typer.Option("--threads", "-t", min=1, help="By default one for each CPU.")] = None,
    text: Annotated[Path | None, typer.Option(help="Text to read; by default source of Python.", exists=True)] = None,
) -> None:
    """Print Markdown tables."""
    sizes, n_threads = sorted({int(n) for n in lengths.split(",")}), threads or available_cpus()
    content = None if text is None else text.read_bytes()
    modes = [*DENSE, *(Mode(name, h2o) for name, h2o in H2O.items())]
    bench = Bench(
        *(model, modes, sizes, sizes),
        n_gen=n_gen,
        repetitions=repetitions,
        n_threads=n_threads,
        text=content,
    )
    bench.run(report=lambda line: print(line, file=sys.stderr))
    with Model(model) as weights:
        ids = prompt_tokens(weights, content, sizes[-1]).tolist()
    print(bench.facts(describe()))
    for n in sizes:
        rows: dict[str, Any] = {
            row["mode"]: [n / row["prefill"], 1 / row["generation"], row["peak_rss"] or 0]
            for row in bench.rows()
            if row["n_tokens"] == n
        }
        rows |= openvino_rows(str(model), ids[:n], n_gen, repetitions, n_threads)
        scored = range(max(0, n - TAIL - positions), n - TAIL) if positions and n > TAIL else range(0)
        found = quality(str(model), ids[:n], scored, n_threads, rows) if scored else {}
        lines = []
        for name, row in rows.items():
            if isinstance(row, str):
                print(f"{name}: {row}")
                continue
            first_s, token_s, peak = row
            kl, loss = found.get(name, (None, None))
            quality_cells = ("–" if kl is None else f"{kl:.4f}", "–" if loss is None else f"{loss:+.4f}")
            speeds = (f"{first_s:.2f}", f"{n / first_s:,.0f}", f"{1000 * token_s:.1f}", f"{peak / 1e6:,.0f}")
            lines.append([name, *speeds, *quality_cells])
        print(f"\n{markdown(f'{n:,} tokens', COLUMNS, lines)}", flush=True)


if __name__ == "__main__":
    typer.run(main)
