"""What quality.py measures: the models, the texts, the settings, and how often."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from h2o_llama import H2OConfig
from h2o_llama.config import SCORERS
from h2o_llama.eval import Perplexity, Ruler, Setting, window
from h2o_llama.eval.ruler import KINDS
from h2o_llama.eval.task import Task
from h2o_llama.eval.text import halves
from h2o_llama.models._named import find_model, find_text
from h2o_llama.models.quantize import quantize_model
from h2o_llama.sequence.generating import DENSE_TAIL
from random_model import CACHE
from references import references
from settings import CHUNK_SIZE, DEFAULT

# The longest N of each: what it was trained for.
MODELS = {"smollm2-135m": 8192, "gemma3-270m": 32768, "qwen2.5-coder-0.5b": 32768, "qwen2.5-coder-1.5b": 32768}
TEXTS = {"prose": "war-and-peace", "documentation": "django-docs", "code": "django-code"}
DENSE_TAILS = (DENSE_TAIL, 0)

# Of the other ways to choose; with weights of 32 bits, so that KL is what H2O leaves out.
EXACT_MODEL = "smollm2-135m"
OTHERS_TEXT = "documentation"
OTHER_CHUNK_SIZES = (512, 2048)
SIZE = DEFAULT.memory_size + DEFAULT.lookup_budget  # M + B
SIZES = (SIZE // 2, SIZE)


@dataclass(frozen=True)
class Effort:
    """How much is measured: of which models, windows of N tokens and prompts of RULER of how many, and for how long.

    The first length is that of the other ways to choose.
    """

    models: tuple[str, ...]
    lengths: tuple[int, ...]
    windows: int
    ruler_lengths: tuple[int, ...]
    ruler_kinds: tuple[str, ...]
    samples: int
    repetitions: int

    def lengths_of(self, model: str) -> list[int]:
        """N that the model was trained for."""
        return [n for n in self.lengths if n <= MODELS[model]]

    def ruler_lengths_of(self, model: str) -> list[int]:
        """The same, of RULER."""
        return [n for n in self.ruler_lengths if n <= MODELS[model]]


FULL = Effort(tuple(MODELS), (4096, 8192, 32000), 4, (4096, 8192, 16384, 32768), KINDS, 5, 3)
QUICK = Effort(("smollm2-135m",), (2048,), 2, (2048,), ("niah_single_1", "vt"), 1, 1)


@dataclass(frozen=True)
class Step:
    """Calls of `evaluate` with tasks whose rows are in one file. Without a text there is none to read."""

    name: str
    n_tokens: int
    model: Path
    settings: Sequence[Setting]
    tasks: Sequence[Task]
    text: str | None = None
    half: int = 1
    chunk_size: int = CHUNK_SIZE


def half(text: str, i: int) -> bytes:
    """The first half of a text, on which settings may be chosen, or the second, which is kept back."""
    return halves(find_text(TEXTS[text]).read_bytes())[i]


def exact_model() -> Path:
    """A model with weights of 32 bits, made on first use.

    Products with quantised weights round activations to 8 bits, and differ between any two ways to attend.

    Raises FileNotFoundError if the model has not been fetched.
    """
    path = CACHE / f"{EXACT_MODEL}-f32.gguf"
    if not path.exists():
        CACHE.mkdir(exist_ok=True)
        quantize_model(find_model(EXACT_MODEL), path, "F32")
    return path


def windows(effort: Effort) -> list[Task]:
    """One by one: a run that is cut off goes on with the next."""
    return [Perplexity(effort.windows, only=i) for i in range(effort.windows)]


def of_size(size: int) -> H2OConfig:
    """The default with this M + B, in the same proportions. There are as many sinks, taken from the local window."""
    share = size / SIZE
    local = round(share * (DEFAULT.sink_tokens + DEFAULT.local_window)) - DEFAULT.sink_tokens
    return replace(DEFAULT, local_window=local, lookup_budget=size - DEFAULT.sink_tokens - local)


def without_lookup(h2o: H2OConfig) -> H2OConfig:
    """As many positions, all of them in the memory set."""
    return replace(h2o, heavy_budget=h2o.heavy_budget + h2o.lookup_budget, lookup_budget=0)


def compared(size: int = SIZE) -> dict[str, Setting]:
    """The default and a window, of the same M + B, by what the report calls them."""
    chosen = Setting.of(of_size(size))
    return {"default": chosen, "window": window(chosen, CHUNK_SIZE)}


def presets() -> dict[str, Setting]:
    """What a text is read with: these two, and the preset that loses least, whose M + B is larger."""
    return {**compared(), "faithful": Setting.of(H2OConfig(preset="faithful"))}


def others() -> dict[str, Setting]:
    """Other ways to choose, of the default's M + B."""
    chosen = Setting.of(DEFAULT)
    (best,) = references(chosen, ["upper-bound"], CHUNK_SIZE)
    found = {
        **compared(),
        "by the index of keys": Setting.of(replace(DEFAULT, retrieval="index")),
        "by the text": Setting.of(replace(DEFAULT, retrieval="ngrams")),
        "upper bound for whole chunks": best,
        **{f"no lookup, `{s}`": Setting.of(replace(without_lookup(DEFAULT), scorer=s)) for s in SCORERS},
    }
    names: dict[Setting, str] = {}
    for name, setting in found.items():
        names.setdefault(setting, name)
    return {name: setting for setting, name in names.items()}


def steps(effort: Effort) -> Iterator[Step]:
    """Everything, in the order of the report: what is soon done first.

    Raises FileNotFoundError if a model or a text has not been fetched.
    """
    for n in effort.lengths:
        for model in (m for m in effort.models if n <= MODELS[m]):
            for text in TEXTS:
                settings = list(presets().values())
                yield Step(f"{model} {text}", n, find_model(model), settings, windows(effort), text)
    n = effort.lengths[0]
    yield Step("others", n, exact_model(), list(others().values()), windows(effort), OTHERS_TEXT)
    for size in SIZES:
        yield Step("sizes", n, exact_model(), list(compared(size).values()), windows(effort), OTHERS_TEXT)
    for chunk_size in OTHER_CHUNK_SIZES:
        if 2 * chunk_size <= n:
            name = f"chunks of {chunk_size}"
            chosen = [compared()["default"]]
            yield Step(name, n, exact_model(), chosen, windows(effort), OTHERS_TEXT, chunk_size=chunk_size)
    for n in effort.ruler_lengths:
        for model in (m for m in effort.models if n <= MODELS[m]):
            for tail in DENSE_TAILS:
                tasks: list[Task] = [Ruler(kind, effort.samples, tail) for kind in effort.ruler_kinds]
                yield Step(f"{model} ruler", n, find_model(model), [compared()["default"]], tasks)
