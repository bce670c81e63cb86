"""The demo's document and its measurements, with short settings."""

from __future__ import annotations

import importlib
import inspect
import io
import re
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from h2o_llama import KVStats, demo_model_path
from h2o_llama.demo import document as document_module
from h2o_llama.demo.document import SECRETS, Document, Needle, build_document, standard_library_text
from h2o_llama.demo.measure import CHUNK_SIZE, DENSE, H2O, ROOM, SPARSE, TAIL, Comparison, Result, compare
from h2o_llama.demo.tables import answer_table, cost_table, html_facts
from h2o_llama.inspect.memory import HeadMemory, MemoryReport

DEPTHS = (0.0, 0.3, 0.55, 0.8, 0.97)
N_BYTES = 1100


@pytest.fixture(scope="module")
def document() -> Document:
    return build_document(N_BYTES, DEPTHS)


@pytest.fixture(scope="module")
def progress_calls() -> list[tuple[str, int, int]]:
    return []


@pytest.fixture(scope="module")
def comparison(document: Document, progress_calls: list[tuple[str, int, int]]) -> Comparison:
    return compare(demo_model_path(), document, 1, lambda *call: progress_calls.append(call))


def source_of(module: str) -> bytes:
    path = inspect.getsourcefile(importlib.import_module(module))
    assert path is not None
    return Path(path).read_bytes()


@pytest.mark.parametrize("n_bytes", [600, N_BYTES, 8100, 200_001])
def test_document_has_the_length_asked_for(n_bytes: int) -> None:
    text = build_document(n_bytes, DEPTHS).text
    assert len(text) == n_bytes
    assert text.isascii()
    assert text.endswith(b"\n")
    long = standard_library_text(10**6)  # it begins again
    assert (len(long), long.count(long[:200]) > 1) == (10**6, True)


def test_document_is_the_library_source_but_for_the_needles(document: Document) -> None:
    text = document.text
    for needle in document.needles:
        text = text.replace(needle.definition, b"", 1)
    source = source_of(document_module.MODULE)
    assert len(text) == N_BYTES - 10 * len(SECRETS)
    assert source.startswith(text[:-1])
    assert build_document(N_BYTES, DEPTHS) == document


def test_needles_are_where_they_say(document: Document) -> None:
    assert [n.key for n in document.needles] == [key for key, _ in SECRETS]
    for needle, depth in zip(document.needles, DEPTHS, strict=True):
        at = document.text[needle.start :]
        assert at.startswith(b"k%d=%d;\n" % (needle.key, needle.value))
        assert needle.start == 0 or document.text[needle.start - 1 : needle.start] == b"\n"
        assert abs(needle.start - depth * N_BYTES) < 100
        assert bytes(document.text[p] for p in needle.value_positions) == needle.answer
        assert bytes(document.text[p] for p in needle.line_positions) + b"\n" == needle.definition
        assert document.text.count(b"k%d=" % needle.key) == 1


def test_bad_documents() -> None:
    with pytest.raises(ValueError, match="at most 5 keys"):
        build_document(N_BYTES, [0.1] * 6)
    with pytest.raises(ValueError, match="too short"):
        build_document(120, [0.95, 0.96, 0.97])
    with pytest.raises(OSError, match="no source of its module 'sys'"):
        build_document(N_BYTES, DEPTHS, module="sys")


def test_document_of_another_module() -> None:
    assert build_document(N_BYTES, module="difflib").text[:-1] == source_of("difflib")[: N_BYTES - 1]


def test_results_cover_every_prompt(comparison: Comparison, document: Document) -> None:
    assert comparison.dense.variant in DENSE
    assert comparison.sparse.variant == SPARSE
    assert comparison.tail.variant == TAIL
    for result in (comparison.dense, comparison.sparse, comparison.tail):
        assert result.n_tokens == N_BYTES + len(b"k17?")
        assert len(result.seconds) == len(document.needles)
        assert min(result.seconds) > 0
        assert [len(a) for a in result.answers] == [4] * len(document.needles)


def test_bytes_are_those_of_the_caches(comparison: Comparison) -> None:
    assert comparison.dense.stats.score_bytes == 0
    assert comparison.sparse.stats.score_bytes == comparison.tail.stats.score_bytes > 0
    # 4 layers, K and V, 2 KV heads of 64 F16 values; llama.cpp rounds the number of cells up to 256.
    for result in (comparison.dense, comparison.sparse, comparison.tail):
        assert result.stats.kv_bytes % (4 * 2 * 2 * 64 * 2) == 0
        assert 0 <= result.stats.kv_bytes // (4 * 2 * 2 * 64 * 2) - (N_BYTES + ROOM) < 256


def test_keys_this_near_are_found(comparison: Comparison, document: Document) -> None:
    """Lookups find what no head keeps. The first digit of a value is seen at the end of its question."""
    for result in (comparison.dense, comparison.tail, comparison.sparse):
        assert sum(a == n.answer for a, n in zip(result.answers, document.needles, strict=True)) >= 4
        assert (result.stats.tail_runs > 0) == (result is comparison.tail)
    assert comparison.dense.looked_up == comparison.tail.looked_up == []
    for needle, looked_up in zip(document.needles, comparison.sparse.looked_up, strict=True):
        in_chunk_before = needle.value_positions.stop <= 2 * CHUNK_SIZE - H2O.local_window
        assert (needle.value_positions[0] in looked_up) == in_chunk_before


def test_document_without_needles_is_measured_once() -> None:
    result = compare(demo_model_path(), build_document(600), 1, lambda *call: None)
    for each in (result.dense, result.sparse, result.tail):
        assert each.n_tokens == 600
        assert len(each.seconds) == 1
        assert each.answers == []


def test_report_is_of_the_prompt_without_its_answer(comparison: Comparison, document: Document) -> None:
    report = comparison.report
    assert report.n_tokens == N_BYTES + 4
    assert "".join(p.text for p in report.pieces) == document.text.decode() + "k91?"
    assert report.memory_end == 2 * CHUNK_SIZE
    assert report.local == range(2 * CHUNK_SIZE - H2O.local_window, 2 * CHUNK_SIZE)
    assert [(h.layer, h.head) for h in report.heads] == [(layer, head) for layer in range(4) for head in range(2)]
    for head in report.heads:
        assert len(head.heavy) == H2O.heavy_budget
        assert np.all(np.diff(head.scores) <= 0)
        assert head.heavy.max() < report.local.start
    assert report.history is not None
    assert report.history.n_sets == 2
    assert sorted(report.heads[3].heavy) == report.history.heavy[-1, 3].tolist()


def test_progress_ends_at_the_total(comparison: Comparison, progress_calls: list[tuple[str, int, int]]) -> None:
    n_tokens = N_BYTES + 4
    for variant in (*DENSE, SPARSE, TAIL):
        calls = [(n_done, n_total) for name, n_done, n_total in progress_calls if name == variant.name]
        is_kept = variant in (comparison.dense.variant, SPARSE, TAIL)
        assert calls == sorted(calls)
        assert (n_tokens, n_tokens) in calls
        assert calls[-1] == ((5 * n_tokens, 5 * n_tokens) if is_kept else (n_tokens, n_tokens))


def _report(heavy: list[list[int]]) -> MemoryReport:
    heads = [HeadMemory(0, i, np.array(p, np.int32), np.ones(len(p), np.float32)) for i, p in enumerate(heavy)]
    return MemoryReport("", (), 40, 8, 12, 32, range(2), range(28, 32), tuple(heads))


def test_heads_keeping_a_position() -> None:
    report = _report([[10, 11, 12, 13], [10, 11, 12], [], [13, 12, 11, 10, 9]])
    assert [report.n_heads_keeping(p) for p in (9, 10, 13, 14)] == [1, 3, 2, 0]
    assert [report.n_heads_keeping(p) for p in (1, 2, 27, 28, 31, 32)] == [4, 0, 0, 4, 4, 0]


def _printed(*tables: object) -> str:
    console = Console(width=200, file=io.StringIO())
    with console.capture() as capture:
        console.print(*tables)
    return capture.get()


def _comparison(dense_seconds: float, sparse_seconds: float, answers: list[bytes]) -> Comparison:
    heads = [[10, 11, 12, 13], []]
    dense = Result(DENSE[0], 40, KVStats(), [dense_seconds], [b"1234"] * 3)
    sparse = Result(SPARSE, 40, KVStats(score_bytes=700, memory_bytes=300), [sparse_seconds], answers)
    sparse.looked_up = [frozenset({11, 12, 30}), frozenset({3, 22, 23}), frozenset()]
    tail = Result(TAIL, 40, KVStats(), [2 * sparse_seconds], [b"1234", b"5678", b"9999"])
    return Comparison(dense, sparse, tail, _report(heads))


NEEDLES = Document(b"." * 40, (Needle(11, 1234, 6), Needle(22, 5678, 18), Needle(33, 9999, 32)))


def test_cost_table_admits_that_h2o_is_slower() -> None:
    printed = _printed(cost_table(_comparison(6.0, 2.0, [])))
    assert re.search(r"against dense .* 3\.00x faster .* 1\.50x faster", printed)
    assert re.search(r"tokens/s .* 7 .* 20 .* 10 ", printed)
    assert re.search(r"scores, memory sets .* - .* 1\.0 kB .* 0 bytes", printed)
    printed = _printed(cost_table(_comparison(2.0, 4.0, [])))
    assert re.search(r"against dense .* 2\.00x slower .* 4\.00x slower", printed)


def test_answer_table_marks_wrong_answers() -> None:
    lines = _printed(answer_table(NEEDLES, _comparison(1, 1, [b"1234", b"56\n8", b"9999"]))).splitlines()
    k11, k22, k33 = (next(line for line in lines if f"k{key} " in line) for key in (11, 22, 33))
    assert k11.count("right") == 3
    assert "│ 1 1* 1* 1 " in k11
    assert k22.count("wrong") == 2
    assert "5678 right" in k22
    assert "56⏎8 wrong" in k22
    assert "│ 0* 0* 0 0 " in k22
    assert "1234 wrong" in k33
    assert "9999 right" in k33
    assert "last chunk" in k33


def test_html_facts_name_every_key() -> None:
    facts = dict(html_facts(NEEDLES, _comparison(1, 1, [b"1234", b"0000", b"9999"])))
    assert facts["k11"].startswith("1234 at position 6")
    assert facts["k22"].endswith(
        "heads that keep each digit, * looked up: 0* 0* 0 0; H2O: 0000 wrong; H2O, dense tail: 5678 right"
    )
    assert facts["Heavy hitters"] == "ranked by distant, schedule single_pass"
