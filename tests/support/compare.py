"""Comparisons of arrays and memory sets, with messages that say where they differ."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from tolerances import SCORE_FLOOR


@contextmanager
def case(**values: Any) -> Iterator[None]:
    """Names the case in the message of a failure inside."""
    try:
        yield
    except (Exception, pytest.fail.Exception) as error:
        named = ", ".join(f"{name}={value!r}" for name, value in values.items())
        raise AssertionError(f"case {named}: {error}") from error


def assert_all_equal(actual: Iterable[Any], expected: Iterable[Any]) -> None:
    """The same arrays or numbers, bit for bit."""
    for got, want in zip(actual, expected, strict=True):
        np.testing.assert_array_equal(got, want)


def relative_error(actual: Any, expected: Any) -> float:
    """max |actual - expected| / max |expected|; NaN if either has a NaN."""
    assert actual.shape == expected.shape, f"shape {actual.shape}, expected {expected.shape}"
    return float(np.max(np.abs(actual.astype(np.float64) - expected)) / np.max(np.abs(expected)))


def assert_logits_close(actual: Any, expected: Any, bound: float) -> None:
    error = relative_error(actual, expected)
    worst = np.unravel_index(np.argmax(np.abs(actual - expected)), actual.shape)
    assert error <= bound, f"relative error {error:.2e} > {bound:.0e}, worst at [row, id] {[int(i) for i in worst]}"


def assert_scores_close(actual: Any, expected: Any, bound: float) -> None:
    assert actual.shape == expected.shape, f"shape {actual.shape}, expected {expected.shape}"
    np.testing.assert_array_equal(np.isnan(actual), np.isnan(expected))
    error = np.nan_to_num(np.abs(actual - expected) / (np.abs(expected) + SCORE_FLOOR))
    worst = np.unravel_index(np.argmax(error), error.shape)
    assert np.max(error) <= bound, (
        f"score of [head, position] {[int(i) for i in worst]} is {actual[worst]:.6g}, expected {expected[worst]:.6g}"
    )


def assert_same_memory(actual: Any, expected: Any, ranks: Any, margin: float) -> None:
    """Equal memory sets [n_head_kv, M], but for tokens whose ranks are within `margin` of each other.

    So property P4 holds: sinks and the local window are in every set, and a dropped position never comes back.
    """
    assert actual.shape == expected.shape, f"shape {actual.shape}, expected {expected.shape}"
    for head, (got, want) in enumerate(zip(actual, expected, strict=True)):
        extra, missing = np.setdiff1d(got, want), np.setdiff1d(want, got)
        assert len(extra) == len(missing), f"head {head}: {np.sum(got >= 0)} positions, expected {np.sum(want >= 0)}"
        if len(extra) == 0:
            assert np.array_equal(got, want), f"head {head}: same set in another order: {got}"
            continue
        assert np.array_equal(got >= 0, want >= 0), f"head {head}: padding is not at the end: {got}"
        assert np.all(np.diff(got[got >= 0]) > 0), f"head {head}: not strictly ascending: {got}"
        assert 0 <= extra.min() <= extra.max() < ranks.shape[1], f"head {head}: positions {extra} are not candidates"
        # All that was swapped must be next to the threshold: better tokens than `expected` holds are an error too, as
        # then they were not candidates.
        swapped = ranks[head, np.concatenate([extra, missing])]
        assert np.isfinite(swapped).all(), f"head {head}: of {extra} and {missing} some are not candidates"
        assert np.ptp(swapped) <= margin * (np.abs(swapped).max() + SCORE_FLOOR), (
            f"head {head}: kept {extra} with ranks {ranks[head, extra]}, "
            f"not {missing} with ranks {ranks[head, missing]}"
        )


class FollowLibrary:
    """Lets the oracle continue with the library's memory sets, after checking that they differ only in near ties.

    Without that, one swapped near tie would make all that follows incomparable. An oracle takes this object as
    `choose_memory`; `history` is the library's.
    """

    def __init__(self, history: Sequence[Any], margin: float) -> None:
        self.history = history
        self.margin = margin

    def __call__(self, chunk: int, layer: int, proposed: Any, ranks: Any) -> Any:
        actual = np.asarray(self.history[chunk][layer])
        try:
            assert_same_memory(actual, proposed, ranks, self.margin)
        except AssertionError as error:
            raise AssertionError(f"memory set of chunk {chunk}, layer {layer}: {error}") from None
        return actual
