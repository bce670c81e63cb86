"""What speed must reach, next to what it reaches."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from draft import Row as DraftRow
from goal import Goal
from h2o_llama.bench import Report
from h2o_llama.bench.rows import Row
from h2o_llama.eval import Setting
from settings import DEFAULT

INDEX = replace(DEFAULT, retrieval="index")
MEMORY = replace(DEFAULT, decode="memory")
INDEX_MEMORY = replace(INDEX, decode="memory")

REAL_DEPTHS = SHALLOW, DEEP = 2048, 8192
RANDOM_DEPTH = 16384

# By the texts of draft.py: what repeats something of its prompt, and what does not.
DRAFT_BOUNDS = {"repeats a passage": 1.8, "asked to quote": 1.8, "goes on": 0.97, "goes on elsewhere": 0.97}


def goals(random: Report, real: Report, drafts: list[DraftRow]) -> Iterator[Goal]:
    """All goals. What is called "over dense" is over the better dense mode of that length."""
    default, index, memory, index_memory = (Setting.of(h).name for h in (DEFAULT, INDEX, MEMORY, INDEX_MEMORY))

    full = _find(real, "generation", DEEP, default)
    yield Goal(f"generation, all K and V, SmolLM2, depth {DEEP:,}: over dense", 1.5, full.get("over_dense"))
    yield Goal("the same: share of the memory's bandwidth", 0.65, full.get("of_bandwidth"))
    for name, mode, real_bound, random_bound in (("lookup", memory, 2.0, 6.0), ("index", index_memory, 1.5, 3.0)):
        deep, shallow = (_find(real, "generation", n, mode) for n in (DEEP, SHALLOW))
        what = f'generation, `decode="memory"` by {name}'
        yield Goal(f"{what}, SmolLM2, depth {DEEP:,}: over dense", real_bound, deep.get("over_dense"))
        if name == "lookup":
            yield Goal(f"{what}: over itself at {SHALLOW:,}", 0.97, _ratio(deep, shallow))
        far = _find(random, "generation", RANDOM_DEPTH, mode)
        yield Goal(f"{what}, random model, depth {RANDOM_DEPTH:,}: over dense", random_bound, far.get("over_dense"))
    for n, bound in ((8192, 0.75), (32768, 0.45)):
        ratio = _ratio(_find(random, "prefill", n, index), _find(random, "prefill", n, default))
        yield Goal(f"prefill by index, {n:,}: over by lookup", bound, ratio)
    for n, bound in ((8192, 3.0), (32768, 6.0)):
        over = _find(random, "prefill", n, index).get("over_dense")
        yield Goal(f"prefill by index, {n:,}: over dense", bound, over)
    first = max((r["tokens_per_s"] for r in random.rows if _is_dense(r) and r["n_tokens"] == 1024), default=None)
    speed = _find(random, "prefill", 8192, default).get("tokens_per_s")
    over_first = speed / first if speed and first else None
    yield Goal("prefill, 8,192: over dense's first 1,024", 1.0, over_first, stretch=1.15)
    ratios = {row["text"]: row["ratio"] for row in drafts}
    for what, bound in DRAFT_BOUNDS.items():
        yield Goal(f"drafts of 15 tokens, SmolLM2, {what}: over generation without", bound, ratios.get(what))


def _find(report: Report, test: str, n_tokens: int, mode: str) -> Row:
    """The row of a figure; an empty one if it was not measured."""
    key = (test, n_tokens, mode)
    return next((r for r in report.rows if (r["test"], r["n_tokens"], r["mode"]) == key), {})


def _ratio(a: Row, b: Row) -> float | None:
    speed: float = a["tokens_per_s"] / b["tokens_per_s"] if a and b else 0.0
    return speed or None


def _is_dense(row: Row) -> bool:
    return row["test"] == "prefill" and str(row["mode"]).startswith("dense")
