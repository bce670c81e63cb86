"""What the reports show: memory sets of a real model, then data by hand as an HTML page and as terminal text."""

import re
from dataclasses import replace
from html import unescape
from pathlib import Path

import numpy as np
import pytest

from cases import SMALL
from compare import assert_all_equal
from h2o_llama import H2OError
from h2o_llama.inspect._report import (
    READ_MOST,
    HeadMemory,
    MemoryReport,
    memory_report,
    passages,
    render_html,
    split_pieces,
    stands_out,
)
from inputs import repetitive_tokens
from llamas import open_llama, restore, state_of


def shown(html: str) -> tuple[str, list[tuple[str, list[int]]]]:
    """The document's text in a browser, and each marked piece, with its positions."""
    (document,) = re.findall(r'<div id="document">(.*)</div>\n</main>', html, re.DOTALL)
    marks = re.findall(r'<mark[^>]* style="--weight: \d+%" title="([^"]*)"[^>]*>(.*?)</mark>', document, re.DOTALL)
    found = [(unescape(text), [*map(int, re.findall(r"^Position (\d+):", title, re.M))]) for title, text in marks]
    return unescape(re.sub(r"</?(mark|span)[^>]*>", "", document)), found


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
        memory_end=end,
        sinks=range(sinks),
        local=range(max(0, end - local), end),
        heads=tuple(heads),
    )


def byte_tokens(text: bytes) -> list[bytes]:
    return [bytes([b]) for b in text]


# --- data of a model, and by hand


def test_what_a_question_reads_is_the_sum_of_its_weights(tiny_model: Path) -> None:
    """The same as the scores that plain sums add for it, and nothing else changes."""
    tokens = repetitive_tokens(75)
    with open_llama(tiny_model, SMALL.but(scorer="sum", heavy_budget=6)) as llm:
        llm.eval(tokens[:60])
        before = [llm.kv.scores(layer) for layer in llm.kv.layers]
        llm.eval(tokens[60:], dense_tail=15, keep_attention=True)
        for layer, scores in zip(llm.kv.layers, before, strict=True):
            for head, row in enumerate(llm.kv.scores(layer)):
                row[:60] -= scores[head]
                np.testing.assert_allclose(llm.kv.attention(layer, head), row, atol=1e-4)
    with open_llama(tiny_model, SMALL.but(heavy_budget=0)) as llm:
        llm.eval(tokens[:60])
        llm.eval(tokens[60:], dense_tail=15, keep_attention=True)
        asked, logits = llm.kv.attention(0, 0), llm.logits
        report = memory_report(llm, tokens, "a text", range(3, 60))
        llm.eval(tokens[:1], dense_tail=1)
        np.testing.assert_array_equal(llm.kv.attention(0, 0), [*asked, 0])  # this call did not ask
        llm.reset()
        llm.eval(tokens[:60])
        llm.eval(tokens[60:], dense_tail=15)
        np.testing.assert_allclose(llm.logits, logits, rtol=1e-5, atol=1e-5)
        with pytest.raises(H2OError, match="no attention is kept"):
            llm.kv.attention(0, 0)
        with pytest.raises(ValueError, match="keep_attention is for a dense_tail"):
            llm.eval(tokens[:1], keep_attention=True)
        llm.reset()
        llm.eval(tokens[:60])
        with pytest.raises(ZeroDivisionError):  # the first of two steps is undone
            llm.eval(tokens[60:], dense_tail=15, keep_attention=True, progress=lambda n_done, _: n_done and 1 / 0)
        with pytest.raises(H2OError, match="no attention is kept"):
            llm.kv.attention(0, 0)
    assert report.heads[0].positions[0] == 3 + np.argmax(asked[3 : report.local.start])
    assert "read most by" in render_html(report)


def test_scores_after_a_text_without_scores_whose_attention_was_kept(tiny_model: Path) -> None:
    """The same step, of the same sequence: its scores come from a graph that leaves out the local window."""
    tokens, config = repetitive_tokens(30), SMALL.but(heavy_budget=0, scorer="distant")
    states = []
    for keep_history in (False, True):
        with open_llama(tiny_model, config, keep_history=keep_history) as llm:
            llm.eval(tokens[:20])
            states.append(state_of(llm))
    scores = []
    for with_text_before in (False, True):
        with open_llama(tiny_model, config, keep_history=True) as llm:
            if with_text_before:
                restore(llm, states[0])
                llm.eval(tokens[20:], dense_tail=10, keep_attention=True)
            restore(llm, states[1])
            llm.eval(tokens[20:], dense_tail=10)
            scores.append([llm.kv.scores(layer) for layer in llm.kv.layers])
    assert_all_equal(*scores)


# --- the page and the terminal


HOSTILE = b"a\n\n<script>alert(1)</script>&amp;\"'`{{ 7*7 }}</div></span></mark><!-- \x00\x1b[31m\r\n end"
REPORTS = {
    "no heavy hitters": report_of([b"x"] * 40, {(0, 0): []}),
    "spaces": report_of(byte_tokens(b"  two spaces\n\n\ttab\nlast line without end"), {(0, 0): [0, 13, 14, 15]}),
    "hostile": report_of(byte_tokens(HOSTILE), {(0, 0): list(range(0, 60, 3)), (5, 1): [5, 6, 7]}),
    "hostile tokens": report_of([b"</script>", b"<img src=x onerror=alert(1)>", *[b"x"] * 8], {(0, 0): [0, 1]}),
    "characters in parts": report_of(byte_tokens("aé€😀z".encode() + b"." * 8), {(0, 0): [4, 8]}),
}


@pytest.mark.parametrize("name", REPORTS)
def test_a_page_shows_its_report_and_nothing_else(name: str) -> None:
    """The text unchanged, heavy hitters marked, data in scripts; a whole page that loads nothing."""
    report = REPORTS[name]
    html = render_html(report, facts=[("<b>fact</b>", "</dd><script>alert(2)</script>")])
    document, marks = shown(html)
    text = "".join(piece.text for piece in report.pieces)
    assert document == text
    marked = [p for _, positions in marks for p in positions]
    kept = {int(p) for head in report.heads for p in head.positions}
    assert (len(marked), set(marked)) == (len(kept), kept)
    tags = re.findall(r"<([a-z]\w*)([^>]*)", html)
    assert not {tag for tag, _ in tags} & {"script", "link", "img", "iframe", "object", "base", "b"}
    assert not [about for _, about in tags if re.search(r" (src|srcset|action|href|on\w+)=.(?!#)", about)]
    assert not [word for word in ("url(", "@import", "http") if word in html.replace(document, "")]
    assert not [c for c in html if ord(c) < 32 and c != "\n" and c not in text]


def test_a_character_of_several_tokens_is_one_mark() -> None:
    assert shown(render_html(REPORTS["characters in parts"]))[1] == [("€", [4]), ("😀", [8])]
    report = report_of([*byte_tokens("€".encode()), *[b"."] * 8], {(0, 0): [0, 2]})
    assert shown(render_html(report))[1] == [("€", [0, 2])]


def test_passages_are_ranked_by_weight() -> None:
    text = b"One fact. Another one, longer.\n3. Third? Last"
    report = replace(report_of(byte_tokens(text), {(0, 0): [12, 3, 33], (1, 0): [3]}, chunk_size=40), marked=READ_MOST)
    found = passages(report, report.heads, 2)
    assert [passage.text.strip() for passage in found] == ["One fact.", "Another one, longer."]
    np.testing.assert_allclose([passage.share for passage in found], [3 / 7, 3 / 7], atol=1e-6)
    assert not stands_out(report, found)
    assert stands_out(report, found[:1])
    assert passages(report, report.heads)[2].text.strip() == "3. Third?"
    rows = report_of(byte_tokens(b"Lift\tMrs. Ann\nRoof\tBob\n"), {(0, 0): [6, 20]}, chunk_size=40)
    assert [passage.text.strip() for passage in passages(rows, rows.heads)] == ["Lift\tMrs. Ann", "Roof\tBob"]
    several = report_of(byte_tokens(text), {(0, 0): [12, 3], (1, 0): [13], (2, 0): [14]}, chunk_size=40)
    assert passages(several, several.heads, 1)[0].share == 3 / 4  # of heavy hitters the number of heads
