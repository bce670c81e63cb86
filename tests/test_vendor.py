"""vendor/fetch.py on small made-up distributions: its folders, and the message and leftovers of each failure."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

import fetch
from fake_upstream import FILES, KEPT, PATCH, make_layout, sha256, use_index


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
