"""What the reports tell of extra keys: the data by hand, and attention to what was looked up against its definition."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from h2o_llama import H2OError
from h2o_llama.inspect.attention_mass import chunk_masses
from h2o_llama.inspect.extra_keys import ExtraKeys, read_extra_keys
from h2o_llama.inspect.html import render_html
from h2o_llama.inspect.lookup_attention import lookup_attention
from h2o_llama.inspect.memory import MemoryReport
from h2o_llama.inspect.snippets import Snippet, snippet
from inputs import ModelByName, repetitive_tokens
from llamas import Config, open_llama
from test_html import Page, byte_tokens, report_of

S, T = 16, 4
CONFIG = Config(S=S, L=4, H=6, A=1, B=6, T=T, kv_type="f16")


# --- data


@pytest.mark.parametrize("retrieval", ["index", "ngrams"])
def test_extra_keys_are_those_of_the_cache(tiny_model: Path, retrieval: Any) -> None:
    """Tiles 16 to 18 are those of the last chunk."""
    with open_llama(tiny_model, replace(CONFIG, retrieval=retrieval)) as llm:
        llm.eval(repetitive_tokens(75))
        extra = read_extra_keys(llm)
        assert extra is not None
        n_heads = len(llm.kv.memory_indices(0))
        counts = np.zeros_like(extra.counts)
        for row, tile in np.ndindex(len(counts), 3):
            counts[row, llm.kv.extra_keys(row // n_heads, row % n_heads, 16 + tile)] += 1
    assert extra.n_tiles == 3
    assert counts.sum() > len(counts)
    np.testing.assert_array_equal(extra.counts, counts)


def test_reports_have_none_without_a_budget(tiny_model: Path) -> None:
    for config in (None, replace(CONFIG, B=0)):
        with open_llama(tiny_model, config) as llm:
            llm.eval(repetitive_tokens(40))
            assert read_extra_keys(llm) is None
            with pytest.raises(H2OError, match="nothing is looked up by the text"):
                lookup_attention(llm, repetitive_tokens(40))


def test_what_is_read_most_is_apart() -> None:
    """Position 9 is next to 8, and both heads together read 20 as often as 1."""
    extra = ExtraKeys(4, np.zeros((2, 24), np.int32))
    extra.counts[0, [1, 8, 9, 20]] = [1, 4, 3, 1]
    extra.counts[1, [1, 20]] = [1, 1]
    assert extra.most_read([0], 9) == [(8, 1), (20, 0.25)]
    assert extra.most_read([0, 1], 9) == [(8, 0.5), (20, 0.25)]
    assert extra.most_read([1], 9) == [(1, 0.25), (20, 0.25)]
    assert extra.most_read([1], 1) == [(1, 0.25)]


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
    config = replace(CONFIG, T=1)
    with open_llama(path, config) as llm:
        llm.eval(tokens)
        result = lookup_attention(llm, tokens, n_threads=1, progress=lambda *call: progress.append(call))
        sets = llm.kv.history
        asked = [llm.kv.extra_keys(0, 0, tile).tolist() for tile in range(len(tokens))]
        weights = [mass[0] for mass in chunk_masses(llm, tokens, chunk_size=1, n_threads=1)]
    assert progress == [(16, 58), (32, 58), (48, 58), (58, 58)]
    assert result.heads == tuple((layer, head) for layer in range(2) for head in range(4))
    assert result.share.shape == (3, 8)
    for c in range(3):
        for head in range(4):
            kept = set(sets[c][0][head].tolist()) - {-1}
            to_kept = to_others = 0.0
            for q in range((c + 1) * S, min((c + 2) * S, len(tokens))):
                w = weights[q][head].astype(np.float64)
                w_kept, w_others, w_own = (
                    w[list(part)].sum() for part in (kept, set(asked[q]) - kept, range((c + 1) * S, q + 1))
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


def page_report(tokens: list[bytes], positions: list[int]) -> MemoryReport:
    """Of one head, whose two tiles both read these."""
    extra = ExtraKeys(2, np.zeros((1, len(tokens)), np.int32))
    extra.counts[0, positions] = 2
    return replace(report_of(tokens, {(0, 0): [1]}), extra=extra)


def test_page_has_what_every_choice_of_heads_read() -> None:
    page = Page(render_html(page_report(byte_tokens(b"one two\nthree four five"), [4])))
    assert {link.removeprefix("#") for link in page.links} <= set(page.ids)
    rows = json.loads(page.scripts[0])["extra"]
    assert rows == {key: [["4", "100 %", "one ", "t", "wo⏎three four five"]] for key in (" ", "0 ", " 0", "0 0")}


def test_page_without_extra_keys_has_no_section() -> None:
    for report in (report_of([b"x"] * 24, {(0, 0): [1]}), page_report([b"x"] * 24, [])):
        assert 'id="extra"' not in render_html(report)


def test_markup_that_was_read_stays_text() -> None:
    html = render_html(page_report([b"<img src=x>"] * 24, [8]))
    assert "<img" not in html
    assert '<mark class="found">&lt;img src=x&gt;</mark>' in html
