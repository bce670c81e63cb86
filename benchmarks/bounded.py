"""What eviction, snapshots and several sequences save: the figures of docs/eviction.md.

    python benchmarks/bounded.py smollm2-135m --text django.txt

Each figure is of one run in which the two things compared alternate. `--long` is how far the demo model reads for the
memory of a process; it takes minutes.
"""

from __future__ import annotations

import statistics
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from acceptance.memory import peaks
from h2o_llama import H2OConfig, Llama, Model
from h2o_llama._internal.machine import cpu_model

EVICT = H2OConfig(evict=True)
CHUNK = 1024


def main(
    model: Annotated[str, typer.Argument(help="A GGUF model.")],
    text: Annotated[Path, typer.Option(help="A long text.", exists=True)],
    long: Annotated[int, typer.Option(help="Tokens that the demo model reads.")] = 1_000_000,
) -> None:
    """Print a Markdown table."""
    warnings.simplefilter("ignore")  # texts are longer than what the model was trained for
    console = Console(soft_wrap=True, highlight=False)
    console.print(f"{cpu_model()}\n\n| | measured | goal |\n|---|--:|--:|")
    tokens = read(model, text)
    for measure in (kv_bytes, generation, prefill, snapshot, forks, sequences, cold_store):
        for line in measure(model, tokens):
            console.print(line)
    console.print(process_memory(long, EVICT, "peak memory", "≤ 2 %"))
    with tempfile.TemporaryDirectory() as folder:
        stored = H2OConfig(evict=True, cold_store=folder)
        console.print(process_memory(long, stored, "the same with a cold store on disk", "≤ 10 %"))


def read(model: str, text: Path) -> list[int]:
    """70,000 tokens: the text, again and again."""
    with Model(model) as llm:
        tokens = llm.tokenize(text.read_bytes()[:400_000])
    return (tokens * (70_000 // len(tokens) + 1))[:70_000]


def row(name: str, measured: str, goal: str) -> str:
    return f"| {name} | {measured} | {goal} |"


def seconds(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def ratio(first: Callable[[], float], second: Callable[[], float], n: int) -> float:
    """The median of first over second, in turns."""
    return statistics.median([first() / second() for _ in range(n)])


def kv_bytes(model: str, _: list[int]) -> Iterator[str]:
    n_bytes = []
    for h2o in (None, EVICT):
        with Llama(model, n_ctx=32_768, h2o=h2o) as llm:
            n_bytes.append(llm.kv.stats.kv_bytes)
    yield row("K/V bytes at N = 32,768, dense over evict", f"{n_bytes[0] / n_bytes[1]:.1f}×", "≥ 20×")


def generate(llm: Llama, tokens: list[int]) -> float:
    """Tokens per second, of given ones: a text that is drawn may end early."""
    return len(tokens) / seconds(lambda: [llm.eval([token], decode=True) for token in tokens])


def generation(model: str, tokens: list[int]) -> Iterator[str]:
    with Llama(model, h2o=EVICT) as deep, Llama(model, h2o=EVICT) as shallow:
        deep.eval(tokens[:65_536])
        shallow.eval(tokens[:2_048])
        speed = ratio(lambda: generate(deep, tokens[:64]), lambda: generate(shallow, tokens[:64]), 9)
    yield row("generation at depth 65,536 over 2,048", f"{speed:.2f}", "≥ 0.97")


def prefill(model: str, tokens: list[int]) -> Iterator[str]:
    kept = H2OConfig(heavy_budget=EVICT.heavy_budget, lookup_budget=0, decode="memory")
    with Llama(model, n_ctx=8_192, h2o=EVICT) as evict, Llama(model, n_ctx=8_192, h2o=kept) as keep:

        def read_all(llm: Llama) -> float:
            llm.reset()
            return 1 / seconds(lambda: llm.eval(tokens[:8_192]))

        speed = ratio(lambda: read_all(evict), lambda: read_all(keep), 5)
    yield row("prefill of 8,192 with eviction over without", f"{speed:.2f}", "≥ 0.97")


def snapshot(model: str, tokens: list[int]) -> Iterator[str]:
    with (
        tempfile.TemporaryDirectory() as folder,
        Llama(model, n_ctx=32_768, h2o=None) as dense,
        Llama(model, h2o=EVICT) as llm,
    ):
        dense_bytes = dense.kv.stats.kv_bytes
        read_s = seconds(lambda: llm.eval(tokens[:32_768]))
        file = Path(folder) / "snapshot"
        llm.save(file)
        load_s = statistics.median([seconds(lambda: llm.load(file)) for _ in range(5)])
        size = file.stat().st_size
    yield row("snapshot of 32,768 tokens, dense K/V over its bytes", f"{dense_bytes / size:.0f}×", "≥ 20×")
    yield row("loading it over reading the text again", f"{read_s / load_s:.0f}×", "≥ 20×")


def forks(model: str, tokens: list[int]) -> Iterator[str]:
    """Eight questions of 32 tokens about a document of 4,096, each answered with 16: at once, or one after another."""
    document, questions = tokens[:4_096], [tokens[5_000 + 32 * i :][:32] for i in range(8)]
    with Llama(model, n_ctx=8_192, h2o=EVICT, n_seq_max=9) as llm:

        def with_forks() -> None:
            llm.reset()
            llm.eval(document)
            with ExitStack() as stack:
                prompts = {stack.enter_context(llm.fork()): question for question in questions}
                for _ in llm.generate_many(prompts, max_tokens=16, temperature=0.0):
                    pass

        def without() -> None:
            for question in questions:
                llm.reset()
                list(islice(llm.generate(document + question, temperature=0.0), 16))

        gain = ratio(lambda: seconds(without), lambda: seconds(with_forks), 3)
    yield row("8 forks answering 8 questions, over reading the document 8 times", f"{gain:.1f}×", "≥ 6×")


def sequences(model: str, tokens: list[int]) -> Iterator[str]:
    """32 tokens of each, after 1,500."""
    with Llama(model, n_ctx=2_048, h2o=EVICT, n_seq_max=8) as llm:
        others = [llm, *(llm.sequence() for _ in range(7))]
        for i, sequence in enumerate(others):
            sequence.eval(tokens[100 * i :][:1_500])

        goes_on = {llm.token_eos: -1e9}  # one that ended would leave the others alone

        def speed(n: int) -> float:
            prompts = {sequence: [1] for sequence in others[:n]}
            steps = llm.generate_many(prompts, max_tokens=32, temperature=1.0, seed=1, logit_bias=goes_on)
            start = time.perf_counter()
            n_tokens = sum(map(len, steps))
            assert n_tokens == 32 * n
            return n_tokens / (time.perf_counter() - start)

        gain = ratio(lambda: speed(8), lambda: speed(1), 5)
    yield row("8 sequences generating at once, over one (tokens/s in total)", f"{gain:.2f}×", "≥ 2.5×")


def cold_store(model: str, tokens: list[int]) -> Iterator[str]:
    """Of evicted positions, looked up in a file and by a dense tail of 128 tokens."""
    with tempfile.TemporaryDirectory() as folder:
        stored, kept = H2OConfig(evict=True, cold_store=folder), H2OConfig()
        with (
            Llama(model, h2o=EVICT) as evict,
            Llama(model, h2o=stored) as store,
            Llama(model, n_ctx=8_192, h2o=kept) as keep,
        ):

            def read(llm: Llama, n: int, dense_tail: int = 0) -> float:
                return seconds(lambda: llm.eval(tokens[llm.n_tokens :][:n], dense_tail=dense_tail))

            def read_all(llm: Llama) -> float:
                llm.reset()
                return read(llm, 8_000)

            def tail(llm: Llama) -> float:
                llm.reset()
                read(llm, 8_000)
                return read(llm, 128, dense_tail=128)

            speed = ratio(lambda: read_all(evict), lambda: read_all(store), 5)
            yield row("prefill with a cold store on disk over eviction alone", f"{speed:.2f}", "–")
            speed = ratio(lambda: generate(store, tokens[:64]), lambda: generate(evict, tokens[:64]), 9)
            yield row("generation with a cold store on disk over eviction alone", f"{speed:.2f}", "≥ 0.8")
            time_of_tail = ratio(lambda: tail(store), lambda: tail(keep), 3)
            yield row(
                "time of a question's dense tail, cold store on disk over everything kept", f"{time_of_tail:.2f}", "–"
            )


def process_memory(long: int, h2o: H2OConfig, name: str, goal: str) -> str:
    """Peak resident memory of a process of its own, after 65,536 tokens and after `long`."""
    found = peaks(long, h2o.cold_store)
    if found is None:
        return row(name, "not told by this system", goal)
    first, last = found
    return row(
        f"{name} from 65,536 to {long:,} tokens (demo model)", f"+{last / first - 1:.1%} of {first >> 20} MiB", goal
    )


if __name__ == "__main__":
    typer.run(main)
