"""What the default must reach, next to what it reaches."""

from __future__ import annotations

import math

from goal import Goal
from quality_plan import (
    BYTE_CHUNK_SIZE,
    BYTE_KINDS,
    BYTE_SIZE,
    CHUNK_SIZE,
    KINDS,
    SIZE,
    SIZES,
    Effort,
    compared,
    longest,
    sizes,
)
from quality_rows import Rows

LOSS, KL = 0.012, 0.016
SMALL_LOSS = 0.016
CODE_LOSS = 0.015
BYTE_PERCENT = 2
RECALL, PAIRS_RECALL = 0.98, 0.95


def goals(rows: Rows, effort: Effort) -> list[Goal]:
    """All goals. English is the text that was kept back."""
    chosen = compared(SIZE, CHUNK_SIZE)["default"]
    of_bytes = compared(BYTE_SIZE, BYTE_CHUNK_SIZE)["default"]
    short, small = effort.lengths[0], SIZES[0]
    found = []
    for n in effort.lengths:
        loss = rows.loss("kept back", n, chosen)
        found.append(_nats(f"English, N {n:,}, M + B {SIZE}: loss", LOSS, loss.nats))
        found.append(_nats(f"English, N {n:,}, M + B {SIZE}: KL", KL, loss.kl))
    loss = rows.loss("kept back", short, sizes()[small]["default"])
    found.append(_nats(f"English, N {short:,}, M + B {small}: loss", SMALL_LOSS, loss.nats))
    found.append(_nats(f"code, N {short:,}, M + B {SIZE}: loss", CODE_LOSS, rows.loss("code", short, chosen).nats))
    for kind in KINDS:
        recall = rows.worst_recall("within", short, chosen, kind)
        found.append(Goal(f"`{kind}` within the prompt, N {short:,}, worst depth over dense", RECALL, recall))
    for n in effort.byte_lengths:
        percent = 100 * math.expm1(rows.loss("bytes", n, of_bytes).nats)
        found.append(Goal(f"demo model, N {n:,}: perplexity over dense", BYTE_PERCENT, percent, True, 1, " %"))
    for kind in BYTE_KINDS:
        recall = rows.worst_recall("bytes within", longest(effort), of_bytes, kind)
        bound = PAIRS_RECALL if kind == "pairs" else RECALL
        found.append(Goal(f"demo model, `{kind}` within the prompt, worst depth over dense", bound, recall))
    return found


def _nats(name: str, bound: float, measured: float) -> Goal:
    return Goal(name, bound, measured, at_most=True, digits=4)
