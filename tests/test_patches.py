"""tools/patches.py: editing the patched source as a git tree and writing the patches back."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

import fetch
import patches
from fake_upstream import FILES, PATCH, make_layout

SOURCE = "src/llama.cpp"


@pytest.fixture
def layout(tmp_path: Path) -> fetch.Layout:
    """A checkout with one patch and an editable tree."""
    made = make_layout(tmp_path / "checkout")
    (made.root / "patches" / "0001-a.patch").write_text(PATCH)
    patches.edit(made)
    return made


def replace(layout: fetch.Layout, old: str, new: str, name: str = SOURCE) -> None:
    path = layout.tree / name
    path.write_text(path.read_text().replace(old, new))


def read_patches(layout: fetch.Layout) -> dict[str, str]:
    return {path.name: path.read_text() for path in layout.patches()}


def subjects(layout: fetch.Layout) -> list[str]:
    command = ["git", "log", "--reverse", "--format=%s"]
    return subprocess.run(command, cwd=layout.tree, capture_output=True, text=True, check=True).stdout.splitlines()


def refresh(layout: fetch.Layout, into: str | None = None, purpose: str | None = None, *paths: str) -> str:
    return patches.refresh(layout, into, purpose, list(paths))


def test_edit_makes_one_commit_per_patch(layout: fetch.Layout) -> None:
    assert subjects(layout) == ["llama.cpp " + "0" * 40, "0001-a.patch"]
    assert (layout.tree / SOURCE).read_text() == FILES[SOURCE].replace("line 10\n", "line 10\nline 10.5\n")
    with pytest.raises(patches.PatchesError, match="is an editable tree already"):
        patches.edit(layout)


def test_edit_works_without_patches(tmp_path: Path) -> None:
    made = make_layout(tmp_path / "checkout")
    patches.edit(made)
    assert patches.check(made) == "0 patches apply exactly and are written the same again"


def test_refresh_writes_the_same_bytes(layout: fetch.Layout) -> None:
    assert refresh(layout) == "1 patches written"
    assert read_patches(layout) == {"0001-a.patch": PATCH}


def test_refresh_into_an_earlier_patch(layout: fetch.Layout) -> None:
    replace(layout, "int unicode;", "int second;", "src/unicode.cpp")
    refresh(layout, "0002-b.patch", "The second patch.")
    replace(layout, "line 10.5", "line ten and a half")
    refresh(layout, "0001-a.patch")
    assert subjects(layout)[1:] == ["0001-a.patch", "0002-b.patch"]
    written = read_patches(layout)
    assert written["0001-a.patch"] == PATCH.replace("line 10.5", "line ten and a half")
    assert written["0002-b.patch"] == (
        "The second patch.\n\n--- a/src/unicode.cpp\n+++ b/src/unicode.cpp\n@@ -1 +1 @@\n-int unicode;\n+int second;\n"
    )
    assert patches.check(layout) == "2 patches apply exactly and are written the same again"


@pytest.mark.parametrize("is_staged", [False, True])
def test_refresh_takes_only_the_files_that_are_named_or_staged(layout: fetch.Layout, is_staged: bool) -> None:
    replace(layout, "int unicode;", "int other;", "src/unicode.cpp")
    replace(layout, "line 10.5", "line x")
    if is_staged:
        subprocess.run(["git", "add", SOURCE], cwd=layout.tree, check=True)
    named = [] if is_staged else [SOURCE]
    assert refresh(layout, "0001-a.patch", None, *named) == "1 patches written; not in any patch yet: src/unicode.cpp"
    assert read_patches(layout) == {"0001-a.patch": PATCH.replace("line 10.5", "line x")}
    assert "int other;" in (layout.tree / "src/unicode.cpp").read_text()


def test_refresh_keeps_the_header_that_the_file_has(layout: fetch.Layout) -> None:
    path = layout.root / "patches" / "0001-a.patch"
    path.write_text(PATCH.replace("Says what it is for.", "A better reason."))
    refresh(layout)
    assert read_patches(layout) == {"0001-a.patch": PATCH.replace("Says what it is for.", "A better reason.")}


def test_refresh_removes_the_file_of_a_dropped_commit(layout: fetch.Layout) -> None:
    subprocess.run(["git", "reset", "--quiet", "--hard", "HEAD~1"], cwd=layout.tree, check=True)
    refresh(layout)
    assert read_patches(layout) == {}


def test_conflict_changes_nothing(layout: fetch.Layout) -> None:
    replace(layout, "line 10.5", "line by b")
    refresh(layout, "0002-b.patch", "Changes what the first one adds.")
    written = read_patches(layout)
    replace(layout, "line by b", "line by c")
    with pytest.raises(patches.PatchesError, match="a later patch changes the same lines"):
        refresh(layout, "0001-a.patch")
    assert subjects(layout)[1:] == ["0001-a.patch", "0002-b.patch"]
    assert "line by c" in (layout.tree / SOURCE).read_text()
    assert read_patches(layout) == written


@pytest.mark.parametrize(
    ("into", "purpose", "message"),
    [
        ("0001-a.patch", None, "there are no uncommitted changes"),
        ("0000-b.patch", "Too early.", "would not come after 0001-a.patch"),
        ("0002-b.patch", None, "say what the new patch is for"),
        ("b", "Badly named.", "b is not called NNNN-what.patch"),
    ],
)
def test_refresh_refuses(layout: fetch.Layout, into: str, purpose: str | None, message: str) -> None:
    if into != "0001-a.patch":
        replace(layout, "line 3\n", "line three\n")
    with pytest.raises(patches.PatchesError, match=message):
        refresh(layout, into, purpose)
    assert subjects(layout)[1:] == ["0001-a.patch"]
    assert read_patches(layout) == {"0001-a.patch": PATCH}


def test_refresh_needs_an_editable_tree(tmp_path: Path) -> None:
    made = make_layout(tmp_path / "checkout")
    fetch.fill(made)
    with pytest.raises(patches.PatchesError, match="there is no editable tree"):
        refresh(made)


def test_new_file_is_refused(layout: fetch.Layout) -> None:
    (layout.tree / "src" / "new.cpp").write_text("int x;\n")
    subprocess.run(["git", "add", "src/new.cpp"], cwd=layout.tree, check=True)
    with pytest.raises(patches.PatchesError, match="adds, removes, renames or changes the mode of a file"):
        refresh(layout, "0001-a.patch")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        pytest.param("line 8\n", "line 8x\n", "0001-a.patch does not apply: src/llama.cpp", id="does not apply"),
        pytest.param(" line 13\n", "", "is not what `tools/patches.py refresh` writes", id="context"),
        pytest.param("for.\n\n", "for.\n", "is not what `tools/patches.py refresh` writes", id="no empty line"),
        pytest.param("Says what it is for.\n\n", "", "does not say what it is for", id="no header"),
    ],
)
def test_check_finds(layout: fetch.Layout, old: str, new: str, message: str) -> None:
    assert patches.check(layout) == "1 patches apply exactly and are written the same again"
    text = PATCH.replace(old, new)
    if "line 13" in old:
        text = text.replace("@@ -8,6 +8,7 @@", "@@ -8,5 +8,6 @@")
    (layout.root / "patches" / "0001-a.patch").write_text(text)
    with pytest.raises((patches.PatchesError, fetch.VendorError), match=message):
        patches.check(layout)
