"""The HTML page and the terminal text: well-formed, escaped, and highlighting exactly what the memory sets hold."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from h2o_llama.inspect import measures, membership
from h2o_llama.inspect.captured import CapturedMass
from h2o_llama.inspect.history import MemoryHistory
from h2o_llama.inspect.html import render_html, write_html
from h2o_llama.inspect.memory import SHADES, HeadMemory, MemoryReport, shades, top_texts
from h2o_llama.inspect.pieces import split_pieces
from h2o_llama.inspect.terminal import highlighted

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
        self.titles: list[str | None] = []
        self.feed(html)
        self.close()
        assert not self.stack, f"not closed: {self.stack}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes.update(name for name, _ in attrs)
        self.titles += [value for name, value in attrs if name == "title"]
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

    def titled(self, title: str) -> list[str | None]:
        """The tooltips that are this text."""
        return [t for t in self.titles if t == title]

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


@pytest.mark.parametrize("seed", range(3))
def test_marks_are_exactly_the_heavy_hitters(seed: int) -> None:
    report = random_report(seed)
    page = Page(render_html(report))
    marked = [p for _, positions in page.marks for p in positions]
    kept = {int(p) for h in report.heads for p in h.heavy}
    assert len(marked) == len(kept)
    assert set(marked) == kept


def with_pictures(report: MemoryReport, n_sets: int = 4) -> MemoryReport:
    """The report with a history that ends with its memory set, and with captured mass."""
    heads = tuple((h.layer, h.head) for h in report.heads)
    size = max(len(h.heavy) for h in report.heads)
    heavy = np.full((n_sets, len(heads), size), -1, np.int32)
    rng = np.random.default_rng(0)
    for c in range(n_sets):
        for row, h in enumerate(report.heads):
            end = (c + 1) * report.chunk_size - len(report.local)
            kept = h.heavy if c == n_sets - 1 else rng.choice(end, min(end, len(h.heavy)), replace=False)
            heavy[c, row, : len(kept)] = np.sort(kept)
    return replace(
        report,
        history=MemoryHistory(heads, heavy, report.chunk_size, len(report.local), size, len(report.sinks)),
        captured=CapturedMass(
            heads, rng.uniform(0, 0.5, (n_sets, len(heads))), rng.uniform(0.5, 1, (n_sets, len(heads)))
        ),
    )


def cells_of(html: str) -> list[tuple[int, int, int, int]]:
    """(column, start, stop, shade) of the membership picture."""
    found = re.findall(r'<rect class="s(\d)" x="(\d+)" y="(\d+)" width="1" height="(\d+)"/>', html)
    return [(int(x), int(y), int(y) + int(height), int(shade)) for shade, x, y, height in found]


def test_script_data_holds_every_head() -> None:
    report = random_report(0)
    heads = json.loads(Page(render_html(report)).scripts[0])["heads"]
    assert [(h["layer"], h["head"]) for h in heads] == [(0, 0), (0, 1), (1, 0), (1, 1), (5, 0), (5, 1)]
    for data, head in zip(heads, report.heads, strict=True):
        assert data["positions"] == head.heavy.tolist()
        assert data["scores"] == head.scores.tolist()


def test_script_data_tells_since_when_a_position_is_kept() -> None:
    report = report_of([b"x"] * 30, {(0, 0): [9, 3, 17]})
    heavy = np.array([[[3, 4, 5]], [[3, 9, 10]], [[3, 9, 17]]], np.int32)
    report = replace(report, history=MemoryHistory(((0, 0),), heavy, 8, 2, 3, 0))
    (head,) = json.loads(Page(render_html(report)).scripts[0])["heads"]
    assert dict(zip(head["positions"], head["since"], strict=True)) == {9: 1, 3: 0, 17: 2}


def test_membership_cells_are_shaded_by_halves_of_the_largest_share() -> None:
    report = report_of([b"x"] * 30, {(0, 0): [0]})
    heavy = np.full((3, 1, 16), -1, np.int32)
    heavy[0, 0, :4] = range(4)
    heavy[1, 0, :5] = [0, 1, 8, 9, 10]
    heavy[2, 0, :1] = [0]
    html = render_html(replace(report, history=MemoryHistory(((0, 0),), heavy, 8, 2, 16, 0)))
    data = json.loads(Page(html).scripts[0])["membership"]
    assert data["edges"] == list(range(25))
    assert [len(counts) for counts in data["counts"][0]] == [4, 11, 1]
    assert [cell for cell in cells_of(html) if cell[3]] == [
        (c, p, p + 1, 5) for c, positions in enumerate(([0, 1, 2, 3], [0, 1, 8, 9, 10], [0])) for p in positions
    ]
    coarse = membership._shade(np.array([0, 0.01, 1 / 16, 0.1, 0.25, 0.26, 0.5, 0.51, 1]))
    assert coarse.tolist() == [0, 1, 1, 2, 3, 4, 4, 5, 5]


def test_membership_picture_and_its_data_agree() -> None:
    report = with_pictures(random_report(3))
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


def test_maps_show_the_numbers_of_every_head() -> None:
    report = with_pictures(random_report(3))
    assert report.history is not None
    assert report.captured is not None
    html = render_html(report)
    values = measures.stability(report.history)
    table = html[html.index("<h3>Stability</h3>") :]
    table = table[: table.index("</table>")]
    cells = re.findall(r'data-head="(\d+) (\d+)">(\d+)</td>', table)
    assert [(int(a), int(b)) for a, b, _ in cells] == list(report.history.heads)
    assert [int(number) for _, _, number in cells] == [round(100 * v) for v in values]
    shades = re.findall(r'<td class="s(\d)"', table)
    assert shades[int(values.argmin())] == "1"
    assert shades[int(values.argmax())] == "5"
    assert f"{100 * report.captured.captured[1].mean():.1f} %</td>" in html


def test_maps_of_layers_with_different_heads_have_gaps() -> None:
    report = with_pictures(report_of([b"x"] * 40, {(0, 0): [1, 2], (2, 0): [1, 3], (2, 1): [5, 6]}))
    page = Page(render_html(report))
    assert len(page.titled("layer 0, KV head 1: nothing to measure")) == 6
    assert page.titled("layer 0, layer 0: nothing to measure")


@pytest.mark.parametrize("heavy", [{(0, 0): []}, {(0, 0): [1, 2]}])
def test_pages_of_one_head_or_one_memory_set_are_whole(heavy: dict[tuple[int, int], list[int]]) -> None:
    for n_sets in (1, 4):
        html = render_html(with_pictures(report_of([b"x"] * 40, heavy), n_sets))
        page = Page(html)
        assert ("<h3>Chunk beginnings</h3>" in html) == bool(heavy[0, 0])
        assert ("<h3>Stability</h3>" in html) == (bool(heavy[0, 0]) and n_sets > 1)
        assert "<h3>Agreement" not in html
        assert "nan" not in re.sub(r"<script.*?</script>", "", html, flags=re.DOTALL)
        assert {link.removeprefix("#") for link in page.links} <= set(page.ids)


def test_large_report_makes_a_small_page() -> None:
    n_sets, S, n_heads, H = 40, 512, 64, 32
    rng = np.random.default_rng(0)
    heavy = {(i, h): np.sort(rng.choice(S * n_sets, H, replace=False)).tolist() for i in range(8) for h in range(8)}
    report = with_pictures(report_of([b"word "] * (S * n_sets + 1), heavy, chunk_size=S, local=32), n_sets)
    assert len(report.heads) == n_heads
    assert len(render_html(report)) < 2_000_000


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
    assert not [c for c in html if ord(c) < 32 and c != "\n"]


def test_top_text_with_markup_is_escaped_in_the_table() -> None:
    report = report_of([b"</script>", b"<img src=x onerror=alert(1)>", *[b"x"] * 8], {(0, 0): [0, 1]})
    page = Page(render_html(report))
    assert "img" not in page.tags
    assert "onerror" not in page.attributes
    assert len(page.scripts) == 2


def test_page_loads_nothing() -> None:
    html = render_html(with_pictures(random_report(0)))
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
    assert shades(report, report.heads) == {9: 5, 3: 4, 5: 3, 7: 2, 1: 1}
    heavy = {(0, 0): [1, 2], (0, 1): [2, 3], (1, 0): [2, 3], (1, 1): [2, 4], (2, 0): [2]}
    report = report_of([b"x"] * 30, heavy, chunk_size=16)
    assert shades(report, report.heads) == {1: 1, 2: 5, 3: 2, 4: 1}


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
