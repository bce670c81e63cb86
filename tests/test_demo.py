"""The demo's document. What the command prints about it is in test_cli."""

from __future__ import annotations

import importlib
import inspect
from pathlib import Path

from h2o_llama._demo.document import MODULE, SECRETS, build_document

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
    path = inspect.getsourcefile(importlib.import_module(MODULE))
    assert path is not None
    assert Path(path).read_bytes().startswith(text[:-1])
