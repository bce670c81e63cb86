"""vendor/fetch.py on small made-up distributions: its folders, and the message and leftovers of each failure."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

import fetch
from fake_upstream import FILES, KEPT, PATCH, make_layout, sha256, use_index, write_archive

REPOSITORY = Path(__file__).parent.parent


@pytest.fixture
def layout(tmp_path: Path) -> fetch.Layout:
    return make_layout(tmp_path / "checkout")


def tree_of(layout: fetch.Layout) -> dict[str, str]:
    files = (path for path in layout.tree.rglob("*") if path.is_file() and path.name != fetch.STAMP)
    return {path.relative_to(layout.tree).as_posix(): path.read_text() for path in files}


def assert_no_leftovers(layout: fetch.Layout) -> None:
    known = {layout.requirements, layout.cache, layout.tree}
    assert set((layout.root / "vendor").iterdir()) <= known
    assert [path.name for path in layout.cache.iterdir() if path.suffix != ".gz"] == []


def assert_is_whole(layout: fetch.Layout) -> None:
    assert tree_of(layout) == {name: FILES[name] for name in KEPT}
    assert_no_leftovers(layout)


def assert_nothing_is_left(layout: fetch.Layout) -> None:
    assert not layout.tree.exists()
    assert_no_leftovers(layout)


def test_applies_patches_in_name_order(layout: fetch.Layout) -> None:
    (layout.root / "patches" / "0002-b.patch").write_text(
        "Second.\n\n--- a/src/llama.cpp\n+++ b/src/llama.cpp\n@@ -11 +11 @@\n-line 10.5\n+line ten and a half\n"
    )
    (layout.root / "patches" / "0001-a.patch").write_text(PATCH)
    fetch.fill(layout)
    expected = FILES["src/llama.cpp"].replace("line 10\n", "line 10\nline ten and a half\n")
    assert tree_of(layout)["src/llama.cpp"] == expected


def test_changed_patch_touches_only_its_file(layout: fetch.Layout) -> None:
    fetch.fill(layout)
    for path in layout.tree.rglob("*"):
        os.utime(path, (1, 1))
    (layout.root / "patches" / "0001-a.patch").write_text(PATCH)
    fetch.fill(layout)
    assert (layout.tree / "src/unicode.cpp").stat().st_mtime == 1
    assert (layout.tree / "src/llama.cpp").stat().st_mtime > 1
    for path in layout.tree.rglob("*"):
        os.utime(path, (1, 1))
    (layout.root / "patches" / "0001-a.patch").unlink()
    fetch.fill(layout)
    assert (layout.tree / "src/llama.cpp").stat().st_mtime > 1, "an unpatched file must be compiled again too"


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
def test_patch_fits_exactly_or_stops(layout: fetch.Layout, old: str, new: str, message: str) -> None:
    fetch.fill(layout)
    before = tree_of(layout)
    (layout.root / "patches" / "0001-a.patch").write_text(PATCH.replace(old, new))
    with pytest.raises(fetch.VendorError, match=message) as error:
        fetch.fill(layout)
    assert "0001-a.patch" in str(error.value)
    assert "\n" not in str(error.value)
    assert tree_of(layout) == before
    assert_no_leftovers(layout)


def test_editable_tree_is_left_alone(layout: fetch.Layout) -> None:
    fetch.fill(layout)
    (layout.tree / ".git").mkdir()
    (layout.root / "patches" / "0001-a.patch").write_text(PATCH)
    before = tree_of(layout)
    assert fetch.fill(layout) == "vendor/llama.cpp is an editable tree: used as it is"
    assert tree_of(layout) == before


def test_local_source(layout: fetch.Layout, tmp_path: Path) -> None:
    source = tmp_path / "llama.cpp"
    for name, text in FILES.items():
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_text(text)
    for path in layout.cache.iterdir():
        path.unlink()
    (source / "src/unicode.cpp").write_text("int changed;\n")
    with pytest.raises(fetch.VendorError, match="is not an unchanged llama.cpp 000000000"):
        fetch.fill(layout, source)
    with pytest.raises(fetch.VendorError, match="is not a llama.cpp source folder"):
        fetch.fill(layout, tmp_path)
    assert_nothing_is_left(layout)
    (source / "src/unicode.cpp").write_text(FILES["src/unicode.cpp"])
    fetch.fill(layout, source)
    assert_is_whole(layout)


@pytest.fixture
def index(layout: fetch.Layout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """pip's only index is this folder, which has the source distribution; the cache is empty."""
    folder = tmp_path / "index"
    use_index(folder, monkeypatch)
    for path in layout.cache.iterdir():
        path.rename(folder / path.name)
    return folder


@pytest.mark.slow
def test_downloads_once_and_again_what_is_broken_in_the_cache(layout: fetch.Layout, index: Path) -> None:
    cached = layout.cache / "some_package-1.0.tar.gz"
    cached.write_bytes(b"half a download")
    fetch.fill(layout)
    assert_is_whole(layout)
    assert sha256(cached.read_bytes()) == fetch.read_pin(layout.requirements).release.sha256
    (index / cached.name).unlink()
    (layout.root / "patches" / "0001-a.patch").write_text(PATCH)
    fetch.fill(layout)
    assert "line 10.5" in tree_of(layout)["src/llama.cpp"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda sdist: sdist.write_bytes(sdist.read_bytes()[:-1]), "does not have the sha256 in .*requirements"),
        (Path.unlink, "cannot be downloaded: No matching distribution"),
    ],
)
def test_an_index_without_it(damage: Callable[[Path], object], message: str, layout: fetch.Layout, index: Path) -> None:
    (sdist,) = index.iterdir()
    damage(sdist)
    with pytest.raises(fetch.VendorError, match=r"some-package 1\.0 " + message):
        fetch.fill(layout)
    assert_nothing_is_left(layout)


# --- zstd and pdf.js

CMAP = f"{fetch.CMAPS}/A.bcmap"
OTHERS = {
    "codecs": ("1.0.tar.gz", [*fetch.CODECS, "setup.py"], {**fetch.CODECS}),
    "pdfjs": ("1.0-py3-none-any.whl", [*fetch.PDFJS, CMAP, "viewer.py"], {**fetch.PDFJS, CMAP: "cmaps/A.bcmap"}),
}
"""The ending of the distribution's name; its files; the extracted files and their new names."""


@pytest.fixture(params=OTHERS)
def other(request: pytest.FixtureRequest, tmp_path: Path) -> Other:
    made = Other(request.param, fetch.Layout(tmp_path))
    made.layout.cache.mkdir(parents=True)
    made.target.parent.mkdir(parents=True, exist_ok=True)
    made.write(OTHERS[made.name][1])
    return made


class Other:
    """A checkout that has the distribution of zstd or pdf.js in its cache."""

    def __init__(self, name: str, layout: fetch.Layout) -> None:
        self.name, self.layout = name, layout
        self.distribution = layout.cache / f"some_package-{OTHERS[name][0]}"
        self.target: Path = getattr(layout, name)
        self.pin = {"codecs": layout.requirements_zstd, "pdfjs": layout.requirements_pdfjs}[name]

    def fill(self) -> str:
        return {"codecs": fetch.fill_codecs, "pdfjs": fetch.fill_pdfjs}[self.name](self.layout)

    def write(self, files: Iterable[str]) -> None:
        """A distribution with these files, and its pin."""
        if self.name == "codecs":
            write_archive(self.distribution, "some_package-1.0", {file: file for file in files})
        else:
            with zipfile.ZipFile(self.distribution, "w") as archive:
                for file in files:
                    archive.writestr(file, file)
        self.pin.write_text(f"some-package==1.0 --hash=sha256:{sha256(self.distribution.read_bytes())}\n")

    def found(self) -> dict[str, str]:
        files = (path for path in self.target.rglob("*") if path.is_file() and path.name != fetch.STAMP)
        return {path.relative_to(self.target).as_posix(): path.read_text() for path in files}


def test_takes_out_what_is_used_once(other: Other) -> None:
    assert other.fill().endswith(f"/{other.name} filled")
    assert other.found() == {name: path for path, name in OTHERS[other.name][2].items()}
    other.distribution.unlink()
    assert other.fill().endswith(f"/{other.name} is current")


def test_a_new_pin_fills_it_again_or_changes_nothing(other: Other) -> None:
    other.fill()
    files, taken = OTHERS[other.name][1:]
    before = other.found()
    for missing in (path for path in taken if path != CMAP):
        other.write(file for file in files if file != missing)
        with pytest.raises(fetch.VendorError, match=f"{other.distribution.name} has no file .*{missing}"):
            other.fill()
    other.pin.write_text("some-package==1.0\n")
    with pytest.raises(fetch.VendorError, match="must hold name==version --hash"):
        other.fill()
    assert other.found() == before
    assert not list(other.layout.vendor.glob(".new-*"))
    other.write([*files, "more"])
    assert other.fill().endswith(f"/{other.name} filled")
