"""What the attention operator refuses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from attention import Array
from compare import assert_refused
from h2o_llama import _core, ops

Q = np.zeros((2, 4, 3, 8), dtype=np.float32)
K = np.zeros((2, 10, 8), dtype=np.float32)
ROWS = np.zeros((2, 2, 5), dtype=np.int32)
LIMITS = np.zeros((2, 3), dtype=np.int64)
LISTS = np.tile(np.arange(4), (2, 1))
OWN_ROWS = np.tile(np.arange(5), (2, 2, 1))
QUERY_ROWS = np.tile([5, 6, 9, -1], (2, 3, 1))


def with_lists(
    q: Array = Q[:1],
    own: Array = ROWS[:1],
    rows: Any = LISTS,
    first: Any = LISTS // 4,
    last: Any = LISTS // 4 + 3,
    **kwargs: Any,
) -> ops.Attention:
    own = ROWS[: len(q)] if len(q) != len(own) else own
    kwargs = {"list_size": 2, "further_first": first, "further_last": last} | kwargs
    return ops.attention(q, K, K, own, further_rows=rows, **kwargs)


def with_rows(further_rows: Array, q: Array = Q[:1], rows: Array = OWN_ROWS[:1]) -> ops.Attention:
    return ops.attention(q, K, K, rows, further_rows=further_rows)


def test_good_arguments() -> None:
    """What test_bad_arguments spoils."""
    with_lists()
    with_lists(list_offset=1)
    with_lists(rows=LISTS - 1, first=LISTS // 4 + 3)
    with_lists(rows=LISTS - 1, last=LISTS - 2**31)
    with_lists(rows=LISTS % 2, first=LISTS // 2, last=LISTS // 2 + 1)
    with_lists(rows=np.stack([LISTS, LISTS + 1]))
    with_rows(QUERY_ROWS)
    with_rows(QUERY_ROWS[..., :0])
    with_rows(QUERY_ROWS, q=Q[0], rows=OWN_ROWS[0])


def test_bad_arguments() -> None:
    calls: list[tuple[Callable[[], object], str]] = [
        (lambda: ops.attention(Q.astype(np.float64), K, K, ROWS), r"q must be float32, got float64"),
        (lambda: ops.attention(Q[0, 0], K, K, ROWS), r"q must have 3 to 4 axes, got 2"),
        (lambda: ops.attention(Q[:, :, :0], K, K, ROWS), r"q must not be empty"),
        (lambda: ops.attention(Q, K[None], K, ROWS), r"k must have 3 axes, got 4"),
        (lambda: ops.attention(Q, K.astype(np.int32), K, ROWS), r"k must be float32 or float16, got int"),
        (lambda: ops.attention(Q, K, K.astype(np.float16), ROWS), r"v must be float32, got float16"),
        (lambda: ops.attention(Q, K[..., :7], K, ROWS), r"k must have rows of 8 elements, as q has, got 7"),
        (lambda: ops.attention(Q, K, K[:, :9], ROWS), r"v must be of shape \[2, 10, 'd_v'\], got \[2, 9, 8"),
        (lambda: ops.attention(Q[:, :3], K, K, ROWS), r"the heads of k must divide the 3 heads of q, got 2"),
        (lambda: ops.attention(Q, K, K, ROWS[0]), r"rows must be of shape \[2, 2, 'n_k'\], got \[2, 5\]"),
        (lambda: ops.attention(Q[0], K, K, ROWS), r"rows must be of shape \[2, 'n_k'\]"),
        (lambda: ops.attention(Q, K, K, ROWS[:1]), r"rows must be of shape"),
        (lambda: ops.attention(Q, K, K, ROWS + 10), r"rows must be from 0 to 9, got 10 to 10"),
        (lambda: ops.attention(Q, K, K, ROWS - 1), r"rows must be from 0 to 9, got -1 to -1"),
        (lambda: ops.attention(Q, K, K, ROWS * 1.0), r"rows must be integers, got float64"),
        (lambda: ops.attention(Q, K, K, ROWS[..., :0], causal=False), r"rows must not be empty"),
        (lambda: ops.attention(Q, K, K, ROWS[..., :2]), r"rows must hold at least .* queries \(3\) when causal"),
        (lambda: ops.attention(Q, K, K, ROWS, limits=LIMITS * 1.0), r"limits must be integers, got float64"),
        (lambda: ops.attention(Q, K, K, ROWS, limits=LIMITS[0]), r"limits must be of shape \[2, 3\], got \[3\]"),
        (lambda: ops.attention(Q, K, K, ROWS, limits=LIMITS[:, :2]), r"limits must be of shape \[2, 3\]"),
        (lambda: ops.attention(Q[0], K, K, ROWS[0], limits=LIMITS), r"limits must be of shape \[3\]"),
        (
            lambda: ops.attention(Q, K, K, ROWS, limits=LIMITS + 2**31),
            r"limits must be int32 numbers, got 2147483648 to 2147483648",
        ),
        (
            lambda: ops.attention(Q, K, K, ROWS + np.arange(5, 0, -1), limits=LIMITS),
            r"rows must ascend in each head when there are limits",
        ),
        (lambda: with_lists(first=None), r"further_first and further_last belong together"),
        (lambda: with_lists(last=None), r"further_first and further_last belong together"),
        (lambda: with_lists(rows=None), r"further_first and further_last are those of further_rows"),
        (lambda: with_lists(q=Q), r"further_rows are for one block of queries, got 2"),
        (lambda: with_lists(rows=LISTS * 1.0), r"further_rows must be integers, got float64"),
        (lambda: with_lists(first=LISTS * 1.0), r"further_first must be integers, got float64"),
        (lambda: with_lists(rows=LISTS[0]), r"further_rows must have 2 to 3 axes, got 1"),
        (lambda: with_lists(rows=LISTS[:1]), r"further_rows must be of shape \[2, 'n'\], got \[1, 4\]"),
        (lambda: with_lists(rows=LISTS[None]), r"further_rows must be of shape \[2, 2, 'n'\], got \[1, 2, 4\]"),
        (lambda: with_lists(list_size=3), r"further_rows must be of shape \[1, 'n'\]"),
        (lambda: with_lists(list_size=1), r"further_rows must be of shape \[3, 'n'\]"),
        (lambda: with_lists(first=LISTS[:, :3]), r"further_first must be of shape \[2, 4\], got \[2, 3\]"),
        (lambda: with_lists(first=LISTS[:, ::-1]), r"further_first must be ascending in each list"),
        (lambda: with_lists(last=LISTS[:, ::-1]), r"further_last must be ascending in each list"),
        (lambda: with_lists(last=LISTS * 1.0), r"further_last must be integers, got float64"),
        (lambda: with_lists(last=LISTS + 2**31), r"further_last must be int32 numbers"),
        (lambda: with_lists(last=LISTS[:, :3]), r"further_last must be of shape \[2, 4\], got \[2, 3\]"),
        (lambda: with_lists(first=LISTS - 1), r"further_first must hold numbers from 0 on"),
        (lambda: with_lists(first=LISTS + 2**31), r"further_first must be int32 numbers"),
        (
            lambda: with_lists(rows=LISTS - 2**31 - 1, first=LISTS + 9),
            r"further_rows must be int32 numbers, got -2147483649 to -2147483646",
        ),
        (lambda: with_lists(rows=LISTS + 7), r"further_rows must be from 0 to 9, got 7 to 10"),
        (lambda: with_lists(rows=LISTS - 1), r"further_rows must be from 0 to 9, got -1 to"),
        (
            lambda: with_lists(rows=LISTS // 2 * 2),
            r"further_rows that a query sees must differ from each other, got equal ones in list 0",
        ),
        (
            lambda: with_lists(rows=LISTS % 3, first=LISTS // 3, last=LISTS * 0 + 2),
            r"further_rows that a query sees must differ from each other, got equal ones in list 0",
        ),
        (
            lambda: with_lists(own=ROWS[:1] + np.arange(5, 0, -1)),
            r"rows must ascend in each head when there are further keys",
        ),
        (lambda: with_lists(list_size=0), r"list_size must be"),
        (lambda: with_lists(list_size=2.0), r"list_size must be"),
        (lambda: with_lists(list_offset=-1), r"list_offset must be"),
        (lambda: with_lists(list_offset=2), r"list_offset must be"),
        (lambda: ops.attention(Q, K, K, ROWS, list_size=0), r"list_size must be"),
        (lambda: ops.attention(Q, K, K, ROWS, softcap=-1.0), r"softcap must be"),
        (
            lambda: ops.attention(Q, K, K, ROWS, sinks=np.zeros(3, np.float32)),
            r"sinks must be of shape \[4\], got \[3\]",
        ),
        (lambda: ops.attention(Q, K, K, ROWS, sinks=np.zeros(4)), r"sinks must be float32, got float64"),
        (
            lambda: ops.attention(Q, K, K, ROWS, first=[0, 0, 1, 0, 1]),
            r"first must hold 5 ascending numbers from 0 to 3",
        ),
        (lambda: ops.attention(Q, K, K, ROWS, first=[0, 0, 1, 2, 4]), r"first must hold 5 ascending"),
        (lambda: ops.attention(Q, K, K, ROWS, first=[0, 0]), r"first must hold 5 ascending"),
        (lambda: ops.attention(Q, K, K, ROWS, first=[0.5] * 5), r"first must be integers"),
        (lambda: ops.attention(Q, K, K, ROWS, causal=1), r"causal must be True or False"),  # type: ignore[arg-type]
        (lambda: ops.attention(Q, K, K, ROWS, scale=np.inf), r"scale must be a finite number"),
        (lambda: ops.attention(Q, K, K, ROWS, scale=1e39), r"scale must be a finite number"),
        (lambda: ops.attention(Q, K, K, ROWS, type="q8_0"), r"k must be uint8, got float32"),
        (lambda: ops.attention(Q, K, K, ROWS, type="f8"), r"type must be one of"),
        (lambda: ops.attention(Q, K, K, ROWS, backend="abacus"), r"there is no backend 'abacus'"),
        (lambda: ops.attention(Q, K, K, ROWS, n_threads=0), r"n_threads must be"),
        (
            lambda: with_rows(QUERY_ROWS, Q, np.tile(np.arange(5), (2, 2, 1))),
            "further_rows are for one block of queries",
        ),
        (lambda: with_rows(QUERY_ROWS * 1.0), "further_rows must be integers, got float64"),
        (lambda: with_rows(QUERY_ROWS[0, 0]), "further_rows must have 2 to 3 axes, got 1"),
        (lambda: with_rows(QUERY_ROWS[:1]), r"further_rows must be of shape \[2, 3, 'n'\], got \[1, 3, 4\]"),
        (lambda: with_rows(QUERY_ROWS[:, :2]), r"further_rows must be of shape \[2, 3, 'n'\], got \[2, 2, 4\]"),
        (lambda: with_rows(QUERY_ROWS + 1), "further_rows must be from 0 to 9, or -1, got 0 to 10"),
        (lambda: with_rows(QUERY_ROWS - 1), "further_rows must be from 0 to 9, or -1, got -2 to 8"),
        (lambda: with_rows(QUERY_ROWS[..., ::-1]), "further_rows must have -1 at the end of a list only"),
        (lambda: with_rows(QUERY_ROWS[..., [0, 1, 0]]), "further_rows of a list must differ from each other"),
        (lambda: with_rows(QUERY_ROWS - (QUERY_ROWS == 5)), "further_rows must differ from the head's rows, got some"),
    ]
    assert_refused(calls, "attention")
    assert_refused([(lambda: _core.ops_set_isa("abacus"), r"this CPU has no 'abacus'")], "ops")
