"""What the speed and the memory of a prefill should be, next to what they are."""

from __future__ import annotations

from collections.abc import Callable

from goal import Goal
from kernel_share import kernel_share
from machine import MB
from results import Result, Run, ratio
from settings import SHORT, SINGLE_PASS, TWO_PHASE

LENGTHS = (4096, 8192, 16384, 32768, 65536, 131072)
OVER_DENSE = {4096: 1.6, 8192: 2.4, 16384: 4.0, 32768: 7.5}
# Bytes per token. llama.cpp's list of the cache's cells and the prompt take about 165: positions, sets of sequences and
# nodes of two trees. An attention mask of one chunk, in F16, would take 2,048.
SCRATCH_GROWTH = 256


def goals(run: Run) -> list[Goal]:
    """All goals, in the order of the table."""

    def speed(n_tokens: int) -> float | None:
        return run.speed(SINGLE_PASS, n_tokens)

    over_first = [
        Goal(f"single_pass at {n:,} over dense's first 1,024", 1.0, ratio(speed(n), run.first_speed), stretch=1.15)
        for n in LENGTHS
    ]
    over_dense = [
        Goal(f"single_pass over dense, both at {n:,}", bound, ratio(speed(n), run.dense_speed(n)))
        for n, bound in OVER_DENSE.items()
    ]
    over_single_pass = _over_lengths(run, min, lambda n: ratio(run.speed(TWO_PHASE, n), speed(n)))
    bookkeeping = _over_lengths(run, max, lambda n: _bookkeeping_percent(run.get(SINGLE_PASS, n)))
    select_ms = _over_lengths(run, max, lambda n: _select_ms(run.get(SINGLE_PASS, n)))
    return [
        *over_first,
        Goal("single_pass at 131,072 over itself at 4,096", 0.97, ratio(speed(131072), speed(SHORT))),
        *over_dense,
        Goal("fused kernel over float32 matrix product", 0.65, kernel_share(run.kernel, bf16=False)),
        Goal("the same with BF16 products", 0.8, kernel_share(run.kernel, bf16=True)),
        Goal(f"{bookkeeping_parts(run)}, of prefill", 2, bookkeeping, at_most=True, unit=" %"),
        Goal("memory set, per layer and chunk", 0.1, select_ms, at_most=True, digits=3, unit=" ms"),
        Goal("two_phase over single_pass", 0.5, over_single_pass),
        Goal("memory that grows with N besides K, V and scores", SCRATCH_GROWTH, scratch_growth(run), True, 0, " B"),
    ]


def bookkeeping_parts(run: Run) -> str:
    """What the share counts: a fused operator leaves no gather to measure."""
    fused = any(r.profile and r.stats.selections and not r.profile.stats.gather_ms for r in run.of(SINGLE_PASS))
    return "scores and selection (gather is in attention)" if fused else "scores, selection and gather"


def scratch_growth(run: Run) -> float | None:
    """By how many bytes per token single_pass's other memory grew from 4,096 to 131,072 tokens."""
    if (ends := _scratch_ends(run)) is None:
        return None
    short, long = ends
    return (long.other_rss - short.other_rss) / (long.case.n_tokens - short.case.n_tokens)


def scratch_line(run: Run) -> str | None:
    """The two figures behind `scratch_growth`."""
    if (ends := _scratch_ends(run)) is None:
        return None
    short, long = (f"{r.other_rss / MB:,.1f} MB at {r.case.n_tokens:,}" for r in ends)
    return f"single_pass: peak RSS less K, V, scores and memory sets is {short} tokens and {long}."


def _scratch_ends(run: Run) -> tuple[Result, Result] | None:
    short, long = run.get(SINGLE_PASS, SHORT), run.get(SINGLE_PASS, LENGTHS[-1])
    return None if short is None or long is None else (short, long)


def _over_lengths(
    run: Run, worst: Callable[[list[float]], float], measure: Callable[[int], float | None]
) -> float | None:
    """The worst of the goals' lengths that were measured."""
    values = [v for n in LENGTHS if (v := measure(n)) is not None]
    return worst(values) if values else None


def _bookkeeping_percent(result: Result | None) -> float | None:
    if result is None or result.profile is None:
        return None
    stats = result.profile.stats
    return (stats.score_ms + stats.select_ms + stats.gather_ms) / result.profile.seconds / 10


def _select_ms(result: Result | None) -> float | None:
    return None if result is None else result.select_ms
