"""The demo's document and the answers about it, with short settings."""

from __future__ import annotations

import importlib
import inspect
from pathlib import Path

import pytest

from h2o_llama import demo_model_path
from h2o_llama._cli.demo import DENSE, SPARSE, TAIL, Answers, ask
from h2o_llama._demo import document as document_module
from h2o_llama._demo.document import SECRETS, Document, build_document

DEPTHS = (0.0, 0.3, 0.55, 0.8, 0.97)
N_BYTES = 1100


@pytest.fixture(scope="module")
def document() -> Document:
    return build_document(N_BYTES, DEPTHS)


@pytest.fixture(scope="module")
def answers(document: Document) -> Answers:
    return ask(demo_model_path(), document, 1)


def test_needles_are_where_they_say(document: Document) -> None:
    """The rest is the source of a module."""
    text = document.text
    assert [n.key for n in document.needles] == [key for key, _ in SECRETS]
    for needle, depth in zip(document.needles, DEPTHS, strict=True):
        assert document.text[needle.start :].startswith(b"k%d=%d;\n" % (needle.key, needle.value))
        assert needle.start == 0 or document.text[needle.start - 1 : needle.start] == b"\n"
        assert abs(needle.start - depth * N_BYTES) < 100
        assert bytes(document.text[p] for p in needle.line_positions) + b"\n" == needle.definition
        assert document.text.count(b"k%d=" % needle.key) == 1
        text = text.replace(needle.definition, b"", 1)
    assert len(text) == N_BYTES - 10 * len(SECRETS)
    path = inspect.getsourcefile(importlib.import_module(document_module.MODULE))
    assert path is not None
    assert Path(path).read_bytes().startswith(text[:-1])
    assert build_document(N_BYTES, DEPTHS) == document


def test_keys_this_near_are_found(answers: Answers, document: Document) -> None:
    """Lookups find what no head keeps. The first digit of a value is seen at the end of its question."""
    assert list(answers.said) == [DENSE, SPARSE, TAIL]
    for said in answers.said.values():
        assert sum(a == n.answer for a, n in zip(said, document.needles, strict=True)) >= 4
