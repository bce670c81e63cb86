"""What each schedule costs in quality on the demo model: nats per byte of text, and keys recalled. A table, and JSON.

    python benchmarks/schedules.py
    python benchmarks/schedules.py 2048 8192 --documents 20 --json schedules.json

Every document is a piece of this Python's standard library with keys hidden in it. All settings read the same
documents; differences are paired. A key is asked at the end of the prompt, where the question reads its own chunk and
the memory sets only, or after it by single tokens, which read the whole cache: then the quality of K and V counts.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import track
from rich.table import Table

import machine
from h2o_llama import H2OConfig, Llama, demo_model_path
from h2o_llama.demo.document import Document, build_document
from output import check_output

CHUNK_SIZE = 512
LENGTHS = [2048, 4096, 8192]
DEPTHS = (0.0, 0.2, 0.4, 0.6, 0.8)
# Their sources are longer than the longest document.
MODULES = [
    "argparse",
    "ast",
    "configparser",
    "datetime",
    "difflib",
    "doctest",
    "enum",
    "inspect",
    "locale",
    "mailbox",
    "optparse",
    "pathlib",
    "pdb",
    "pickle",
    "pickletools",
    "platform",
    "pydoc",
    "shutil",
    "smtplib",
    "socket",
    "ssl",
    "statistics",
    "subprocess",
    "tarfile",
    "threading",
    "traceback",
    "turtle",
    "typing",
    "uuid",
    "zipfile",
]
SETTINGS = {
    "dense": None,
    "two_phase": H2OConfig(128, 128, schedule="two_phase"),
    "single_pass": H2OConfig(128, 128, schedule="single_pass"),
}


@dataclass(frozen=True)
class Sample:
    """One document in one setting.

    Attributes
    ----------
    nats : float
        Mean loss per byte beyond the first chunk, where the settings differ.
    recalled, recalled_late : float
        Share of the keys whose value comes out right, asked within the prompt and after it.
    """

    nats: float
    recalled: float
    recalled_late: float


def losses(logits: NDArray[np.float32], targets: NDArray[np.int64]) -> NDArray[np.float64]:
    """Cross entropy in nats: logits [n, n_vocab], targets [n] -> [n]."""
    x = logits.astype(np.float64)
    x -= x.max(axis=-1, keepdims=True)
    picked: NDArray[np.float64] = x[np.arange(len(targets)), targets]
    total: NDArray[np.float64] = np.log(np.exp(x).sum(axis=-1))
    return total - picked


def measure(llm: Llama, document: Document) -> Sample:
    """Read a document, then ask for its keys."""
    tokens = llm.tokenize(document.text)
    llm.reset()
    llm.eval(tokens, logits="all")
    nats = losses(llm.logits[CHUNK_SIZE:-1], np.asarray(tokens[CHUNK_SIZE + 1 :]))
    late = []
    for needle in document.needles:
        late.append(_answer_by_tokens(llm, needle.question, len(needle.answer)) == needle.answer)
        _decode(llm, b";\n")
    within = []
    for needle in document.needles:
        # With the answer in the prompt, the logits tell whether greedy decoding would have given it.
        prompt = llm.tokenize(document.text + needle.question + needle.answer)
        llm.reset()
        llm.eval(prompt[:-1], logits="all")
        predicted = llm.logits[-len(needle.answer) :].argmax(axis=-1).tolist()
        within.append(predicted == prompt[-len(needle.answer) :])
    return Sample(float(nats.mean()), float(np.mean(within)), float(np.mean(late)))


def _decode(llm: Llama, text: bytes) -> None:
    for token in llm.tokenize(text):
        llm.eval([token])


def _answer_by_tokens(llm: Llama, question: bytes, n: int) -> bytes:
    _decode(llm, question)
    answer: list[int] = []
    for _ in range(n):
        answer.append(int(llm.logits[-1].argmax()))
        llm.eval(answer[-1:])
    return llm.detokenize(answer)


def row(n: int, name: str, samples: list[Sample], dense: list[Sample]) -> list[str]:
    """A line of the table."""
    nats = np.array([s.nats for s in samples])
    added = nats - [s.nats for s in dense]
    error = added.std(ddof=1) / np.sqrt(len(added)) if len(added) > 1 else 0.0
    return [
        f"{n:,}",
        name,
        f"{nats.mean():.3f}",
        "" if name == "dense" else f"{added.mean():+.3f} ± {error:.3f}",
        "" if name == "dense" else f"{np.expm1(added.mean()):+.1%}",
        f"{np.mean([s.recalled for s in samples]):.2f}",
        f"{np.mean([s.recalled_late for s in samples]):.2f}",
    ]


def main(
    lengths: Annotated[list[int] | None, typer.Argument(min=CHUNK_SIZE + 2, help="Document lengths N.")] = None,
    documents: Annotated[int, typer.Option(min=1, max=len(MODULES), help="Documents of each length.")] = len(MODULES),
    threads: Annotated[int | None, typer.Option(min=1, help="Threads; by default one for each CPU.")] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write all figures here.")] = None,
) -> None:
    """Compare the schedules' quality on the demo model."""
    check_output("--json", json_file)
    modules = MODULES[:documents]
    table = Table("N", "", "nats/byte", "over dense", "perplexity", "recall in the prompt", "recall after it")
    table.title = f"Demo model, S {CHUNK_SIZE}, L 128, H 128, {documents} documents"
    results = []
    for n in lengths or LENGTHS:
        texts = [
            build_document(n, [d + 0.2 * i / documents for d in DEPTHS], module) for i, module in enumerate(modules)
        ]
        samples: dict[str, list[Sample]] = {}
        for name, h2o in SETTINGS.items():
            with Llama(demo_model_path(), n_ctx=n + 64, n_ubatch=CHUNK_SIZE, n_threads=threads, h2o=h2o) as llm:
                samples[name] = [measure(llm, text) for text in track(texts, f"{n:,} {name}", transient=True)]
            table.add_row(*row(n, name, samples[name], samples["dense"]))
            results += [{"n_tokens": n, "setting": name, **asdict(sample)} for sample in samples[name]]
    Console().print(table)
    if json_file is not None:
        json_file.write_text(json.dumps({"machine": machine.describe(), "samples": results}, indent=1) + "\n")


if __name__ == "__main__":
    typer.run(main)
