"""Time to the first token of questions about a long document, and several clients at once: the table of docs/serve.md.

    python benchmarks/serve.py smollm2-135m --text django.txt

Servers with H2O, with eviction and dense take turns. Requests go to 127.0.0.1 only.
"""

from __future__ import annotations

import json
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import Annotated, Any

import typer

from h2o_llama import Llama
from h2o_llama.machine import cpu_model

SERVERS = {"H2O": [], "--evict": ["--evict"], "--no-h2o": ["--no-h2o"]}
QUESTIONS = ("What is this document about? Answer in one sentence.", "Which of its details is surprising?")


def main(
    model: Annotated[str, typer.Argument(help="A GGUF model with a chat template.")],
    text: Annotated[Path, typer.Option(help="A long text.", exists=True)],
    n_tokens: Annotated[int, typer.Option(help="Tokens of the document.")] = 7_500,
    repetitions: Annotated[int, typer.Option(help="Runs, of which the medians count.")] = 3,
    clients: Annotated[int, typer.Option(help="Clients at once, with a document each; 0: leave that out.")] = 0,
) -> None:
    """Print Markdown tables."""
    parts = documents(model, text, n_tokens, max(1, clients))
    print(f"{cpu_model()}, {n_tokens:,} tokens\n")
    print("| | first question, s | second question, s | K and V, MB |\n|---|--:|--:|--:|", flush=True)
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in SERVERS}
    kept: dict[str, int] = {}
    for _ in range(repetitions):
        for name, options in SERVERS.items():
            with serving(model, options) as port:
                first, _ = ask(port, parts[0], QUESTIONS[0], 8)
                second, timings = ask(port, parts[0], QUESTIONS[1], 8)
            found[name].append((first, second))
            kept[name] = round(timings.get("h2o_kv_kept_bytes", 0) / 1e6)
    for name, times in found.items():
        first, second = (statistics.median(column) for column in zip(*times, strict=True))
        print(f"| {name} | {first:.1f} | {second:.2f} | {kept[name] or '–'} |")
    for name, options in SERVERS.items() if clients else ():
        with serving(model, [*options, "--parallel", str(clients)]) as port, ThreadPoolExecutor(clients) as pool:
            start = time.perf_counter()
            answers = list(pool.map(lambda part: ask(port, part, QUESTIONS[0], 128), parts))
            seconds = time.perf_counter() - start
        n = sum(timings["predicted_n"] for _, timings in answers)
        print(f"\n{name}: {clients} clients, {n} tokens in {seconds:.0f} s, {n / seconds:.1f} a second", flush=True)


def documents(model: str, text: Path, n_tokens: int, n: int) -> list[str]:
    """Parts of the text, so many tokens each."""
    with Llama(model, n_ctx=1, n_batch=1, n_ubatch=1, h2o=None) as llm:
        tokens = llm.tokenize(text.read_bytes()[: 12 * n * n_tokens])
        return [llm.detokenize(tokens[i * n_tokens :][:n_tokens]).decode(errors="replace") for i in range(n)]


@contextmanager
def serving(model: str, options: list[str]) -> Iterator[int]:
    """A server's port."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
    command = [
        sys.executable,
        "-c",
        "from h2o_llama.cli import app; app()",
        "serve",
        model,
        "--port",
        str(port),
        *options,
    ]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        while not is_ready(port):
            time.sleep(0.1)
            if process.poll() is not None:
                sys.exit(f"the server ended with status {process.returncode}")
        yield port
    finally:
        process.terminate()
        process.wait()


def is_ready(port: int) -> bool:
    try:
        return bool(request(port, "GET", "/health").status == 200)
    except OSError:
        return False


def request(port: int, method: str, path: str, body: Any = None) -> Any:
    connection = HTTPConnection("127.0.0.1", port, timeout=3600)
    connection.request(method, path, None if body is None else json.dumps(body), {"Content-Type": "application/json"})
    return connection.getresponse()


def ask(port: int, document: str, question: str, n: int) -> tuple[float, dict[str, Any]]:
    """Seconds to the first token, and the server's timings."""
    messages = [{"role": "system", "content": document}, {"role": "user", "content": question}]
    body = {"messages": messages, "max_tokens": n, "temperature": 0, "stream": True, "timings_per_token": True}
    start, first, timings = time.perf_counter(), 0.0, {}
    for line in request(port, "POST", "/v1/chat/completions", body):
        if line.startswith(b"data: {"):
            event = json.loads(line[6:])
            first = first or (time.perf_counter() - start) * bool(
                event["choices"] and event["choices"][0]["delta"].get("content")
            )
            timings = event.get("timings", timings)
    return first, timings


if __name__ == "__main__":
    typer.run(main)
