"""Time to the first token of questions about a long document, before and after a restart, several clients at once, and
what a document takes in the prompt cache: the tables of docs/serve.md.

    python benchmarks/serve.py smollm2-135m --text django.txt
    python benchmarks/serve.py smollm2-135m --text django.txt --repetitions 0 --clients 8 --n-tokens 6000
    python benchmarks/serve.py smollm2-135m --text django.txt --repetitions 0 --cached 30000

Servers with H2O, with eviction and dense take turns. Requests go to 127.0.0.1 only.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import numpy as np
import typer

from h2o_llama import H2OConfig, Library, Llama
from h2o_llama._internal.apart import resident_bytes
from h2o_llama._internal.machine import cpu_model
from random_model import ModelSpec, make_prompt, model_file
from settings import parts_of

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from servers import Server, serving

SERVERS = {
    "H2O": [],
    "--evict": ["--evict"],
    "--evict --chunk 512": ["--evict", "--chunk", "512"],
    "--h2o off": ["--h2o", "off"],
}
QUESTIONS = ("What is this document about? Answer in one sentence.", "Which of its details is surprising?")


def main(
    model: Annotated[str, typer.Argument(help="A GGUF model with a chat template.")],
    text: Annotated[Path, typer.Option(help="A long text.", exists=True)],
    n_tokens: Annotated[int, typer.Option(help="Tokens of the document.")] = 7_500,
    repetitions: Annotated[int, typer.Option(help="Runs, of which the medians count; 0: leave that out.")] = 3,
    clients: Annotated[int, typer.Option(help="Clients at once, with a document each; 0: leave that out.")] = 0,
    cached: Annotated[int, typer.Option(help="Tokens of a document in the prompt cache; 0: leave that out.")] = 0,
) -> None:
    """Print Markdown tables."""
    parts = parts_of(model, text, n_tokens, max(1, clients))
    print(f"{cpu_model()}, {n_tokens:,} tokens")
    if repetitions:
        two_questions(model, parts[0], repetitions)
    if clients:
        at_once(model, parts)
    if cached:
        in_the_cache(cached)


def two_questions(model: str, document: str, repetitions: int) -> None:
    """Time to the first token, in servers that take turns, and of the same when they are started again."""
    print("\n| | first question, s | second, s | after a restart, s | second, s | K and V, MB | library, MB |")
    print("|---|--:|--:|--:|--:|--:|--:|", flush=True)
    found: dict[str, list[list[float]]] = {name: [] for name in SERVERS}
    for _ in range(repetitions):
        for name, options in SERVERS.items():
            with TemporaryDirectory() as folder:
                times: list[float] = []
                for _ in range(2):
                    with server_of(model, options, library=folder) as server:
                        for question in QUESTIONS:
                            seconds, timings = ask(server.port, document, question, 8)
                            times.append(seconds)
                found[name].append([*times, timings.get("h2o_kv_kept_bytes", 0) / 1e6, Library(folder).n_bytes / 1e6])
    for name, rows in found.items():
        *times, kept, library = (statistics.median(column) for column in zip(*rows, strict=True))
        seconds = " | ".join(f"{time:.2f}" for time in times)
        print(f"| {name} | {seconds} | {f'{kept:.0f}' if kept else '–'} | {library:.0f} |", flush=True)


def at_once(model: str, parts: list[str]) -> None:
    """Tokens a second of clients that get 128 tokens about a document each, and the server's memory in the end."""
    print("\n| | tokens/s | seconds | resident, MB |\n|---|--:|--:|--:|", flush=True)
    for name, options in SERVERS.items():
        with server_of(model, [*options, "--parallel", str(len(parts))]) as server:
            start = time.perf_counter()
            with ThreadPoolExecutor(len(parts)) as pool:
                answers = list(pool.map(lambda part: ask(server.port, part, QUESTIONS[0], 128, ignore_eos=True), parts))
            seconds, memory = time.perf_counter() - start, resident_bytes(server.process.pid) or 0
        n = sum(timings["predicted_n"] for _, timings in answers)
        print(f"| {name} | {n / seconds:.1f} | {seconds:.0f} | {memory / 1e6:.0f} |", flush=True)


def in_the_cache(n_tokens: int) -> None:
    """What a document that ends in the middle of a chunk takes in the prompt cache, for Qwen3-0.6B's shape.

    Measured with 2 and 4 layers, of which the model has 28.
    """
    print("\n| | state, MB | with a checkpoint | if the answer closed the chunk | documents in 1 GB |")
    print("|---|--:|--:|--:|--:|")
    for name, h2o in (("--evict", H2OConfig(evict=True)), ("--h2o", "off", None)):
        few, more = (np.array(entry_sizes(ModelSpec(n_layer=n), n_tokens, h2o)) for n in (2, 4))
        entry = few + (more - few) / 2 * 26
        sizes = " | ".join(f"{size / 1e6:.0f}" for size in entry)
        print(f"| {name} | {sizes} | {1e9 / entry[1]:.2f}; {1e9 / entry[2]:.2f} |", flush=True)


def entry_sizes(spec: ModelSpec, n_tokens: int, h2o: H2OConfig | None) -> list[float]:
    """Bytes of the state, with a checkpoint, and when the checkpoint has rows of its own."""
    chunk, n_measured = 1024, 2048
    n = n_tokens // chunk * chunk + chunk // 2
    if h2o is None:  # so many bytes a token
        with Llama(model_file(spec), n_ctx=n_measured, h2o=None) as llm:
            llm.eval(make_prompt(spec, n_measured))
            return [len(llm.snapshot().state) / n_measured * n] * 3
    prompt = make_prompt(spec, n + chunk)
    with Llama(model_file(spec), n_batch=chunk, h2o=h2o) as llm:
        llm.eval(prompt[:n])
        state, scores = state_size(llm), state_size(llm, partial=True, rows=False)
        llm.eval(prompt[n : n + chunk // 2 - 1])
        rows = state_size(llm, partial=True)
        llm.eval(prompt[n + chunk // 2 - 1 :][:64])
        return [state, state + scores, state_size(llm) + scores + rows]


def state_size(llm: Llama, partial: bool = False, rows: bool = True) -> int:
    """Bytes of a state of the server, or of a checkpoint."""
    with llm._use_context() as context:
        return len(context.get_state(partial, rows))


@contextmanager
def server_of(model: str, options: list[str], library: str = "off") -> Iterator[Server]:
    with TemporaryDirectory() as folder, serving(Path(folder) / "log", model, *options, library=library) as server:
        yield server


def ask(port: int, document: str, question: str, n: int, **options: Any) -> tuple[float, dict[str, Any]]:
    """Seconds to the first token, and the server's timings."""
    messages = [{"role": "system", "content": document}, {"role": "user", "content": question}]
    body = {"messages": messages, "max_tokens": n, "temperature": 0, "stream": True, "timings_per_token": True}
    body |= options
    start, first, timings = time.perf_counter(), 0.0, {}
    connection = HTTPConnection("127.0.0.1", port, timeout=3600)
    connection.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"})
    for line in connection.getresponse():
        if line.startswith(b"data: {"):
            event = json.loads(line[6:])
            if not first and event["choices"] and event["choices"][0]["delta"].get("content"):
                first = time.perf_counter() - start
            timings = event.get("timings", timings)
    return first, timings


if __name__ == "__main__":
    typer.run(main)
