"""Seconds to the first token of an answer about a document, by h2o-llama and by llama.cpp, and their chart.

    python benchmarks/first_token.py qwen2.5-coder-0.5b document.txt --chart docs/first-token.png

Both are the same server with the same file and threads; llama.cpp is it without H2O, this project's products and the
library. Each answers two questions, and a third after a restart. The chart needs matplotlib.
"""

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

SERVERS = {"llama.cpp": ["--h2o", "off", "--matmul-kernels", "upstream", "--library", "off"], "h2o-llama": []}
QUESTIONS = {
    "first question": "What is this text about?",
    "second question": "Who is named in it?",
    "after a restart": "Where does it take place?",
}


@contextmanager
def server(model: str, options: list[str], library: str) -> Iterator[str]:
    """The address of a server that is ready to answer."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "h2o_llama", "serve", model, "--port", str(port), *options]
    process = subprocess.Popen(command, env=os.environ | {"H2O_LLAMA_LIBRARY": library}, stderr=subprocess.DEVNULL)
    try:
        while not is_ready(f"http://127.0.0.1:{port}/health"):
            if process.poll() is not None:
                raise SystemExit(f"{' '.join(command)} has ended")
            time.sleep(0.1)
        yield f"http://127.0.0.1:{port}/v1/chat/completions"
    finally:
        process.terminate()
        process.wait()


def is_ready(url: str) -> bool:
    try:
        return urlopen(url).close() is None
    except URLError:
        return False


def seconds(url: str, document: str, question: str) -> float:
    """Until the first token of the answer has come."""
    body = {"messages": document_messages(document, question), "max_tokens": 16, "stream": True, "temperature": 0}
    start = time.perf_counter()
    with urlopen(Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})) as answer:
        for line in answer:
            if line.startswith(b"data: {") and json.loads(line[6:])["choices"][0]["delta"].get("content"):
                found = time.perf_counter() - start
                answer.read()
                return found
    raise SystemExit(f"no answer from {url}")


def measure(model: str, document: str, options: list[str]) -> list[float]:
    *first, last = QUESTIONS.values()
    with TemporaryDirectory() as library:
        with server(model, options, library) as url:
            found = [seconds(url, document, question) for question in first]
        with server(model, options, library) as url:
            return [*found, seconds(url, document, last)]


def draw(rows: dict[str, list[float]], path: Path) -> None:
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 1.9), layout="constrained")
    for i, (name, colour) in enumerate(zip(rows, ("#9a958c", "#e98d22"), strict=True)):
        bars = axes.barh([k + 0.38 * i for k in range(len(QUESTIONS))], rows[name], 0.36, label=name, color=colour)
        axes.bar_label(bars, [f"{value:.3g} s" for value in rows[name]], padding=3, fontsize=8)
    axes.set_yticks([k + 0.19 for k in range(len(QUESTIONS))], list(QUESTIONS))
    axes.invert_yaxis()
    axes.set_xticks([])
    axes.spines[:].set_visible(False)
    axes.legend(frameon=False, loc="center right", fontsize=8)
    figure.savefig(path, dpi=160)


def main(
    model: str,
    file: Path,
    chart: Annotated[Path | None, typer.Option(help="Draw the medians to this PNG or SVG file.")] = None,
    rounds: Annotated[int, typer.Option("-r", min=1, help="Rounds, each server in turn.")] = 1,
) -> None:
    document = read_document(file)
    runs = [{name: measure(model, document, options) for name, options in SERVERS.items()} for _ in range(rounds)]
    rows = {name: [median(run[name][i] for run in runs) for i in range(len(QUESTIONS))] for name in SERVERS}
    for name, row in rows.items():
        print(name, *(f"{title}: {value:.2f} s" for title, value in zip(QUESTIONS, row, strict=True)), sep=", ")
    if chart is not None:
        draw(rows, chart)


if __name__ == "__main__":
    typer.run(main)
