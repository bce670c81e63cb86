"""The demo's document and the answers about it, with short settings."""

from __future__ import annotations

import importlib
import inspect
import io
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from h2o_llama import demo_model_path
from h2o_llama._cli.demo import DENSE, SPARSE, TAIL, Answers, answer_table, ask, html_facts
from h2o_llama._demo import document as document_module
from h2o_llama._demo.document import SECRETS, Document, Needle, build_document
from h2o_llama.inspect._report import HeadMemory, MemoryReport

DEPTHS = (0.0, 0.3, 0.55, 0.8, 0.97)
N_BYTES = 1100


@pytest.fixture(scope="module")
def document() -> Document:
    return build_document(N_BYTES, DEPTHS)


@pytest.fixture(scope="module")
def answers(document: Document) -> Answers:
    return ask(demo_model_path(), document, 1)


def source_of(module: str) -> bytes:
    path = inspect.getsourcefile(importlib.import_module(module))
    assert path is not None
    return Path(path).read_bytes()


def test_document_has_the_length_asked_for() -> None:
    for n_bytes in (600, 200_001):  # in the longer one the source begins again
        text = build_document(n_bytes, DEPTHS).text
        assert (len(text), text.isascii(), text[-1:]) == (n_bytes, True, b"\n")


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
        assert bytes(document.text[p] for p in needle.line_positions) + b"\n" == needle.definition
        assert document.text.count(b"k%d=" % needle.key) == 1


def test_bad_documents() -> None:
    with pytest.raises(ValueError, match="at most 5 keys"):
        build_document(N_BYTES, [0.1] * 6)
    with pytest.raises(ValueError, match="too short"):
        build_document(120, [0.95, 0.96, 0.97])
    with pytest.raises(OSError, match="no source of its module 'sys'"):
        build_document(N_BYTES, DEPTHS, module="sys")


def test_keys_this_near_are_found(answers: Answers, document: Document) -> None:
    """Lookups find what no head keeps. The first digit of a value is seen at the end of its question."""
    assert list(answers.said) == [DENSE, SPARSE, TAIL]
    for said in answers.said.values():
        assert sum(a == n.answer for a, n in zip(said, document.needles, strict=True)) >= 4


def _report(heavy: list[list[int]]) -> MemoryReport:
    heads = [HeadMemory(0, i, np.array(p, np.int32), np.ones(len(p), np.float32)) for i, p in enumerate(heavy)]
    return MemoryReport("", (), 40, 8, 12, 32, range(2), range(28, 32), tuple(heads))


NEEDLES = Document(b"." * 40, (Needle(11, 1234, 6), Needle(22, 5678, 18), Needle(33, 9999, 32)))
ANSWERS = Answers(
    _report([[10, 11, 12, 13], []]),
    {
        DENSE: [b"1234"] * 3,
        SPARSE: [b"1234", b"56\n8", b"9999"],
        TAIL: [b"1234", b"5678", b"9999"],
    },
)


def test_answer_table_marks_wrong_answers() -> None:
    console = Console(width=200, file=io.StringIO())
    with console.capture() as capture:
        console.print(answer_table(NEEDLES, ANSWERS))
    lines = capture.get().splitlines()
    k11, k22, k33 = (next(line for line in lines if f"k{key} " in line) for key in (11, 22, 33))
    assert k11.count("right") == 3
    assert k22.count("wrong") == 2
    assert "5678 right" in k22
    assert "56⏎8 wrong" in k22
    assert "1234 wrong" in k33
    assert "9999 right" in k33


def test_html_facts_name_every_key() -> None:
    facts = dict(html_facts(NEEDLES, ANSWERS))
    assert facts["k11"].startswith("1234 at position 6")
    assert facts["k22"].endswith("; H2O: 56⏎8 wrong; H2O, dense tail: 5678 right")
    assert facts["Heavy hitters"] == "ranked by distant, schedule single_pass"
