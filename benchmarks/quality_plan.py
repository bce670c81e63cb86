"""What quality.py measures: the models, the texts, the settings, and how often."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from h2o_llama import H2OConfig, demo_model_path
from h2o_llama.config import SCORERS
from h2o_llama.eval import Perplexity, Recall, Setting, references
from h2o_llama.eval.task import Task
from h2o_llama.llama import DENSE_TAIL
from h2o_llama.named_files import find_model, find_text
from h2o_llama.quantizing import quantize_model
from random_model import CACHE

MODEL, TEXT = "smollm2-135m", "django-docs"
CHUNK_SIZE = 1024
OTHER_CHUNK_SIZES = (512, 2048)
SIZES = (256, 512)  # M + B
SIZE = 512
KINDS = ("single", "multi-key")

# A token of the demo model is a byte, and it reads fewer of them at a time.
BYTE_CHUNK_SIZE = 512
BYTE_SIZE = 256
BYTE_KINDS = ("single", "multi-key", "pairs")


@dataclass(frozen=True)
class Effort:
    """How much is measured, of the real model and (`byte_`) of the demo model.

    `lengths` are N, ascending. `windows` are those of the text that is kept back, `few_windows`, at least two, of other
    texts and for all the scorers. `samples` are documents for each kind and depth.
    """

    lengths: tuple[int, ...]
    byte_lengths: tuple[int, ...]
    windows: int
    byte_windows: int
    few_windows: int
    depths: tuple[float, ...]
    samples: int
    byte_samples: int


FULL = Effort((4096, 8192), (2048, 4096, 8192), 8, 16, 3, (0.0, 0.25, 0.5, 0.75, 1.0), 1, 2)
QUICK = Effort((2048,), (2048,), 4, 4, 2, (0.0, 1.0), 1, 1)


@dataclass(frozen=True)
class Step:
    """One call of `evaluate`, whose rows have a file of their own. Without a text it reads Python's library."""

    name: str
    n_tokens: int
    model: Path
    chunk_size: int
    settings: Sequence[Setting]
    task: Task
    text: bytes | None = None


def exact_model() -> Path:
    """The real model with weights of 32 bits, made on first use.

    Products with Q8_0 weights round activations to 8 bits, and differ between any two ways to attend: KL would have
    more of that than of what H2O leaves out.

    Raises FileNotFoundError if the model has not been fetched.
    """
    path = CACHE / f"{MODEL}-f32.gguf"
    if not path.exists():
        CACHE.mkdir(exist_ok=True)
        quantize_model(find_model(MODEL), path, "F32")
    return path


def english() -> tuple[bytes, bytes]:
    """The first half of the text, on which settings may be tuned, and the second, which is kept back."""
    text = find_text(TEXT).read_bytes()
    middle = text.index(b"\n\n", len(text) // 2)
    return text[:middle], text[middle:]


def size_of(h2o: H2OConfig) -> int:
    """M + B."""
    return h2o.memory_size + h2o.lookup_budget


def default(size: int) -> H2OConfig:
    """The default with this M + B, in the same proportions. There are as many sinks, taken from the local window."""
    h2o = H2OConfig()
    share = size / size_of(h2o)
    local = round(share * (h2o.sink_tokens + h2o.local_window)) - h2o.sink_tokens
    lookup = round(share * h2o.lookup_budget)
    heavy = size - h2o.sink_tokens - local - lookup
    return replace(h2o, local_window=local, heavy_budget=heavy, lookup_budget=lookup)


def without_lookup(h2o: H2OConfig) -> H2OConfig:
    """As many positions, all of them in the memory set."""
    return replace(h2o, heavy_budget=h2o.heavy_budget + h2o.lookup_budget, lookup_budget=0)


def with_lookup(h2o: H2OConfig) -> H2OConfig:
    """As many positions, some of them looked up: half of the local window if nothing is looked up by default."""
    half = h2o.local_window // 2
    return h2o if h2o.lookup_budget else replace(h2o, local_window=h2o.local_window - half, lookup_budget=half)


def compared(size: int, chunk_size: int) -> dict[str, Setting]:
    """The default and what it is judged by, all of the same M + B, by what the report calls them."""
    chosen = Setting.of(default(size))
    window, best = references(chosen, ["window", "upper-bound"], chunk_size)
    return {"default": chosen, "window": window, "upper bound": best}


def by_index() -> Setting:
    """The default, where what is looked up is found by the index of keys."""
    return Setting.of(replace(default(SIZE), retrieval="index"))


def alternatives(size: int, chunk_size: int) -> dict[str, Setting]:
    """`compared`, and other ways to choose."""
    plain = without_lookup(default(size))
    others = {
        "plain sums, as in the H2O paper": Setting.of(replace(plain, scorer="sum")),
    }
    return _distinct(compared(size, chunk_size) | others)


def byte_alternatives() -> dict[str, Setting]:
    """`alternatives` on the demo model, and both schedules without lookup."""
    plain = without_lookup(default(BYTE_SIZE))
    others = {
        "`single_pass` without lookup": Setting.of(replace(plain, schedule="single_pass")),
        "`two_phase` without lookup": Setting.of(replace(plain, schedule="two_phase")),
    }
    return _distinct(alternatives(BYTE_SIZE, BYTE_CHUNK_SIZE) | others)


def sizes() -> dict[int, dict[str, Setting]]:
    """`compared` for every M + B."""
    return {size: compared(size, CHUNK_SIZE) for size in SIZES}


def grid() -> dict[str, tuple[Setting, Setting]]:
    """Every scorer, without and with lookup, all of the same M + B."""
    h2o = default(SIZE)
    return {
        scorer: tuple(Setting.of(replace(split(h2o), scorer=scorer)) for split in (without_lookup, with_lookup))  # type: ignore[misc]
        for scorer in SCORERS
    }


def steps(effort: Effort) -> Iterator[Step]:
    """Everything, in the order of the report.

    Raises FileNotFoundError if the model or the text has not been fetched.
    """
    exact = exact_model()
    tuned_on, kept_back = english()
    windows, few = Perplexity(effort.windows), Perplexity(effort.few_windows)

    def step(name: str, n: int, settings: Sequence[Setting], task: Task, text: bytes | None = None) -> Step:
        return Step(name, n, exact, CHUNK_SIZE, list(dict.fromkeys(settings)), task, text)

    def byte_step(name: str, n: int, settings: Sequence[Setting], task: Task) -> Step:
        return Step(name, n, demo_model_path(), BYTE_CHUNK_SIZE, list(dict.fromkeys(settings)), task)

    chosen, window, best = compared(SIZE, CHUNK_SIZE).values()
    short, *longer = effort.lengths
    of_sizes = [s for settings in sizes().values() for name, s in settings.items() if name != "upper bound"]
    of_short = [*alternatives(SIZE, CHUNK_SIZE).values(), by_index(), *of_sizes]
    yield step("kept back", short, of_short, windows, kept_back)
    for n in longer:
        yield step("kept back", n, [chosen, window, best, by_index()], windows, kept_back)
    for chunk_size in other_chunk_sizes(effort):
        at_longest = step(f"chunks of {chunk_size}", effort.lengths[-1], [chosen], windows, kept_back)
        yield replace(at_longest, chunk_size=chunk_size)
    for n in effort.lengths:
        yield replace(step("as kept", n, [chosen, by_index()], windows, kept_back), model=find_model(MODEL))
    yield step("code", short, [chosen, window], few)
    yield step("tuned on", short, [chosen, window], few, tuned_on)
    of_grid = [setting for pair in grid().values() for setting in pair]
    yield step("scorers", short, of_grid, few, tuned_on)
    for name, dense_tail in (("within", 0), ("after", DENSE_TAIL)):
        recall = Recall(KINDS, effort.depths, effort.samples, dense_tail, haystack=kept_back)
        yield step(name, short, [chosen], recall)

    of_bytes = Perplexity(effort.byte_windows)
    shared = list(compared(BYTE_SIZE, BYTE_CHUNK_SIZE).values())
    short, *longer = effort.byte_lengths
    yield byte_step("bytes", short, list(byte_alternatives().values()), of_bytes)
    for n in longer:
        yield byte_step("bytes", n, shared, Perplexity(effort.few_windows))
    yield byte_step("bytes within", longest(effort), shared, _byte_recall(effort, 0))
    yield byte_step("bytes after", longest(effort), shared[:1], _byte_recall(effort, DENSE_TAIL))


def other_chunk_sizes(effort: Effort) -> list[int]:
    """Those of which the longest text has two."""
    return [size for size in OTHER_CHUNK_SIZES if 2 * size <= effort.lengths[-1]]


def longest(effort: Effort) -> int:
    """N of the demo model's recall."""
    return effort.byte_lengths[-1]


def _byte_recall(effort: Effort, dense_tail: int) -> Recall:
    return Recall(BYTE_KINDS, effort.depths, effort.byte_samples, dense_tail)


def _distinct(named: dict[str, Setting]) -> dict[str, Setting]:
    """Each setting once, by its first name."""
    names: dict[Setting, str] = {}
    for name, setting in named.items():
        names.setdefault(setting, name)
    return {name: setting for setting, name in names.items()}
