"""Lookups: tables by hand, the brute force of the oracle, undo and memory."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from compare import case
from h2o_llama import _core
from oracle.lookup import FOLLOW, MAX_VISITS, Lookup, Row

UNLIMITED = 2**31 - 1

examples = settings(max_examples=60, deadline=None, derandomize=True)


class Index:
    """The library's index, called like the oracle."""

    def __init__(self, config: Lookup, tokens: Sequence[int] = ()) -> None:
        self.core = _core.Lookup(
            chunk_size=config.S, tile=config.T, budget=config.B, sink_tokens=config.A, local_window=config.L
        )
        self.append(tokens)

    def append(self, tokens: Sequence[int]) -> None:
        self.core.append(tokens)

    def choose(self, first: int, last: int, log: Sequence[Row] = ()) -> list[Row]:
        return self.core.choose(first, last, log)


def choose(config: Lookup, tokens: Sequence[int], first: int, last: int, log: Sequence[Row] = ()) -> list[Row]:
    """What both say, and they say the same."""
    expected = config.choose(tokens, first, last, log)
    assert Index(config, tokens).choose(first, last, log) == expected
    return expected


# --- by hand: scores

# a b c d, then a b c e, in chunks of 4: a, b and c are found once, "a b" and "b c" too, and "a b c".
ONCE = [1, 2, 3, 4, 1, 2, 3, 5]


def test_the_local_window_is_neither_counted_nor_chosen() -> None:
    """a b a a: of three a, the last is in the local window, and so is the second follower of the second a."""
    expected = np.zeros(3)
    for p, (j, weight) in itertools.product((0, 2), FOLLOW):
        if 0 <= p + j < 3:
            expected[p + j] += weight / 2
    scores = Lookup(S=4, T=4, B=9, L=1).scores([1, 2, 1, 1, 9, 9, 1, 9], 6)
    np.testing.assert_allclose(scores, expected, rtol=1e-15)


def test_of_a_frequent_token_the_newest_are_visited_and_all_counted() -> None:
    n = 2 * MAX_VISITS
    tokens = [7] * n + [8] * (n - 1) + [9] + [7, 8, 9]
    config = Lookup(S=2 * n, T=1, B=UNLIMITED)
    rows = choose(config, tokens, 2 * n, 2 * n + 1)
    visited = range(n - MAX_VISITS, n)
    assert [position for position, _ in rows] == sorted({p + j for p in visited for j, _ in FOLLOW})
    assert np.isclose(config.scores(tokens, 2 * n).sum(), MAX_VISITS * sum(weight for _, weight in FOLLOW) / n)


# --- by hand: rows


def ranked(p: int) -> list[int]:
    """What a query asks for that finds p and nothing else, the best first."""
    return [p + j for j, _ in sorted(FOLLOW, key=lambda follow: (-follow[1], -follow[0]))]


def rows_of(asked: Sequence[tuple[int, Sequence[int]]]) -> list[Row]:
    """The rows of queries and the positions that they asked for, in any order."""
    return [(position, query) for query, positions in asked for position in sorted(positions)]


# Chunks of 32; tokens of the first are their positions. So a later token below 32 finds that position, and no n-grams.
FIRST = list(range(32))
ALL = len(FOLLOW)
SEEN = [(58, ranked(4)[:1]), (59, ranked(12)[:1]), (60, ranked(20)[:1])]
# Tokens of positions 32 to 57 and 61 to 63, which find nothing: the next token is in the next chunk.
LATE, MORE, TO_24 = range(100, 126), range(130, 133), {"L": 8, "T": 1}


def test_rows_by_hand() -> None:
    for following, options, expected in [
        ([4, 12, 99, 20], {"B": 4}, [(q, ranked(p)[:1]) for q, p in ((32, 4), (33, 12), (35, 20))]),  # 1
        ([4, 12, 99, 20], {"B": 5}, [(q, ranked(p)[:2]) for q, p in ((32, 4), (33, 12), (35, 20))]),  # 2
        ([4, 12, 99], {"B": 4 * ALL}, [(32, ranked(4)), (33, ranked(12))]),  # all that there is
        ([4, 12, 99], {"B": 4 * ALL + 400}, [(32, ranked(4)), (33, ranked(12))]),  # no more than that
        ([4, 12], {"B": 0}, []),  # no budget
        # what its tile has asked for is seen, however much; not before it has
        ([4, 12, 4], {"B": 1}, [(32, ranked(4)[:1]), (33, ranked(12)[:1]), (34, ranked(4)[1:2])]),
        # of tiles before, the last B: a dropped position is asked for again
        ([4, 12, 4], {"B": 1, "T": 1}, [(32, ranked(4)[:1]), (33, ranked(12)[:1]), (34, ranked(4)[:1])]),
        ([4, 12, 99, 99, 4], {"B": 1}, [(32, ranked(4)[:1]), (33, ranked(12)[:1]), (36, ranked(4)[:1])]),
        ([4, 12, 99, 99, 4], {"B": 2}, [(32, ranked(4)[:1]), (33, ranked(12)[:1]), (36, ranked(4)[1:2])]),
        # also of another chunk, where tiles begin anew
        ([*LATE, 4, 12, 20, *MORE, 4], {**TO_24, "B": 3}, [*SEEN, (64, ranked(4)[1:2])]),
        ([*LATE, 4, 12, 20, *MORE, 4], {**TO_24, "B": 2}, [*SEEN, (64, ranked(4)[:1])]),
        ([*LATE, 4, 12, 20, *MORE, 4], {**TO_24, "B": 2, "T": 33}, [*SEEN, (64, ranked(4)[:1])]),
        # no sinks
        ([4, 12, 20], {"B": 4 * ALL, "A": 13}, [(33, {*ranked(12)} - {*range(13)}), (34, ranked(20))]),
        # the window's end
        ([4, 12], {"B": 4 * ALL, "L": 19}, [(32, ranked(4)), (33, {*ranked(12)} & {*range(13)})]),
        # what the local window holds is not found
        ([4, 12], {"B": 4 * ALL, "L": 20}, [(32, ranked(4))]),
        ([4, 12], {"B": 4 * ALL, "L": 33}, []),  # a local window beyond everything
        ([4, 12], {"B": 4 * ALL, "A": 99}, []),  # sinks beyond everything
    ]:
        with case(following=following, options=options, expected=expected):
            text = FIRST + following
            rows = choose(Lookup(**({"S": 32, "T": 4} | options)), text, 0, len(text))
            assert rows == rows_of(expected)


def test_of_equal_scores_the_higher_position_wins() -> None:
    """A token that is found twice: one is worth what the other is."""
    tokens = [*range(16), *range(16), 4, 99]
    rows = choose(Lookup(S=32, T=1, B=1), tokens, 32, 34)
    assert rows == [(ranked(20)[0], 32)]


def test_only_the_end_of_a_log_matters() -> None:
    text, best = [*FIRST, 99, 4], ranked(4)
    config = Lookup(S=32, T=4, B=3)
    newer = [(30, 31), (31, 31)]
    assert choose(config, text, 33, 34, [(best[0], 30), *newer]) == [(best[1], 33)]
    assert choose(config, text, 33, 34, [(best[0], 30), *newer, (29, 31)]) == [(best[0], 33)]
    # in the same tile
    assert choose(config, text, 33, 34, [(best[0], 30), *newer, (29, 32)]) == [(best[1], 33)]
    assert Index(config, text).core.choose(33, 34, []) == [(best[0], 33)]


# --- by brute force


@st.composite
def configs(draw: st.DrawFn) -> Lookup:
    tile = draw(st.integers(1, 8))
    return Lookup(
        S=draw(st.integers(1, 64)),
        T=tile,
        B=draw(st.one_of(st.integers(0, 20), st.integers(20, 200))),
        A=draw(st.integers(0, 6)),
        L=draw(st.integers(0, 12)),
    )


# Few ids, so that n-grams come again; long texts, so that some come often.
TEXTS = st.one_of(
    st.integers(0, 5).flatmap(lambda last: st.lists(st.integers(0, last), min_size=1, max_size=120)),
    st.tuples(st.integers(1, 4), st.integers(0, 2**32 - 1), st.integers(100, 250)).map(
        lambda t: np.random.default_rng(t[1]).integers(0, t[0], t[2]).tolist()
    ),
)


def in_parts(config: Lookup, tokens: Sequence[int], ends: Sequence[int]) -> list[Row]:
    """The whole log, chosen for part by part as tokens come."""
    index = Index(config)
    log: list[Row] = []
    for first, last in itertools.pairwise(sorted({0, *ends, len(tokens)})):
        index.append(tokens[first:last])
        log += index.choose(first, last, log)
    return log


@given(configs(), TEXTS, st.data())
@examples
def test_equals_brute_force_in_any_parts(config: Lookup, tokens: list[int], data: st.DataObject) -> None:
    """Token by token too: no row depends on a later token."""
    log = in_parts(config, tokens, data.draw(st.lists(st.integers(0, len(tokens)), max_size=8)))
    assert log == config.choose(tokens, 0, len(tokens))
    assert log == in_parts(config, tokens, range(len(tokens)))
    for query, rows in itertools.groupby(log, lambda row: row[1]):
        positions = [position for position, _ in rows]
        assert len(positions) <= config.share
        assert all(config.A <= position < config.end(query) for position in positions)
    for query in range(len(tokens)):
        begin, end = config.seen(log, query)
        assert len({position for position, _ in log[begin:end]}) == end - begin


@given(configs(), TEXTS, st.data())
@examples
def test_queries_in_any_order(config: Lookup, tokens: list[int], data: st.DataObject) -> None:
    """Each with the log of the queries before, with an older one, and with none; also over ends of tiles and chunks."""
    index = Index(config, tokens)
    log = config.choose(tokens, 0, len(tokens))
    for first in data.draw(st.lists(st.integers(0, len(tokens) - 1), max_size=3)):
        last = data.draw(st.integers(first + 1, min(first + 40, len(tokens))))
        before = [row for row in log if row[1] < first]
        assert index.choose(first, last, before) == [row for row in log if first <= row[1] < last]
        for other in ((), log[: data.draw(st.integers(0, len(before)))]):
            assert index.choose(first, last, other) == config.choose(tokens, first, last, other)


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
            first = data.draw(st.integers(max(0, len(text) - 20), len(text) - 1))
            assert index.choose(first, len(text)) == config.choose(text, first, len(text))


def test_a_long_text_with_undo() -> None:
    """An index that grows and shrinks by two thirds, thrice; ids of 1 to 4 bytes."""
    rng = np.random.default_rng(1)
    config = Lookup(S=512, T=64, B=100, A=4, L=100)
    index, text = Index(config), np.array([], dtype=np.int64)
    for n_kept, largest in ((0, 255), (3000, 5000), (4097, 150_000), (8192, 2**31 - 1)):
        index.core.truncate(n_kept)
        text = np.concatenate([text[:n_kept], largest - rng.zipf(1.3, 6000) % min(largest, 5000)])
        index.append(text[n_kept:].tolist())
        for first in rng.integers(0, len(text) - 64, 6).tolist():
            assert index.choose(first, first + 64) == config.choose(text.tolist(), first, first + 64)


# --- memory


def test_memory_per_token() -> None:
    """At most 150 bytes, whatever the length, when few tokens are new: here fewer than 2 of 3."""
    n, n_vocab, S = 131_072, 49_152, 1024
    weights = 1 / np.arange(1, n_vocab + 1)
    tokens = np.random.default_rng(0).choice(n_vocab, n, p=weights / weights.sum())
    index = Index(Lookup(S=S, T=64, B=0))
    for c0 in range(0, n, S):
        index.append(tokens[c0 : c0 + S].tolist())
        index.choose(c0, c0 + 1)
        if c0 >= n_vocab:
            assert index.core.bytes <= 150 * (c0 + S)


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
    assert set(sizes[1:]) == {sizes[1]}
