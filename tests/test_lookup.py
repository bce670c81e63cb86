"""Lookups: tables computed by hand, the brute force of the oracle, what is causal, undo, time and memory."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from h2o_llama import _core
from oracle.lookup import MAX_VISITS, Lookup, Row, occurrences

UNLIMITED = 2**31 - 1

examples = settings(max_examples=300, deadline=None, derandomize=True)


class Index:
    """The library's index, called like the oracle."""

    def __init__(self, config: Lookup, tokens: Sequence[int] = ()) -> None:
        self.core = _core.Lookup(
            chunk_size=config.S,
            tile=config.T,
            budget=config.B,
            sink_tokens=config.A,
            local_window=config.L,
            turn=config.G or None,
        )
        self.append(tokens)

    def append(self, tokens: Sequence[int]) -> None:
        self.core.append(np.array(tokens, dtype=np.int32))

    def choose(self, q0: int, q1: int, chosen: Sequence[Row] = ()) -> list[Row]:
        rows = self.core.choose(q0, q1, np.array(chosen, dtype=np.int32).reshape(-1, 2))
        return [(position, first) for position, first in rows.tolist()]


def choose(config: Lookup, tokens: Sequence[int], q0: int, q1: int, chosen: Sequence[Row] = ()) -> list[Row]:
    """What both say, and they say the same."""
    expected = config.choose(tokens, q0, q1, chosen)
    assert Index(config, tokens).choose(q0, q1, chosen) == expected
    return expected


def in_parts(config: Lookup, tokens: Sequence[int], ends: Sequence[int]) -> list[Row]:
    """Rows of the tile that begins at ends[0], chosen for part by part as its tokens come."""
    index = Index(config, tokens[: ends[0]])
    rows: list[Row] = []
    for q0, q1 in itertools.pairwise(ends):
        index.append(tokens[q0:q1])
        rows += index.choose(q0, q1, rows)
    return rows


def visible(rows: Sequence[Row], query: int) -> set[Row]:
    return {row for row in rows if row[1] <= query}


# --- by hand

# a b c d, then a b c e, in chunks of 4: a, b and c are found once, "a b" and "b c" too, and "a b c".
#   query 4: 1 + 1, 0 + 1/2;  query 5, w = 1 + 2: 2 + 3, 1 + 3/2;  query 6, w = 1 + 2 + 3: 3 + 6, 2 + 3
ONCE = ([1, 2, 3, 4, 1, 2, 3, 5], {0: (0.5, 4), 1: (2.5, 4), 2: (6, 5), 3: (6, 6)})
# a x a y, then a y z z: a is found twice, y once, and "a y" too; of "a y" what follows is no candidate.
TWICE = ([1, 2, 1, 3, 1, 3, 4, 4], {0: (0.25, 4), 1: (0.5, 4), 2: (0.25, 4), 3: (2, 4)})
# the first query's pair and triple reach back over the chunk's beginning
BACK = ([1, 2, 1, 2, 1, 9, 9, 9], {0: (1 / 4, 4), 1: (1 / 2, 4), 2: (1 / 4 + 2 / 2 + 3 / 2, 4), 3: (1 / 2 + 2 + 3, 4)})

ROWS_TABLE = [
    pytest.param(ONCE[0], {"B": 9}, [(0, 4), (1, 4), (2, 5), (3, 6)], id="all"),
    pytest.param(ONCE[0], {"B": 3}, [(1, 4), (2, 5), (3, 6)], id="the best"),
    pytest.param(ONCE[0], {"B": 1}, [(2, 5)], id="the lower of equal ones"),
    pytest.param(ONCE[0], {"B": 0}, [], id="no budget"),
    pytest.param(ONCE[0], {"B": 9, "A": 1, "L": 1}, [(1, 4), (2, 5)], id="neither sinks nor local window"),
    pytest.param(ONCE[0], {"B": 9, "A": 2, "L": 2}, [], id="no candidates"),
    pytest.param(ONCE[0], {"B": 9, "L": 5}, [], id="a local window beyond everything"),
    pytest.param(ONCE[0], {"B": 9, "A": 99}, [], id="sinks beyond everything"),
    pytest.param(ONCE[0], {"B": 4, "G": 1}, [(1, 4), (2, 5), (3, 6)], id="each query for itself"),
    pytest.param(ONCE[0], {"B": 5, "G": 1}, [(1, 4), (2, 5), (3, 6)], id="shares are rounded down"),
    pytest.param(ONCE[0], {"B": 8, "G": 1}, [(0, 4), (1, 4), (2, 5), (3, 6)], id="what is left over is for later ones"),
    pytest.param(ONCE[0], {"B": 4, "G": 2}, [(1, 4), (2, 5), (3, 6)], id="two at a time"),
    pytest.param(TWICE[0], {"B": 2}, [(1, 4), (3, 4)], id="twice"),
    pytest.param(BACK[0], {"B": 1}, [(3, 4)], id="back over the beginning of the chunk"),
]


@pytest.mark.parametrize(("text", "scores"), [ONCE, TWICE, BACK])
def test_oracle_scores_by_hand(text: list[int], scores: dict[int, tuple[float, int]]) -> None:
    assert Lookup(S=4, T=4, B=9).scores(text, range(4, 8)) == scores


@pytest.mark.parametrize(("text", "options", "expected"), ROWS_TABLE)
def test_rows_by_hand(text: list[int], options: dict[str, int], expected: list[Row]) -> None:
    rows = choose(Lookup(S=4, T=4, **options), text, 4, 8)
    assert sorted(rows) == expected


def test_the_local_window_is_not_counted() -> None:
    """a a b b: both a score 1/1 and more than the b, of which one is in the local window."""
    assert Lookup(S=4, T=4, B=9, L=1).scores([1, 1, 2, 2, 2, 9, 9, 9], range(4, 8)) == {2: (0.5, 4)}


def test_the_first_chunk_has_no_lookups() -> None:
    assert choose(Lookup(S=8, T=4, B=9), [1] * 8, 4, 8) == []


def test_rows_of_an_earlier_part_stay() -> None:
    """The first query asks for 0 and 1, of which there is room for one; nothing is left for the others."""
    config = Lookup(S=4, T=4, B=1)
    assert choose(config, ONCE[0], 4, 5) == [(1, 4)]
    assert choose(config, ONCE[0], 5, 8, [(1, 4)]) == []
    assert choose(replace(config, B=3), ONCE[0], 5, 8, [(1, 4)]) == [(2, 5), (3, 6)]


def test_of_a_frequent_token_the_newest_are_visited_and_all_counted() -> None:
    n = 2 * MAX_VISITS
    tokens = [7] * n + [8] * (n - 1) + [9] + [7, 8, 9]
    config = Lookup(S=2 * n, T=1, B=UNLIMITED)
    rows = choose(config, tokens, 2 * n, 2 * n + 1)
    assert [position for position, _ in rows] == [*range(n - MAX_VISITS, n + 1)]
    assert config.scores(tokens, [2 * n])[n] == (1 / n, 2 * n)


# --- by brute force


@st.composite
def configs(draw: st.DrawFn) -> Lookup:
    G, turns, tiles = draw(st.integers(1, 4)), draw(st.integers(1, 4)), draw(st.integers(1, 6))
    return Lookup(
        S=G * turns * tiles,
        T=G * turns,
        G=draw(st.sampled_from([G, 0])),
        B=draw(st.one_of(st.integers(0, 20), st.integers(20, 200))),
        A=draw(st.integers(0, 6)),
        L=draw(st.integers(0, 12)),
    )


# Few ids, so that n-grams come again; long texts, so that some come often.
TEXTS = st.one_of(
    st.integers(0, 5).flatmap(lambda last: st.lists(st.integers(0, last), min_size=1, max_size=120)),
    st.tuples(st.integers(1, 4), st.integers(0, 2**32 - 1), st.integers(100, 400)).map(
        lambda t: np.random.default_rng(t[1]).integers(0, t[0], t[2]).tolist()
    ),
)


def parts(config: Lookup, n: int, data: st.DataObject) -> Iterator[tuple[int, int]]:
    """The tiles of n tokens in order, some of them in parts."""
    ends = {0, n, *range(0, n, config.T), *data.draw(st.lists(st.integers(0, n), max_size=12))}
    return itertools.pairwise(sorted(ends))


@given(configs(), TEXTS, st.data())
@examples
def test_equals_brute_force(config: Lookup, tokens: list[int], data: st.DataObject) -> None:
    index = Index(config)
    rows: list[Row] = []
    for q0, q1 in parts(config, len(tokens), data):
        index.append(tokens[q0:q1])
        rows = [] if q0 % config.T == 0 else rows
        new = index.choose(q0, q1, rows)
        assert new == config.choose(tokens[:q1], q0, q1, rows)
        rows += new
        positions = [position for position, _ in rows]
        assert len(set(positions)) == len(positions) <= config.B
        assert all(config.A <= position < config.end(q0) for position in positions)
        assert all(q0 <= first < q1 for _, first in new)


@given(configs(), TEXTS, st.data())
@examples
def test_tiles_in_any_order(config: Lookup, tokens: list[int], data: st.DataObject) -> None:
    index = Index(config, tokens)
    for q0 in data.draw(st.lists(st.integers(0, len(tokens) - 1), max_size=8)):
        q1 = data.draw(st.integers(q0 + 1, min(q0 // config.T * config.T + config.T, len(tokens))))
        assert index.choose(q0, q1) == config.choose(tokens, q0, q1)


@given(configs(), TEXTS, st.data())
@examples
def test_what_was_truncated_leaves_no_trace(config: Lookup, tokens: list[int], data: st.DataObject) -> None:
    index = Index(config)
    text: list[int] = []
    for _ in range(data.draw(st.integers(1, 6))):
        n = data.draw(st.integers(0, len(text) + 1))
        index.core.truncate(n)
        text = text[:n]
        start = data.draw(st.integers(0, len(tokens)))
        index.append(tokens[start:])
        text += tokens[start:]
        assert index.core.n_tokens == len(text)
        if text:
            q0 = data.draw(st.integers(max(0, len(text) - config.T), len(text) - 1))
            q1 = min(q0 // config.T * config.T + config.T, len(text))
            assert index.choose(q0, q1) == config.choose(text, q0, q1)


@pytest.mark.parametrize("G", [0, 1])
def test_a_long_text_with_undo(G: int) -> None:
    """Tables that grow, and shrink again by two thirds, twice."""
    rng = np.random.default_rng(1)
    config = Lookup(S=512, T=64, B=100, A=4, L=100, G=G)
    index, text = Index(config), np.array([], dtype=np.int64)
    for n_kept in (0, 3000, 4001):
        index.core.truncate(n_kept)
        text = np.concatenate([text[:n_kept], rng.zipf(1.3, 6000) % 5000 - 7])
        index.append(text[n_kept:].tolist())
        for q0 in rng.integers(0, len(text) // 64, 6) * 64:
            assert index.choose(q0, q0 + 64) == config.choose(text.tolist(), q0, q0 + 64)


def test_oracle_occurrences_by_a_naive_loop() -> None:
    text = np.random.default_rng(0).integers(0, 3, 40)
    for q in range(40):
        for n in (1, 2, 3):
            for end in range(41):
                grams = [text[p - n + 1 : p + 1].tolist() if p + 1 >= n else None for p in range(40)]
                expected = [p for p in range(end) if grams[p] is not None and grams[p] == grams[q]]
                assert occurrences(text, q, n, end).tolist() == expected


# --- causality: `tokens` and `others` are equal up to and including query q of the last tile


@st.composite
def two_endings(draw: st.DrawFn) -> tuple[Lookup, list[int], list[int], int, int]:
    """config, tokens, others, begin of the last tile, q"""
    config = draw(configs())
    last = draw(st.integers(0, 4))
    t0 = draw(st.integers(1, 4)) * config.S + draw(st.integers(0, config.S // config.T - 1)) * config.T
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    tokens, others = rng.integers(0, last + 1, (2, t0 + config.T)).tolist()
    q = t0 + draw(st.integers(0, config.T - 1))
    return config, tokens, tokens[: q + 1] + others[q + 1 :], t0, q


@given(two_endings())
@examples
def test_one_query_at_a_time_is_causal_whatever_the_budget(
    case: tuple[Lookup, list[int], list[int], int, int],
) -> None:
    config, tokens, others, t0, q = case
    config = replace(config, G=1)
    rows, other_rows = (Index(config, text).choose(t0, t0 + config.T) for text in (tokens, others))
    assert visible(rows, q) == visible(other_rows, q)
    assert visible(rows, q) == set(Index(config, tokens[: q + 1]).choose(t0, q + 1))


@given(two_endings())
@examples
def test_a_tile_within_its_budget_is_causal(case: tuple[Lookup, list[int], list[int], int, int]) -> None:
    config, tokens, others, t0, q = case
    config = replace(config, G=0, B=UNLIMITED)
    rows, other_rows = (Index(config, text).choose(t0, t0 + config.T) for text in (tokens, others))
    assert visible(rows, q) == visible(other_rows, q)
    for text, expected in ((tokens, rows), (others, other_rows)):
        exact = replace(config, B=len(expected))
        assert Index(exact, text).choose(t0, t0 + config.T) == expected


@given(two_endings())
@examples
def test_beyond_the_budget_later_queries_only_take_rows_away(
    case: tuple[Lookup, list[int], list[int], int, int],
) -> None:
    """With G = T: a query sees rows that queries up to it asked for, with the same first query, but maybe not all."""
    config, tokens, _, t0, q = case
    config = replace(config, G=0)
    asked = set(Index(replace(config, B=UNLIMITED), tokens[: q + 1]).choose(t0, q + 1))
    assert visible(Index(config, tokens).choose(t0, t0 + config.T), q) <= asked


def test_beyond_the_budget_a_tile_betrays_what_comes_next() -> None:
    """a b a c, then a: the next token decides which row the a gets. Not so one query at a time."""
    a, b, c = 1, 2, 3
    for G, expected in ((0, {b: (2, 4), c: (3, 4)}), (1, {b: (1, 4), c: (1, 4)})):
        config = Lookup(S=4, T=2, B=1 if G == 0 else 2, G=G)
        for following, row in expected.items():
            assert visible(choose(config, [a, b, a, c, a, following], 4, 6), 4) == {row}


# --- splits


@given(two_endings(), st.data())
@examples
def test_splits_change_nothing_one_query_at_a_time(
    case: tuple[Lookup, list[int], list[int], int, int], data: st.DataObject
) -> None:
    config, tokens, _, t0, _ = case
    config = replace(config, G=1)
    ends = sorted({t0, t0 + config.T, *data.draw(st.lists(st.integers(t0, t0 + config.T), max_size=4))})
    assert in_parts(config, tokens, ends) == in_parts(config, tokens, [t0, t0 + config.T])


@given(two_endings(), st.data())
@examples
def test_splits_change_nothing_within_the_budget(
    case: tuple[Lookup, list[int], list[int], int, int], data: st.DataObject
) -> None:
    config, tokens, _, t0, _ = case
    whole = in_parts(replace(config, G=0, B=UNLIMITED), tokens, [t0, t0 + config.T])
    ends = sorted({t0, t0 + config.T, *data.draw(st.lists(st.integers(t0, t0 + config.T), max_size=4))})
    rows = in_parts(replace(config, G=0, B=len(whole)), tokens, ends)
    assert sorted(rows) == sorted(whole)


@given(two_endings())
@examples
def test_splits_between_turns_change_nothing(case: tuple[Lookup, list[int], list[int], int, int]) -> None:
    config, tokens, _, t0, _ = case
    G = config.G or config.T
    assert in_parts(config, tokens, [*range(t0, t0 + config.T + 1, G)]) == in_parts(config, tokens, [t0, t0 + config.T])


# --- time and memory


def lookups_of(index: Index, tokens: Sequence[int], S: int, T: int) -> None:
    for c0 in range(0, len(tokens), S):
        index.append(tokens[c0 : c0 + S])
        for t0 in range(c0, min(c0 + S, len(tokens)), T):
            index.choose(t0, min(t0 + T, len(tokens)))


@pytest.mark.parametrize("period", [1, 2, 100])
def test_frequent_tokens_are_no_more_work(period: int) -> None:
    """100,000 tokens; without a bound on visits the last tile alone would take that many for each of its queries."""
    tokens = np.arange(100_000) % period
    index = Index(Lookup(S=1024, T=64, B=256, L=256))
    start = time.perf_counter()
    lookups_of(index, tokens.tolist(), 1024, 64)
    index.core.truncate(0)
    assert time.perf_counter() - start < 5


@pytest.mark.parametrize("kind", ["uniform", "zipf", "one token"])
def test_memory_per_token(kind: str) -> None:
    """At most 32 bytes, whatever the length, when few tokens are new: here fewer than 2 of 3."""
    rng = np.random.default_rng(0)
    n, n_vocab, S = 131_072, 49_152, 1024
    weights = 1 / np.arange(1, n_vocab + 1)
    tokens = {
        "uniform": lambda: rng.integers(0, n_vocab, n),
        "zipf": lambda: rng.choice(n_vocab, n, p=weights / weights.sum()),
        "one token": lambda: np.zeros(n, dtype=np.int64),
    }[kind]()
    index = Index(Lookup(S=S, T=64, B=0))
    for c0 in range(0, n, S):
        index.append(tokens[c0 : c0 + S].tolist())
        index.choose(c0, c0 + 1)
        if c0 >= n_vocab:
            assert index.core.bytes <= 32 * (c0 + S)


def test_undo_gives_back_what_it_took() -> None:
    """No growth, however often: of tokens that are new, and of one that is frequent."""
    index = Index(Lookup(S=100, T=50, B=10))
    tokens = [7, *range(100, 149)] * 2 + [7] * 100 + list(range(200, 250)) + [0]
    sizes = []
    for _ in range(50):
        index.append(tokens)
        index.choose(len(tokens) // 50 * 50, len(tokens))
        sizes.append(index.core.bytes)
        index.core.truncate(3)
    assert set(sizes) == {sizes[0]}


# --- bad arguments

GOOD: dict[str, Any] = {"chunk_size": 8, "tile": 4, "budget": 4, "sink_tokens": 0, "local_window": 0}


@pytest.mark.parametrize(
    "bad",
    [
        {"chunk_size": 0},
        {"chunk_size": -8},
        {"chunk_size": 2**31},
        {"chunk_size": 2**32 + 8},
        {"tile": 0},
        {"tile": 3},
        {"tile": 16},
        {"turn": 0},
        {"turn": 3},
        {"turn": 8},
        {"budget": -1},
        {"budget": 2**31},
        {"sink_tokens": -1},
        {"sink_tokens": 2**31},
        {"local_window": -1},
        {"local_window": 2**40},
    ],
    ids=str,
)
def test_bad_parameters(bad: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=r"\[lookup\]"):
        _core.Lookup(**{**GOOD, **bad})


def test_bad_calls_change_nothing() -> None:
    index = Index(Lookup(S=4, T=4, B=3), ONCE[0])
    for first, last in ((4, 4), (5, 4), (-1, 2), (4, 9), (3, 5), (0, 8), (2**40, 2**40 + 1)):
        with pytest.raises(ValueError, match=r"\[lookup\]"):
            index.core.choose(first, last)
    for chosen in ([1, 2], [[1, 2, 3]], [[[1, 2]]], [[0, 4]] * 4):
        with pytest.raises(ValueError, match=r"\[lookup\]"):
            index.core.choose(4, 8, np.array(chosen, dtype=np.int32))
    with pytest.raises(ValueError, match=r"\[lookup\]"):
        index.core.append(np.zeros((2, 2), dtype=np.int32))
    with pytest.raises(ValueError, match=r"\[lookup\]"):
        index.core.truncate(-1)
    for ids in (np.zeros(2), np.zeros(2, dtype=np.int64)):
        with pytest.raises(TypeError):
            index.core.append(ids)
    assert index.core.n_tokens == 8
    assert index.choose(4, 8) == [(1, 4), (2, 5), (3, 6)]


@pytest.mark.parametrize("chosen", [[(-1, -1)], [(2**31 - 1, -(2**31))], [(99, 4), (99, 4)]], ids=str)
def test_rows_that_are_none_only_take_up_room(chosen: list[Row]) -> None:
    assert choose(Lookup(S=4, T=4, B=4), ONCE[0], 4, 8, chosen) == [(0, 4), (1, 4), (2, 5), (3, 6)][-4 + len(chosen) :]
