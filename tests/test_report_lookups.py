"""What the reports tell of lookups: the data by hand, and attention to what was looked up against its definition."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from h2o_llama import H2OError
from h2o_llama.inspect import lookup_panel
from h2o_llama.inspect.attention_mass import chunk_masses
from h2o_llama.inspect.html import render_html
from h2o_llama.inspect.lookup_attention import lookup_attention
from h2o_llama.inspect.lookups import Lookups, examples, most_wanted, places, read_lookups
from h2o_llama.inspect.memory import MemoryReport
from h2o_llama.inspect.snippets import Snippet, snippet
from inputs import ModelByName, repetitive_tokens
from llamas import Config, open_llama
from test_html import Page, byte_tokens, report_of

S, T = 16, 4
CONFIG = Config(S=S, L=4, H=6, A=1, B=6, T=T, kv_type="f16")


def lookups_of(rows: list[tuple[int, int]], tiles: range, size: int = 4) -> Lookups:
    """Of (query, position)."""
    queries, positions = np.array(rows, np.int32).reshape(-1, 2).T
    return Lookups(positions, queries, 6, size, tiles)


# Tiles of 4; the first chunk has two, tile 3 looks nothing up.
ROWS = [(8, 1), (9, 5), (9, 6), (10, 2), (10, 3), (17, 2), (18, 14), (20, 2), (20, 3), (20, 6)]
LOOKUPS = lookups_of(ROWS, range(2, 6))


# --- data


def test_lookups_are_those_of_the_cache(tiny_model: Path) -> None:
    with open_llama(tiny_model, CONFIG) as llm:
        llm.eval(repetitive_tokens(75))
        lookups = read_lookups(llm)
        rows = {tile: llm.kv.lookup_indices(tile).tolist() for tile in range(19)}
    assert lookups.tiles == range(4, 19)
    assert lookups.mean_per_tile == sum(map(len, rows.values())) / 15 > 1
    for tile, expected in rows.items():
        assert [[p, q] for q, positions in lookups.of_tile(tile) for p in positions] == expected


def test_lookups_need_a_budget(tiny_model: Path) -> None:
    for config in (None, replace(CONFIG, B=0)):
        with open_llama(tiny_model, config) as llm:
            llm.eval(repetitive_tokens(40))
            with pytest.raises(H2OError, match="nothing is looked up by the text"):
                read_lookups(llm)
            with pytest.raises(H2OError, match="nothing is looked up by the text"):
                lookup_attention(llm, repetitive_tokens(40))


def test_rows_of_a_tile_are_by_query() -> None:
    assert LOOKUPS.of_tile(2) == [(8, [1]), (9, [5, 6]), (10, [2, 3])]
    assert LOOKUPS.of_tile(3) == []


def test_a_tile_that_asks_again_wants_a_position_once() -> None:
    """Tile 2 asks for position 1 twice, and like tile 3 for 30; 31 is next to that."""
    lookups = lookups_of([(8, 1), (9, 30), (10, 31), (11, 1), (12, 30)], range(2, 4))
    assert most_wanted(lookups, 9) == [(30, 2), (1, 1)]


def test_most_wanted_are_apart() -> None:
    assert most_wanted(LOOKUPS, 9) == [(2, 3), (14, 1)]
    assert most_wanted(LOOKUPS, 1) == [(2, 3)]


def test_examples_are_what_asked_for_most_in_the_last_tiles() -> None:
    assert examples(LOOKUPS, 9) == [(9, [5, 6]), (17, [2]), (20, [2, 3, 6])]
    assert examples(LOOKUPS, 1) == [(20, [2, 3, 6])]


def test_places_are_runs_of_neighbours() -> None:
    assert places([1, 2, 3, 7, 9, 10]) == [range(1, 4), range(7, 8), range(9, 11)]


def test_snippets_have_as_many_characters_around_them() -> None:
    report = report_of([b"One ", b"two\n", "€".encode()[:1], "€".encode()[1:], b" five", b" six"], {(0, 0): []})
    assert snippet(report, range(2, 3), 5, 3) == Snippet(" two⏎", "€", " fi")
    assert snippet(report, range(2), 5, 99) == Snippet("", "One two⏎", "€ five six")
    assert snippet(report, range(4, 6), 99, 5) == Snippet("One two⏎€", " five six", "")


# --- attention


def test_attention_to_lookups_by_its_definition(model_by_name: ModelByName) -> None:
    """The first layer's keys and queries do not depend on attention: there, dense weights of single queries tell."""
    path = model_by_name("qwen3-mha-f32")
    tokens = repetitive_tokens(3 * S + 10)
    progress: list[tuple[int, int]] = []
    with open_llama(path, CONFIG) as llm:
        llm.eval(tokens)
        result = lookup_attention(llm, tokens, n_threads=1, progress=lambda *call: progress.append(call))
        sets, lookups = llm.kv.history, read_lookups(llm)
        weights = [mass[0] for mass in chunk_masses(llm, tokens, chunk_size=1, n_threads=1)]
    assert progress == [(16, 58), (32, 58), (48, 58), (58, 58)]
    assert result.heads == tuple((layer, head) for layer in range(2) for head in range(4))
    assert result.share.shape == (3, 8)
    for c in range(3):
        for head in range(4):
            kept = set(sets[c][0][head].tolist()) - {-1}
            to_kept = to_others = 0.0
            for q in range((c + 1) * S, min((c + 2) * S, len(tokens))):
                asked = lookups.positions[lookups.queries <= q][-CONFIG.B :].tolist()
                w = weights[q][head].astype(np.float64)
                w_kept, w_others, w_own = (
                    w[list(part)].sum() for part in (kept, set(asked) - kept, range((c + 1) * S, q + 1))
                )
                to_kept += w_kept / (w_kept + w_others + w_own)
                to_others += w_others / (w_kept + w_others + w_own)
            np.testing.assert_allclose(result.share[c, head], to_others / (to_kept + to_others), atol=1e-3)
    assert result.share[:, :4].max() > 0.05


def test_attention_of_one_chunk_is_empty(tiny_model: Path) -> None:
    with open_llama(tiny_model, CONFIG) as llm:
        llm.eval(repetitive_tokens(10))
        assert lookup_attention(llm, repetitive_tokens(10), n_threads=1).share.shape == (0, 6)


# --- the page


def page_report(tokens: list[bytes], lookups: Lookups) -> MemoryReport:
    return replace(report_of(tokens, {(0, 0): [1]}), lookups=lookups)


def test_page_has_the_rows_of_every_tile_and_the_lengths_that_javascript_counts() -> None:
    text = "aé😀\n".encode() + b"x" * 20
    page = Page(render_html(page_report(byte_tokens(text), LOOKUPS)))
    assert {link.removeprefix("#") for link in page.links} <= set(page.ids)
    data = json.loads(page.scripts[0])["lookups"]
    assert data["lengths"] == [1, 1, 0, 2, 0, 0, 0] + [1] * 21
    assert (data["size"], data["first"]) == (4, 2)
    assert data["tiles"] == [[[0, 1], [1, 5, 6], [2, 2, 3]], [], [[1, 2], [2, 14]], [[0, 2, 3, 6]]]


def test_page_of_a_long_text_has_the_last_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    report = page_report([b"x"] * 24, LOOKUPS)
    for n_max, first in ((10, 2), (9, 3), (5, 3), (4, 5), (3, 5), (1, 5)):
        monkeypatch.setattr(lookup_panel, "MAX_POSITIONS", n_max)
        panel = lookup_panel.lookup_panel(report)
        assert panel is not None
        assert (panel.tiles, panel.data["first"], len(panel.data["tiles"])) == (range(first, 6), first, 6 - first)
        assert ("The text is long" in render_html(report)) == (first > 2)


def test_page_without_lookups_has_no_section() -> None:
    for lookups in (None, lookups_of([], range(2, 6))):
        report = replace(report_of([b"x"] * 24, {(0, 0): [1]}), lookups=lookups)
        assert 'id="lookups"' not in render_html(report)


def test_looked_up_markup_stays_text() -> None:
    tokens = [b"<img src=x>"] * 24
    html = render_html(page_report(tokens, lookups_of([(8, 1), (20, 2)], range(2, 6))))
    assert "<img" not in html
    assert '<mark class="found">&lt;img src=x&gt;</mark>' in html
