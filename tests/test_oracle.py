"""The oracle against tables by hand."""

from __future__ import annotations

import numpy as np
import pytest

from compare import case
from oracle.selection import candidate_ranks, select_memory
from oracle.top_keys import choose_keys, index_budget

# Scores, previous set, S, c, L, H, A: positions that are kept, padded with -1.
SELECTION_TABLE = [
    ([9, 1, 8, 2, 7, 3], [], 6, 0, 2, 2, 0, [0, 2, 4, 5]),  # local window and the two best of the rest
    ([1, 1, 1, 1], [], 4, 0, 1, 2, 0, [0, 1, 3]),  # ties go to the lower position
    ([0, 5, 5, 5], [], 4, 0, 1, 1, 0, [1, 3]),  # a tie at the threshold too
    ([5, 1, 9, 0], [], 4, 0, 0, 2, 0, [0, 2]),  # no local window
    ([5, 1, 9, 0], [], 4, 0, 3, 0, 0, [1, 2, 3]),  # no heavy hitters
    ([0, 0, 9, 8, 7, 1], [], 6, 0, 1, 1, 2, [0, 1, 2, 5]),  # sinks do not use the heavy budget
    ([1, 2, 3, 4], [], 4, 0, 2, 4, 0, [0, 1, 2, 3, -1, -1]),  # fewer candidates than H: padding
    ([1, 2, 3, 4], [], 4, 0, 3, 1, 3, [0, 1, 2, 3, -1, -1, -1]),  # sinks and local window overlap
    ([9, 1, 7, 6, 1, 2, 3, 4], [0, 1, 3], 4, 1, 1, 2, 0, [0, 3, 7]),  # old ones come from memory only
    ([9, 1, 7, 6, 1, 2, 10, 4], [0, 1, 3], 4, 1, 1, 2, 0, [0, 6, 7]),  # old ones compete with the chunk
    ([1, 2, 9, 3, 1, 2, 3, 4], [0, 1, 3], 4, 1, 1, 2, 0, [3, 6, 7]),  # evicted ones never return
    ([1, np.nan, 0, 2], [], 4, 0, 1, 2, 0, [0, 2, 3]),  # NaN ranks below everything
    ([np.inf, 1, np.inf, 2], [], 4, 0, 1, 2, 0, [0, 2, 3]),  # inf ranks above everything
]


def test_selection_of_hand_computed_tables() -> None:
    for scores, previous, S, c, L, H, A, kept in SELECTION_TABLE:
        with case(scores=scores, previous=previous, S=S, c=c, L=L, H=H, A=A, kept=kept):
            sets = (np.array([*previous, -1], dtype=np.int32), c * S, (c + 1) * S)
            ranks = candidate_ranks(np.array(scores, dtype=np.float64), *sets, L=L, A=A)
            assert select_memory(ranks, *sets, L=L, H=H, A=A).tolist() == kept


@pytest.mark.parametrize(
    ("memory", "tiles", "n_top", "expected"),
    [
        ([], [0, 1], 2, [[0, 1], [2, 3]]),
        # together: the largest logit of any of them
        ([], [3, 3], 1, [[0]] * 2),
        ([], [3, 3], 2, [[0, 1]] * 2),
        ([], [3, 3], 3, [[0, 1, 2]] * 2),
        ([], [3, 3], 4, [[0, 1, 2, 3]] * 2),
        ([], [3, 3], 9, [[0, 1, 2, 3, 4]] * 2),
        # without positions in memory
        ([0, 2], [3, 3], 1, [[1]] * 2),
        ([0, 2], [3, 3], 2, [[1, 3]] * 2),
        ([0, 2], [0, 1], 2, [[1, 3], [1, 3]]),
    ],
)
def test_the_choice_of_a_tile(memory: list[int], tiles: list[int], n_top: int, expected: list[list[int]]) -> None:
    """Two heads are summed: a query of 10 in one direction, another of 1 in the other. The lower of equals wins."""
    q = np.zeros((2, 2, 32), np.float32)
    q[:, 0, 0], q[:, 1, 1] = [12, -2], [0.5, 0.5]
    index = np.zeros((1, 5, 32), np.float32)
    index[0, :, :2] = [[1.0, 0.0], [0.5, 0.0], [0.0, 1.0], [0.0, 0.25], [0.0, 0.0]]
    chosen = choose_keys(q, index, np.array([memory], dtype=np.int32), n_top, np.array(tiles))
    assert [np.flatnonzero(row).tolist() for row in chosen[0]] == expected


def test_the_budget_grows_with_the_text() -> None:
    for B, S, start, expected in [
        (256, 1024, 1024, 111),
        (256, 1024, 8192, 256),
        (256, 1024, 16384, 338),
        (8, 16, 16, 3),
        (1, 16, 16, 1),
        (0, 16, 160, 0),
    ]:
        assert index_budget(B, S, start) == expected
