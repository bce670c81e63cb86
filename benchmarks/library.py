"""What a library saves: the figures of docs/library.md.

    python benchmarks/library.py qwen2.5-coder-0.5b --text django-code

Times are CPU times of all threads, until the first token of an answer is drawn: another program on the machine changes
them little. A restart is another `Llama` with another `Library` on the same folder.
"""

from __future__ import annotations

import random
import shutil
import tempfile
import time
import warnings
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from h2o_llama import H2OConfig, Library, Llama, Model
from h2o_llama._internal.machine import cpu_model
from h2o_llama.cli.prompt import read_text

QUESTIONS = ("Which classes are defined here?", "Which of the functions raises an error, and when?")
LINE = "| {} | {} | {} |"


class Bench:
    """A model, a text and a folder."""

    def __init__(self, model: str, text: Path, folder: Path, threads: int | None) -> None:
        self.weights = Model(model)
        self.tokens = self.weights.tokenize(read_text(text)[:4_000_000])
        self.folder = folder
        self.threads = threads

    def open(self, n: int, name: str | None = None, h2o: Any = "auto") -> Llama:
        library = None if name is None else Library(self.folder / name, limit_bytes=1 << 40)
        return Llama(self.weights, n_ctx=n + 1024, n_threads=self.threads, h2o=h2o, library=library)

    def document(self, n: int, i: int = 0) -> str:
        return self.weights.detokenize(self.tokens[i * n : (i + 1) * n]).decode(errors="replace")

    def ask(self, llm: Llama, document: str, question: str, n: int = 1) -> tuple[float, int]:
        """Document and question in one message: CPU seconds, and tokens that were known."""
        start = time.process_time()
        messages = [{"role": "user", "content": f"{document}\n\n{question}"}]
        answer = llm.create_chat_completion(messages, max_tokens=n, temperature=0)
        seconds = time.process_time() - start
        if llm.library is not None:
            llm.library.flush()
        return seconds, answer["usage"]["prompt_tokens_details"]["cached_tokens"]

    def restart(self, n: int) -> str:
        seconds = []
        for question in QUESTIONS:
            with self.open(n, "restart") as llm:
                seconds.append(self.ask(llm, self.document(n), question)[0])
        first, second = seconds
        name = f"second question on {n:,} tokens, after a restart, over the first ({first:.1f} s)"
        return LINE.format(name, f"{second / first:.3f}", "≤ 0.02")

    def one_run(self, n: int) -> str:
        with self.open(n, "one-run") as llm:
            first, second = (self.ask(llm, self.document(n), question)[0] for question in QUESTIONS)
        return LINE.format(f"the same in one run, {n:,} tokens ({first:.1f} s)", f"{second / first:.3f}", "≤ 0.05")

    def sizes(self, n: int) -> list[str]:
        ngrams = H2OConfig(retrieval="ngrams")
        lines = []
        for name, h2o, goal in (
            ("index", "auto", "≤ 1"),
            ("ngrams", ngrams, "≤ 0.85"),
            ("evict", H2OConfig(evict=True), "≤ 0.05"),
        ):
            with self.open(n, name, h2o) as llm:
                llm.eval(self.tokens[:n])
                dense = n * llm.kv.stats.token_bytes
                assert llm.library is not None
                llm.library.flush()
                lines.append(
                    LINE.format(
                        f"bytes of {n:,} tokens over dense K and V, {name}", f"{llm.library.n_bytes / dense:.3f}", goal
                    )
                )
        return lines

    def conversations(self, n: int) -> str:
        rng, sizes = random.Random(0), []
        for i in range(10):
            with self.open(n, "conversations") as llm:
                self.ask(llm, self.document(n), f"{QUESTIONS[i % 2]} Tell {i + 3} things. {rng.random()}", 100)
                assert llm.library is not None
                sizes.append(llm.library.n_bytes)
        return LINE.format(
            f"ten conversations about {n:,} tokens, bytes over one", f"{sizes[-1] / sizes[0]:.2f}", "≤ 1.3"
        )

    def documents(self, n: int, n_documents: int = 20) -> str:
        reading, known, n_hits = 0.0, 0.0, 0
        for i in range(n_documents):
            with self.open(n, "documents") as llm:
                reading += self.ask(llm, self.document(n, i), QUESTIONS[0])[0]
        for i in random.Random(1).sample(range(n_documents), n_documents):
            with self.open(n, "documents") as llm:
                seconds, n_known = self.ask(llm, self.document(n, i), QUESTIONS[1])
                known += seconds
                n_hits += n_known > 0.9 * n
        name = f"{n_documents} questions on {n_documents} documents of {n:,} tokens, after restarts: times faster; hits"
        return LINE.format(name, f"{reading / known:.1f}; {n_hits}", "≥ 10; all")


def main(
    model: Annotated[str, typer.Argument(help="A GGUF model with a chat template.")],
    text: Annotated[Path, typer.Option(help="A long text.")],
    n_long: Annotated[int, typer.Option(help="Tokens of a long document.")] = 30_000,
    n_short: Annotated[int, typer.Option(help="Tokens of a short one.")] = 3500,
    threads: Annotated[int | None, typer.Option(help="One where other programs use the machine.")] = None,
    n_many: Annotated[int, typer.Option(help="Tokens of each of twenty documents.")] = 1500,
) -> None:
    """Print a Markdown table."""
    warnings.simplefilter("ignore")
    console = Console(soft_wrap=True, highlight=False)
    folder = Path(tempfile.mkdtemp(prefix="library-"))
    try:
        bench = Bench(model, text, folder, threads)
        console.print(f"{cpu_model()}\n\n| | measured | goal |\n|---|--:|--:|")
        console.print(bench.one_run(n_short))
        console.print(bench.restart(n_long))
        for line in bench.sizes(n_long):
            console.print(line)
        console.print(bench.conversations(n_long))
        console.print(bench.documents(n_many))
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    typer.run(main)
