"""The demo's document and the answers about it, with short settings."""

from __future__ import annotations

import importlib
import inspect
from pathlib import Path

from h2o_llama import demo_model_path
from h2o_llama._cli.demo import DENSE, SPARSE, TAIL, ask
from h2o_llama._demo import document as document_module
from h2o_llama._demo.document import SECRETS, build_document

DEPTHS = (0.0, 0.3, 0.55, 0.8, 0.97)
N_BYTES = 1100


def test_needles_are_where_they_say() -> None:
    """The rest is the source of a module."""
    document, needles = build_document(N_BYTES, DEPTHS)
    text = document
    assert [n.key for n in needles] == [key for key, _ in SECRETS]
    for needle, depth in zip(needles, DEPTHS, strict=True):
        assert document[needle.start :].startswith(b"k%d=%d;\n" % (needle.key, needle.value))
        assert needle.start == 0 or document[needle.start - 1 : needle.start] == b"\n"
        assert abs(needle.start - depth * N_BYTES) < 100
        assert bytes(document[p] for p in needle.line_positions) + b"\n" == needle.definition
        assert document.count(b"k%d=" % needle.key) == 1
        text = text.replace(needle.definition, b"", 1)
    assert len(text) == N_BYTES - 10 * len(SECRETS)
    path = inspect.getsourcefile(importlib.import_module(document_module.MODULE))
    assert path is not None
    assert Path(path).read_bytes().startswith(text[:-1])


def test_keys_this_near_are_found() -> None:
    """Lookups find what no head keeps. The first digit of a value is seen at the end of its question."""
    text, needles = build_document(N_BYTES, DEPTHS)
    said, _ = ask(demo_model_path(), text, needles, 1)
    assert list(said) == [DENSE, SPARSE, TAIL]
    for answers in said.values():
        assert sum(answer == needle.answer for answer, needle in zip(answers, needles, strict=True)) >= 4
