"""Generation with and without drafts (`generate(draft=)`), on text that quotes itself and on other text.

    python benchmarks/draft.py smollm2-135m --text django.txt

After a prompt of 3,100 tokens. The two alternate; speeds are medians, the ratio is the median of those of neighbours.
"""

from __future__ import annotations

import itertools
import statistics
import time
from pathlib import Path
from typing import Annotated

import typer

from h2o_llama import Llama
from h2o_llama._internal.machine import cpu_model
from h2o_llama.bench.tables import Table

# Between two ends of chunks, so that generated tokens can be taken back to generate again.
N_PROMPT = 3_100
N_GENERATED = 256
N_PASSAGE = 600

COLUMNS = ("temperature", "tokens/s", "with drafts", "ratio", "accepted", "equal")


def main(
    model: Annotated[str, typer.Argument(help="A GGUF model.")],
    text: Annotated[Path, typer.Option(help="A text of at least 10,000 tokens.", exists=True)],
    draft: Annotated[int, typer.Option(help="Tokens of a draft at most.", min=1)] = 15,
    repeats: Annotated[int, typer.Option(help="Measurements of each.", min=1)] = 5,
    dense: Annotated[bool, typer.Option("--dense", help="Without H2O.")] = False,
) -> None:
    """Speed of generation with and without drafts."""
    arguments = {"h2o": None} if dense else {}
    with Llama(model, n_ctx=N_PROMPT + 2 * N_GENERATED, **arguments) as llm:
        print(f"{cpu_model()}, {N_PROMPT:,} tokens, then {N_GENERATED}, drafts of {draft}\n")
        lines = [
            [name, f"{temperature:g}", *measure(llm, prompt, temperature, draft, repeats)]
            for name, (prompt, temperature) in prompts(llm, text.read_text(encoding="utf-8")).items()
        ]
    print(Table("text", COLUMNS, lines, "").markdown())


def prompts(llm: Llama, text: str) -> dict[str, tuple[list[int], float]]:
    """Prompts of N_PROMPT tokens, and the temperature at which to go on."""
    ids = llm.tokenize(text[: 8 * 10_000])
    question = "\n\nRepeat the first three paragraphs of this text, word by word.<|im_end|>\n<|im_start|>assistant\n"
    begin, end = (llm.tokenize(s, add_special=False, parse_special=True) for s in ("<|im_start|>user\n", question))
    return {
        "repeats a passage": ((ids[:N_PASSAGE] * N_PROMPT)[:N_PROMPT], 0.0),
        "asked to quote": (begin + ids[: N_PROMPT - len(begin + end)] + end, 0.0),
        "goes on": (ids[:N_PROMPT], 0.8),
        "goes on elsewhere": (ids[5_000 : 5_000 + N_PROMPT], 1.0),
    }


def measure(llm: Llama, prompt: list[int], temperature: float, draft: int, repeats: int) -> list[str]:
    """The cells of `COLUMNS` after the first."""
    llm.reset()
    llm.eval(prompt[:-1])
    seconds: dict[int, list[float]] = {0: [], draft: []}
    tokens: dict[int, list[int]] = {}
    accepted = ""
    for n_draft in itertools.islice(itertools.cycle(seconds), 2 * repeats):
        with llm._use_context() as context:
            context.remove(len(prompt) - 1)
        llm.eval(prompt[-1:], decode=True)
        before = llm.kv.stats
        start = time.perf_counter()
        generator = llm.generate([], temperature=temperature, seed=1, draft=n_draft)
        tokens[n_draft] = list(itertools.islice(generator, N_GENERATED))
        seconds[n_draft].append((time.perf_counter() - start) / len(tokens[n_draft]))
        after = llm.kv.stats
        n_drafted = after.drafted_tokens - before.drafted_tokens
        accepted = f"{after.accepted_tokens - before.accepted_tokens} of {n_drafted}"
    speeds = [1 / statistics.median(times) for times in seconds.values()]
    n_equal = sum(itertools.accumulate((a == b for a, b in zip(*tokens.values(), strict=False)), min))
    ratio = statistics.median(a / b for a, b in zip(*seconds.values(), strict=True))
    return [*(f"{speed:.1f}" for speed in speeds), f"{ratio:.2f}", accepted, f"{n_equal} of {N_GENERATED}"]


if __name__ == "__main__":
    typer.run(main)
