"""The HTML page and the terminal text: well-formed, escaped, and highlighting exactly what the memory sets hold."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from h2o_llama.report.html import render_html, write_html
from h2o_llama.report.memory import SHADES, HeadMemory, MemoryReport, shades, top_texts
from h2o_llama.report.pieces import split_pieces
from h2o_llama.report.terminal import highlighted

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
        self.feed(html)
        self.close()
        assert not self.stack, f"not closed: {self.stack}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes.update(name for name, _ in attrs)
        if tag not in VOID_TAGS:
            self.stack.append((tag, dict(attrs)))
        if tag == "mark":
            values = dict(attrs)
            assert values["class"] in {f"s{n}" for n in range(1, SHADES + 1)}
            self.marks.append(("", [int(p) for p in (values["data-p"] or "").split()]))
        if tag == "script":
            self.scripts.append("")

    def handle_endtag(self, tag: str) -> None:
        assert [t for t, _ in self.stack[-1:]] == [tag], f"</{tag}> closes {self.stack[-1:]}"
        self.stack.pop()

    def handle_data(self, data: str) -> None:
        if not self.stack:
            return
        tag = self.stack[-1][0]
        if tag == "script":
            self.scripts[-1] += data
        if any(attrs.get("id") == "document" for _, attrs in self.stack):
            self.document += data
        if tag == "mark":
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


def test_script_data_holds_every_head() -> None:
    report = random_report(0)
    heads = json.loads(Page(render_html(report)).scripts[0])
    assert [(h["layer"], h["head"]) for h in heads] == [(0, 0), (0, 1), (1, 0), (1, 1), (5, 0), (5, 1)]
    for data, head in zip(heads, report.heads, strict=True):
        assert data["positions"] == head.heavy.tolist()
        assert data["scores"] == head.scores.tolist()


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
    html = render_html(random_report(0))
    page = Page(html)
    assert not page.tags & {"link", "img", "iframe", "object", "base"}
    assert not page.attributes & {"src", "href", "srcset", "action"}
    assert "url(" not in html
    assert "@import" not in html
    assert "http" not in html.replace(page.document, "")


def test_page_knows_dark_mode_and_phones() -> None:
    html = render_html(random_report(0))
    assert "@media (prefers-color-scheme: dark)" in html
    assert 'name="viewport"' in html


def test_characters_split_over_tokens_are_joined() -> None:
    text = "aé€😀z".encode()
    report = report_of([*byte_tokens(text), *[b"."] * 8], {(0, 0): [4, 8]})
    page = Page(render_html(report))
    assert page.document == "aé€😀z........"
    assert page.marks == [("€", [4]), ("😀", [8])]


def test_two_kept_tokens_of_one_character_share_a_mark() -> None:
    report = report_of([*byte_tokens("€".encode()), *[b"."] * 8], {(0, 0): [0, 2]})
    assert Page(render_html(report)).marks == [("€", [0, 2])]


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
    assert "fits into one chunk" in html
    assert Page(html).marks == []


def test_shades_of_one_head_follow_the_rank() -> None:
    report = report_of([b"x"] * 30, {(0, 0): [9, 3, 5, 7, 1]}, chunk_size=16)
    assert shades(report, report.heads) == {9: 5, 3: 4, 5: 3, 7: 2, 1: 1}


def test_shades_of_several_heads_count_them() -> None:
    heavy = {(0, 0): [1, 2], (0, 1): [2, 3], (1, 0): [2, 3], (1, 1): [2, 4], (2, 0): [2]}
    report = report_of([b"x"] * 30, heavy, chunk_size=16)
    assert shades(report, report.heads) == {1: 1, 2: 5, 3: 2, 4: 1}


def test_top_texts_are_ordered_by_total_score() -> None:
    report = report_of(byte_tokens(b"abababcx" * 2), {(0, 0): [6, 0, 2, 1]})
    assert top_texts(report, report.heads[0], 2) == [("a", 2), ("c", 1)]


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


def test_terminal_text_without_colours_has_brackets() -> None:
    report = report_of(byte_tokens(b"0123456789"), {(0, 0): [2, 3, 7]})
    assert highlighted(report, report.heads, brackets=True).plain == "01⟦23⟧456⟦7⟧89"


def test_write_html_leaves_one_file(tmp_path: Path) -> None:
    target = tmp_path / "page.html"
    target.write_text("old")
    write_html(target, random_report(0))
    assert target.read_text(encoding="utf-8").startswith("<!DOCTYPE html>")
    assert [p.name for p in tmp_path.iterdir()] == ["page.html"]
