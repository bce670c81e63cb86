"""What quality.py measures, in which settings, on which text. All on the demo model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from h2o_llama import H2OConfig
from h2o_llama.config import SCORERS
from h2o_llama.demo.document import standard_library_text
from h2o_llama.eval import Continuation, Recall, Setting, references
from h2o_llama.eval.settings import REFERENCES
from h2o_llama.eval.task import Task
from h2o_llama.llama import DENSE_TAIL
from quality_tasks import ChunkStarts, Text

CHUNK_SIZE = 512
MEMORY_SIZE = 256
SHORT, MIDDLE, LONG = 2048, 4096, 8192
MEMORY_SIZES = (64, 128, 256, 512)
# Parts of the memory set that are local window.
LOCAL_SHARES = (1 / 2, 3 / 4, 7 / 8)
Schedule = Literal["single_pass", "two_phase"]
SCHEDULES: tuple[Schedule, ...] = ("single_pass", "two_phase")
POOLING = (0, 3)
KINDS = ("single", "multi-key", "pairs")
ONE_KIND = ("multi-key",)
DEPTHS = (0.0, 0.25, 0.5, 0.75, 1.0)
# So far back that only a memory set can have it: at least two chunks before the question.
FAR_DEPTHS = (0.0, 0.25, 0.5)
TAILS = (0, 2, 4, 8, 16, 32, 64, 128)
# The name of the text that is read for the goals.
GOAL_TEXT = "text of the goals"
# Bytes of a window of 2,048 that are a prompt; the others continue it.
PROMPT = 1792

# Their sources are longer than the longest window in every supported Python.
MODULES = (
    "argparse",
    "ast",
    "configparser",
    "datetime",
    "difflib",
    "doctest",
    "enum",
    "ftplib",
    "imaplib",
    "inspect",
    "locale",
    "mailbox",
    "optparse",
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
    "webbrowser",
    "zipfile",
)


@dataclass(frozen=True)
class Effort:
    """How often everything is measured.

    Attributes
    ----------
    windows : dict of int to int
        Lengths N, and windows of text of each.
    goal_windows : int
        Windows of the shortest length for the default against the references: their differences are small.
    samples : int
        Documents for each length, kind and depth of recall; twice as many where the default must be as good as dense.
    prefills : int
        Prefills that are timed.
    """

    windows: dict[int, int]
    goal_windows: int
    samples: int
    prefills: int


FULL = Effort({SHORT: 24, MIDDLE: 16, LONG: 10}, 160, 4, 9)
QUICK = Effort({SHORT: 2, MIDDLE: 2}, 4, 1, 1)


@dataclass(frozen=True)
class Step:
    """One call of `evaluate`. `title` is for people who wait."""

    title: str
    settings: Sequence[Setting]
    n_tokens: int
    tasks: Sequence[Task]
    text: bytes


def text(n_tokens: int, windows: int) -> bytes:
    """Windows of N bytes, each from another module as long as there are any. The demo model's tokens are bytes."""
    rounds = -(-windows // len(MODULES))
    sources = [standard_library_text(rounds * n_tokens, module) for module in MODULES]
    pieces = [source[i * n_tokens : (i + 1) * n_tokens] for i in range(rounds) for source in sources]
    return b"".join(pieces[:windows])


def budgets(memory_size: int, local_share: float) -> H2OConfig:
    """The default, with another M and another part of it as local window."""
    n_chosen = memory_size - H2OConfig.sink_tokens
    local = round(n_chosen * local_share)
    return H2OConfig(local_window=local, heavy_budget=n_chosen - local)


def default(memory_size: int = MEMORY_SIZE) -> H2OConfig:
    """The default with another M, split as the default splits it."""
    h2o = H2OConfig()
    return budgets(memory_size, h2o.local_window / (h2o.local_window + h2o.heavy_budget))


def plain_sum(h2o: H2OConfig) -> H2OConfig:
    """H2O as it was published: sums of attention, nothing pooled."""
    return replace(h2o, scorer="sum", pooling=0)


def scored(h2o: H2OConfig) -> list[Setting]:
    """Every scorer, without and with pooling."""
    return [Setting.of(replace(h2o, scorer=scorer, pooling=pooling)) for scorer in SCORERS for pooling in POOLING]


def reference(h2o: H2OConfig, kind: str) -> Setting:
    """One of `REFERENCES` of the same M."""
    return references(Setting.of(h2o), [kind], CHUNK_SIZE)[0]


def alternatives(h2o: H2OConfig) -> list[Setting]:
    """The default's choice, plain sums, and a window, all of the same M."""
    return [Setting.of(h2o), Setting.of(plain_sum(h2o)), reference(h2o, "window")]


def choices() -> list[Setting]:
    """Every way to choose 256 positions, under both schedules, with two splits."""
    settings = []
    for schedule in SCHEDULES:
        for share in LOCAL_SHARES[:2]:
            h2o = replace(budgets(MEMORY_SIZE, share), schedule=schedule)
            settings += [*scored(h2o), *(reference(h2o, kind) for kind in REFERENCES)]
    return _distinct(settings)


def sizes() -> list[Setting]:
    """Memory sets of all sizes and splits."""
    settings = []
    for size in MEMORY_SIZES:
        for share in LOCAL_SHARES:
            h2o = budgets(size, share)
            settings += alternatives(h2o)
    return _distinct(settings)


def main_settings() -> list[Setting]:
    """The default, plain sums, a window of the same M."""
    return alternatives(default())


def compared() -> list[Setting]:
    """The default, and what it must be better than."""
    return [*main_settings(), reference(default(), "random")]


def continued() -> list[Setting]:
    """What may fill a cache differently: schedules and choices."""
    return [s for schedule in SCHEDULES for s in alternatives(replace(default(), schedule=schedule))]


def started() -> list[Setting]:
    """Every scorer under both schedules."""
    return [s for schedule in SCHEDULES for s in scored(replace(default(), schedule=schedule))]


def steps(effort: Effort, n_threads: int) -> Iterator[Step]:
    """Everything but times, in the order of the report."""

    def step(
        title: str, settings: Sequence[Setting], n_tokens: int, tasks: Sequence[Task], windows: int | None = None
    ) -> Step:
        length = max(n_tokens, SHORT)
        return Step(title, settings, n_tokens, tasks, text(length, windows or effort.windows[length]))

    def recall(kinds: Sequence[str], depths: Sequence[float], dense_tail: int, times: int = 1) -> Recall:
        return Recall(kinds, depths, times * effort.samples, dense_tail)

    many = Text(effort.goal_windows, GOAL_TEXT)
    yield step("goals", compared(), SHORT, [many], effort.goal_windows)
    texts = {n: Text(windows) for n, windows in effort.windows.items()}
    far = recall(KINDS, FAR_DEPTHS, 0)
    yield step("choices", choices(), SHORT, [texts[SHORT], far])
    yield step("sizes", sizes(), SHORT, [texts[SHORT], far, recall(ONE_KIND, FAR_DEPTHS, DENSE_TAIL)])
    for n, of_text in texts.items():
        upper_bound = reference(default(), "upper-bound")
        yield step("lengths", [*main_settings(), upper_bound], n, [of_text, recall(ONE_KIND, DEPTHS, 0)])
        yield step("lengths, after", main_settings()[:1], n, [recall(ONE_KIND, DEPTHS, DENSE_TAIL, times=2)])
    yield step("continuation", continued(), PROMPT, [Continuation(SHORT - PROMPT, effort.windows[SHORT])])
    yield step("tails", main_settings(), SHORT, [recall(ONE_KIND, FAR_DEPTHS, tail) for tail in TAILS])
    yield step("chunk starts", started(), MIDDLE, [ChunkStarts(effort.windows[MIDDLE], n_threads)])


def _distinct(settings: Sequence[Setting]) -> list[Setting]:
    return list(dict.fromkeys(settings))
