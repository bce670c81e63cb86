"""Lookups: the brute force of the oracle, undo and memory."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from h2o_llama import _core
from oracle.lookup import Lookup, Row

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
