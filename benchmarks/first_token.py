"""Seconds to the first token of an answer about a document, of h2o-llama and of llama.cpp, and their chart.

    python benchmarks/first_token.py qwen2.5-coder-0.5b document.txt --chart docs/first-token.svg --json rows.json

Both are the same server with the same file and threads; llama.cpp is it with H2O, this project's kernels and the
library off. Three questions each: the first, one more, and one after a restart. The chart needs matplotlib.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Annotated
from urllib.error import URLError
from urllib.request import Request, urlopen

import typer

from h2o_llama import document_messages, read_document

WHO = {
    "llama.cpp": ["--h2o", "off", "--matmul-kernels", "upstream", "--library", "off"],
    "h2o-llama": [],
}
QUESTIONS = ["What is this text about?", "Who is named in it?", "Where does it take place?"]
TITLES = ["first question", "second question", "after a restart"]


@contextmanager
def server(model: str, options: list[str], folder: str) -> Iterator[str]:
    """The address of a server, ready to answer."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "h2o_llama", "serve", model, "--port", str(port), *options]
    environment = os.environ | {"H2O_LLAMA_LIBRARY": folder}
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    url = f"http://127.0.0.1:{port}"
    try:
        while process.poll() is None:
            try:
                urlopen(f"{url}/health").close()
                break
            except URLError:
                time.sleep(0.1)
        yield url
    finally:
        process.terminate()
        process.wait()


def seconds(url: str, document: str, question: str) -> float:
    """Until the first token of the answer has come."""
    body = {"messages": document_messages(document, question), "max_tokens": 16, "stream": True, "temperature": 0}
    start = time.perf_counter()
    request = Request(f"{url}/v1/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urlopen(request) as answer:
        for line in answer:
            if line.startswith(b"data: {") and json.loads(line[6:])["choices"][0]["delta"].get("content"):
                found = time.perf_counter() - start
                answer.read()
                return found
    raise SystemExit(f"no answer from {url}")


def measure(model: str, document: str, options: list[str]) -> list[float]:
    with TemporaryDirectory() as folder:
        with server(model, options, folder) as url:
            found = [seconds(url, document, question) for question in QUESTIONS[:2]]
        with server(model, options, folder) as url:
            return [*found, seconds(url, document, QUESTIONS[2])]


def draw(rows: dict[str, list[float]], path: Path) -> None:
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 1.9), layout="constrained")
    for i, (who, colour) in enumerate(zip(rows, ("#9a958c", "#e98d22"), strict=True)):
        places = [row + 0.38 * i for row in range(len(TITLES))]
        bars = axes.barh(places, rows[who], 0.36, label=who, color=colour)
        axes.bar_label(bars, [f"{value:.3g} s" for value in rows[who]], padding=3, fontsize=8)
    axes.set_yticks([row + 0.19 for row in range(len(TITLES))], TITLES)
    axes.invert_yaxis()
    axes.set_xticks([])
    axes.spines[:].set_visible(False)
    axes.legend(frameon=False, loc="lower right", fontsize=8)
    figure.savefig(path)


def main(
    model: str,
    file: Path,
    chart: Annotated[Path | None, typer.Option(help="Draw the medians here, SVG or PNG.")] = None,
    rounds: Annotated[int, typer.Option("-r", min=1, help="Each server in turn, so often.")] = 1,
    out: Annotated[Path | None, typer.Option("--json", help="Write all figures here.")] = None,
) -> None:
    document = read_document(file)
    runs = [{who: measure(model, document, options) for who, options in WHO.items()} for _ in range(rounds)]
    rows = {who: [median(run[who][i] for run in runs) for i in range(len(TITLES))] for who in WHO}
    for who, row in rows.items():
        print(who, *(f"{title}: {value:.2f} s" for title, value in zip(TITLES, row, strict=True)), sep=", ")
    if out is not None:
        out.write_text(json.dumps({"titles": TITLES, "runs": runs}))
    if chart is not None:
        draw(rows, chart)


if __name__ == "__main__":
    typer.run(main)
