"""What the reports show: memory sets of a real model, then data by hand as an HTML page and as terminal text."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from compare import case
from h2o_llama import H2OError
from h2o_llama.inspect._extra_keys import ExtraKeys, read_extra_keys
from h2o_llama.inspect._history import SHADES, MemoryHistory, _shade, count_in_bins, memory_history
from h2o_llama.inspect._html import render_html, write_html
from h2o_llama.inspect._memory import HeadMemory, MemoryReport, shades, top_texts
from h2o_llama.inspect._pieces import Snippet, snippet, split_pieces
from h2o_llama.inspect._terminal import highlighted
from inputs import random_tokens, repetitive_tokens
from llamas import Config, open_llama

VOID_TAGS = {"meta", "br", "link", "img", "input", "hr"}
HOSTILE = b"a\n\n<script>alert(1)</script>&amp;\"'`{{ 7*7 }}</div></span></mark><!-- \x00\x1b[31m\r\n end"


class Page(HTMLParser):
    """Checks that tags nest, and collects the document's text, its marks, and the page's scripts."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.stack: list[tuple[str, dict[str, str | None]]] = []
        self.document = ""
        self.marks: list[tuple[str, list[int]]] = []
        self.scripts: list[str] = []
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.ids: list[str | None] = []
        self.links: list[str] = []
        self.feed(html)
        self.close()
        assert not self.stack, f"not closed: {self.stack}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes.update(name for name, _ in attrs)
        self.ids += [value for name, value in attrs if name == "id"]
        self.links += [value or "" for name, value in attrs if name == "href"]
        if tag not in VOID_TAGS:
            self.stack.append((tag, dict(attrs)))
        if tag == "mark" and self.in_document:
            values = dict(attrs)
            assert values["class"] in {f"s{n}" for n in range(1, SHADES + 1)}
            self.marks.append(("", [int(p) for p in (values["data-p"] or "").split()]))
        if tag == "script":
            self.scripts.append("")

    @property
    def in_document(self) -> bool:
        """Whether the parser is inside the document's text."""
        return any(attrs.get("id") == "document" for _, attrs in self.stack)

    def handle_endtag(self, tag: str) -> None:
        assert [t for t, _ in self.stack[-1:]] == [tag], f"</{tag}> closes {self.stack[-1:]}"
        self.stack.pop()

    def handle_data(self, data: str) -> None:
        if not self.stack:
            return
        tag = self.stack[-1][0]
        if tag == "script":
            self.scripts[-1] += data
        if self.in_document:
            self.document += data
        if tag == "mark" and self.in_document:
            text, positions = self.marks[-1]
            self.marks[-1] = (text + data, positions)


def report_of(
    tokens: list[bytes], heavy: dict[tuple[int, int], list[int]], chunk_size: int = 8, local: int = 2, sinks: int = 0
) -> MemoryReport:
    """A report in which each (layer, head) keeps the given positions, best first."""
    end = (len(tokens) - 1) // chunk_size * chunk_size
    heads = [
        HeadMemory(layer, head, np.array(p, np.int32), np.arange(len(p), 0, -1, dtype=np.float32))
        for (layer, head), p in heavy.items()
    ]
    return MemoryReport(
        title="a <test>",
        pieces=tuple(split_pieces(tokens)),
        n_tokens=len(tokens),
        chunk_size=chunk_size,
        memory_size=local + sinks + max(len(p) for p in heavy.values()),
        memory_end=end,
        sinks=range(sinks),
        local=range(max(0, end - local), end),
        heads=tuple(heads),
    )


def byte_tokens(text: bytes) -> list[bytes]:
    return [bytes([b]) for b in text]


def random_report(seed: int) -> MemoryReport:
    """Printable ASCII bytes, three layers of two heads, 20 heavy hitters each."""
    rng = np.random.default_rng(seed)
    text = bytes(rng.integers(32, 127, 300, dtype=np.uint8))
    heavy = {(layer, head): rng.choice(240, 20, replace=False).tolist() for layer in (0, 1, 5) for head in range(2)}
    return report_of(byte_tokens(text), heavy, chunk_size=64, local=8)


# --- data of a model, and by hand


def history_of(*sets: list[list[int]], heads: Any = ((0, 0), (0, 1), (3, 0)), S: int = 16, H: int = 4) -> MemoryHistory:
    """Each set has a list of positions per head."""
    heavy = np.full((len(sets), len(heads), H), -1, np.int32)
    for c, rows in enumerate(sets):
        for row, positions in enumerate(rows):
            heavy[c, row, : len(positions)] = positions
    return MemoryHistory(tuple(heads), heavy, chunk_size=S, local_window=2, sink_tokens=0)


# Three memory sets of three heads; the last head has none in the second set.
HISTORY = history_of(
    [[0, 1, 2, 3], [0, 1, 8, 9], [5, 6, 7]],
    [[0, 1, 2, 20], [8, 9, 16, 17], []],
    [[0, 1, 20, 40], [8, 16, 32, 33], [40, 41, 42]],
)


@pytest.mark.parametrize("sinks", [0, 3])
def test_history_holds_the_heavy_hitters_of_every_set(tiny_model: Path, sinks: int) -> None:
    config = Config(S=32, L=8, H=12, A=sinks)
    with open_llama(tiny_model, config) as llm:
        llm.eval(random_tokens(4 * 32 + 5))
        history, recorded = memory_history(llm), llm.kv.history
        last = {(layer, head): llm.kv.heavy_hitters(layer, head) for layer in llm.kv.layers for head in range(2)}
    assert len(history.heavy) == 4
    assert history.heads == tuple(last)
    for c, layers in enumerate(recorded):
        end = 32 * (c + 1)
        for row, (layer, head) in enumerate(history.heads):
            want = [p for p in layers[layer][head].tolist() if sinks <= p < end - 8]
            assert history.heavy[c, row][history.heavy[c, row] >= 0].tolist() == want
    for (layer, head), heavy in last.items():
        np.testing.assert_array_equal(history.heavy[-1, history.heads.index((layer, head))], heavy)


def test_history_of_layers_with_different_heads(model_by_name: Any) -> None:
    with open_llama(model_by_name("deci-linear-f32"), Config(S=32, L=8, H=8)) as llm:
        llm.eval(random_tokens(70))
        assert memory_history(llm).heads == ((0, 0), (0, 1), (2, 0), (2, 1))
    with open_llama(model_by_name("deci-mixed-f32"), Config(S=32, L=8, H=8)) as llm:
        llm.eval(random_tokens(70))
        history = memory_history(llm)
    assert [layer for layer, _ in history.heads] == [0, 1, 1, 1, 1, 2, 2]


def test_history_without_memory_sets_or_heavy_hitters(tiny_model: Path) -> None:
    with open_llama(tiny_model, Config(S=32, L=8, H=8)) as llm:
        llm.eval(random_tokens(20))
        assert memory_history(llm).heavy.shape == (0, 6, 0)
    with open_llama(tiny_model, Config(S=32, L=8, H=0)) as llm:
        llm.eval(random_tokens(70))
        history = memory_history(llm)
    assert history.heavy.shape == (2, 6, 0)


def test_history_needs_recording_and_h2o(tiny_model: Path) -> None:
    with (
        open_llama(tiny_model, Config(S=32, L=8, H=8), record=False) as llm,
        pytest.raises(H2OError, match="record=True"),
    ):
        memory_history(llm)
    with open_llama(tiny_model, None) as llm, pytest.raises(H2OError, match="H2O is off"):
        memory_history(llm)


def test_since_is_the_first_set_with_a_position() -> None:
    assert HISTORY.since(0, np.array([0, 40, 20], np.int32)) == [0, 2, 1]


def test_bins_are_parts_of_chunks() -> None:
    bins = count_in_bins(HISTORY, 6)
    assert bins.sets.tolist() == [0, 1, 2]
    assert bins.edges.tolist() == [0, 8, 16, 24, 32, 40, 48]
    assert bins.counts[:, 0].tolist() == [[4, 0, 0, 0, 0, 0], [3, 0, 1, 0, 0, 0], [2, 0, 1, 0, 0, 1]]
    assert bins.counts[2, 2].tolist() == [0, 0, 0, 0, 0, 3]
    bins = count_in_bins(HISTORY, 2)  # several chunks, where there are many
    assert bins.sets.tolist() == [0, 2]
    assert bins.edges.tolist() == [0, 32, 48]
    assert bins.counts[:, 0].tolist() == [[4, 0], [3, 1]]


def test_every_heavy_hitter_is_in_the_bin_of_its_position() -> None:
    for n_max, S in product([1, 2, 3, 7, 10, 48, 1000], [5, 7, 16]):
        with case(n_max=n_max, S=S):
            rng = np.random.default_rng(n_max)
            sets = [[np.sort(rng.choice((c + 1) * S, 4, replace=False)).tolist() for _ in range(3)] for c in range(6)]
            bins = count_in_bins(history_of(*sets, S=S), n_max)
            assert (np.diff(bins.edges) > 0).all()
            assert bins.edges[0] == 0
            assert bins.edges[-1] == 6 * S
            assert bins.sets[-1] == 5
            for i, c in enumerate(bins.sets):
                for row in range(3):
                    np.testing.assert_array_equal(bins.counts[i, row], np.histogram(sets[c][row], bins.edges)[0])


@pytest.mark.parametrize("retrieval", ["index", "ngrams"])
def test_extra_keys_are_those_of_the_cache(tiny_model: Path, retrieval: Any) -> None:
    """The last chunk has tiles 16 to 18."""
    config = Config(S=16, L=4, H=6, A=1, B=6, T=4, kv_type="f16", retrieval=retrieval)
    with open_llama(tiny_model, config) as llm:
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
    for config in (None, Config(S=16, L=4, H=6)):
        with open_llama(tiny_model, config) as llm:
            llm.eval(repetitive_tokens(40))
            assert read_extra_keys(llm) is None


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
    pieces = split_pieces([b"One ", b"two\n", "€".encode()[:1], "€".encode()[1:], b" five", b" six"])
    for position in (2, 3):
        assert snippet(pieces, position, 5, 3) == Snippet(" two⏎", "€", " fi")
    assert snippet(pieces, 0, 5, 99) == Snippet("", "One ", "two⏎€ five six")
    assert snippet(pieces, 5, 99, 5) == Snippet("One two⏎€ five", " six", "")


# --- the page and the terminal


@pytest.mark.parametrize("seed", range(3))
def test_marks_are_exactly_the_heavy_hitters(seed: int) -> None:
    report = random_report(seed)
    page = Page(render_html(report))
    marked = [p for _, positions in page.marks for p in positions]
    kept = {int(p) for h in report.heads for p in h.heavy}
    assert len(marked) == len(kept)
    assert set(marked) == kept


def with_history(report: MemoryReport, n_sets: int = 4) -> MemoryReport:
    """The report with a history that ends with its memory set."""
    heads = tuple((h.layer, h.head) for h in report.heads)
    heavy = np.full((n_sets, len(heads), max(len(h.heavy) for h in report.heads)), -1, np.int32)
    rng = np.random.default_rng(0)
    for c in range(n_sets):
        for row, h in enumerate(report.heads):
            end = (c + 1) * report.chunk_size - len(report.local)
            kept = h.heavy if c == n_sets - 1 else rng.choice(end, min(end, len(h.heavy)), replace=False)
            heavy[c, row, : len(kept)] = np.sort(kept)
    return replace(report, history=MemoryHistory(heads, heavy, report.chunk_size, len(report.local), len(report.sinks)))


def cells_of(html: str) -> list[tuple[int, int, int, int]]:
    """(column, start, stop, shade) of the membership picture."""
    found = re.findall(r'<rect class="s(\d)" x="(\d+)" y="(\d+)" width="1" height="(\d+)"/>', html)
    return [(int(x), int(y), int(y) + int(height), int(shade)) for shade, x, y, height in found]


def test_script_data_tells_since_when_a_position_is_kept() -> None:
    report = report_of([b"x"] * 30, {(0, 0): [9, 3, 17]})
    heavy = np.array([[[3, 4, 5]], [[3, 9, 10]], [[3, 9, 17]]], np.int32)
    report = replace(report, history=MemoryHistory(((0, 0),), heavy, 8, 2, 0))
    (head,) = json.loads(Page(render_html(report)).scripts[0])["heads"]
    assert dict(zip(head["positions"], head["since"], strict=True)) == {9: 1, 3: 0, 17: 2}
    assert head["scores"] == report.heads[0].scores.tolist()


def test_membership_cells_are_shaded_by_halves_of_the_largest_share() -> None:
    report = report_of([b"x"] * 30, {(0, 0): [0]})
    heavy = np.full((3, 1, 16), -1, np.int32)
    heavy[0, 0, :4] = range(4)
    heavy[1, 0, :5] = [0, 1, 8, 9, 10]
    heavy[2, 0, :1] = [0]
    html = render_html(replace(report, history=MemoryHistory(((0, 0),), heavy, 8, 2, 0)))
    data = json.loads(Page(html).scripts[0])["membership"]
    assert data["edges"] == list(range(25))
    assert [len(counts) for counts in data["counts"][0]] == [4, 11, 1]
    assert [cell for cell in cells_of(html) if cell[3]] == [
        (c, p, p + 1, 5) for c, positions in enumerate(([0, 1, 2, 3], [0, 1, 8, 9, 10], [0])) for p in positions
    ]
    coarse = _shade(np.array([0, 0.01, 1 / 16, 0.1, 0.25, 0.26, 0.5, 0.51, 1]))
    assert coarse.tolist() == [0, 1, 1, 2, 3, 4, 4, 5, 5]


def test_membership_picture_and_its_data_agree() -> None:
    report = with_history(random_report(3))
    assert report.history is not None
    html = render_html(report)
    data = json.loads(Page(html).scripts[0])["membership"]
    ends = [64, 128, 192, 256]
    want = [(c, a) for c, end in enumerate(ends) for a in data["edges"][:-1] if a < end]
    cells = cells_of(html)
    assert [(x, start) for x, start, _, _ in cells] == want
    kept = report.history.heavy
    for x, start, stop, shade in cells:
        assert bool(shade) == bool(((kept[x] >= start) & (kept[x] < stop)).any())
    assert [sum(map(sum, head)) for head in data["counts"]] == (kept >= 0).sum(axis=(0, 2)).tolist()


@pytest.mark.parametrize("heavy", [{(0, 0): []}, {(0, 0): [1, 2]}])
def test_pages_of_one_head_or_one_memory_set_are_whole(heavy: dict[tuple[int, int], list[int]]) -> None:
    for n_sets in (1, 4):
        page = Page(render_html(with_history(report_of([b"x"] * 40, heavy), n_sets)))
        assert ("membership" in page.ids) == bool(heavy[0, 0])
        assert {link.removeprefix("#") for link in page.links} <= set(page.ids)


def test_document_text_is_unchanged() -> None:
    text = b"  two spaces\n\n\ttab\nlast line without end"
    report = report_of(byte_tokens(text), {(0, 0): [0, 13, 14, 15]})
    assert Page(render_html(report)).document == text.decode()


def test_hostile_document_stays_text() -> None:
    report = report_of(byte_tokens(HOSTILE), {(0, 0): list(range(0, 60, 3)), (0, 1): [5, 6, 7]})
    html = render_html(report, facts=[("<b>fact</b>", "</dd><script>alert(2)</script>")])
    page = Page(html)
    assert len(page.scripts) == 2
    assert "alert" not in "".join(page.scripts)
    assert page.document == HOSTILE.decode().replace("\0", "␀").replace("\x1b", "␛").replace("\r", "␍")
    assert "b" not in page.tags
    page = Page(render_html(report_of([b"</script>", b"<img src=x onerror=alert(1)>", *[b"x"] * 8], {(0, 0): [0, 1]})))
    assert "img" not in page.tags
    assert len(page.scripts) == 2
    assert not [c for c in html if ord(c) < 32 and c != "\n"]


def test_page_loads_nothing() -> None:
    html = render_html(with_history(random_report(0)))
    page = Page(html)
    assert not page.tags & {"link", "img", "iframe", "object", "base"}
    assert not page.attributes & {"src", "srcset", "action"}
    assert page.links
    assert {link.removeprefix("#") for link in page.links} <= set(page.ids)
    assert "url(" not in html
    assert "@import" not in html
    assert "http" not in html.replace(page.document, "")
    assert "@media (prefers-color-scheme: dark)" in html
    assert 'name="viewport"' in html


def test_characters_split_over_tokens_are_joined() -> None:
    text = "aé€😀z".encode()
    report = report_of([*byte_tokens(text), *[b"."] * 8], {(0, 0): [4, 8]})
    page = Page(render_html(report))
    assert page.document == "aé€😀z........"
    assert page.marks == [("€", [4]), ("😀", [8])]
    report = report_of([*byte_tokens("€".encode()), *[b"."] * 8], {(0, 0): [0, 2]})
    assert Page(render_html(report)).marks == [("€", [0, 2])]  # two kept tokens share a mark


def test_invalid_utf8_is_replaced() -> None:
    pieces = split_pieces([b"a", b"\xff", b"\xe2", b"b", b"\xe2\x82"])
    assert "".join(p.text for p in pieces) == "a\ufffd\ufffdb\ufffd"
    assert [(p.start, p.end) for p in pieces] == [(0, 1), (1, 2), (2, 4), (4, 5)]


def test_regions_and_chunk_marks() -> None:
    report = report_of(byte_tokens(b"0123456789abcdefghij"), {(0, 0): [5]}, chunk_size=8, local=3, sinks=2)
    html = render_html(report)
    assert '<span class="sinks" data-chunk="0">01</span><span class="old">234<mark' in html
    assert '<span class="old" data-chunk="1">89abc</span><span class="local">def</span>' in html
    assert '<span class="open" data-chunk="2">ghij</span>' in html


def test_noted_positions_are_framed() -> None:
    report = report_of(byte_tokens(b"0123456789abcdefghij"), {(0, 0): [5]})
    html = render_html(report, notes=[range(1, 3), range(18, 20)])
    assert '>0</span><span class="old noted">12</span><span class="old">34<mark' in html
    assert '<span class="open noted">ij</span></div>' in html
    assert Page(html).document == "0123456789abcdefghij"


def test_document_of_one_chunk_says_so() -> None:
    html = render_html(report_of(byte_tokens(b"short"), {(0, 0): []}))
    page = Page(html)
    assert "fits into one chunk" in html
    assert page.document == "short"
    assert page.marks == page.scripts == page.links == []


def test_shades_follow_the_rank_of_one_head_and_count_several() -> None:
    report = report_of([b"x"] * 30, {(0, 0): [9, 3, 5, 7, 1]}, chunk_size=16)
    assert shades(report.heads) == {9: 5, 3: 4, 5: 3, 7: 2, 1: 1}
    heavy = {(0, 0): [1, 2], (0, 1): [2, 3], (1, 0): [2, 3], (1, 1): [2, 4], (2, 0): [2]}
    report = report_of([b"x"] * 30, heavy, chunk_size=16)
    assert shades(report.heads) == {1: 1, 2: 5, 3: 2, 4: 1}


def test_top_texts_are_the_most_frequent_then_the_highest_ranked() -> None:
    report = report_of(byte_tokens(b"abababcx" * 2), {(0, 0): [6, 0, 3, 2, 1]})
    assert top_texts(report, report.heads[0], 3) == [("a", 2), ("b", 2), ("c", 1)]
    assert top_texts(report, report.heads[0], 1) == [("a", 2)]


def test_unknown_head_is_a_value_error() -> None:
    report = random_report(0)
    assert len(report.select()) == 6
    assert len(report.select(layer=1)) == 2
    assert [(h.layer, h.head) for h in report.select(5, 1)] == [(5, 1)]
    with pytest.raises(ValueError, match="layers are 0 to 5, KV heads are 0 to 1"):
        report.select(layer=7)


def test_terminal_text_highlights_the_same_tokens() -> None:
    report = random_report(1)
    text = highlighted(report, report.heads)
    assert text.plain == "".join(p.text for p in report.pieces)
    orange = {i for span in text.spans if span.style.bgcolor for i in range(span.start, span.end)}
    assert orange == {int(p) for h in report.heads for p in h.heavy}
    report = report_of(byte_tokens(b"0123456789"), {(0, 0): [2, 3, 7]})
    assert highlighted(report, report.heads, brackets=True).plain == "01⟦23⟧456⟦7⟧89"


def test_write_html_leaves_one_file(tmp_path: Path) -> None:
    target = tmp_path / "page.html"
    target.write_text("old")
    write_html(target, random_report(0))
    assert target.read_text(encoding="utf-8").startswith("<!DOCTYPE html>")
    assert [p.name for p in tmp_path.iterdir()] == ["page.html"]


# --- extra keys on the page


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
