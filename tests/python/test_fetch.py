"""vendor/fetch.py: llama.cpp's source for the build, from a package index or a folder."""

import hashlib
import io
import tarfile
from pathlib import Path

import pytest

import fetch

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


SOURCES = {
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
        index / "some_package-1.0.tar.gz", {f"thirdparty/llama.cpp/{name}": text for name, text in SOURCES.items()}
    )
    tree = "".join(sorted(f"{name} {sha256(SOURCES[name].encode())}\n" for name in KEPT))
    layout.requirements.write_text(
        f"# tag: ggml-org/llama.cpp b1\n# tree-sha256: {sha256(tree.encode())}\n"
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
    for name, text in SOURCES.items():
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_text(text + "int changed;\n" * (name == "src/unicode.cpp"))
    for folder, message in ((source, "is not an unchanged llama.cpp b1"), (tmp_path, "llama.cpp source folder")):
        with pytest.raises(fetch.VendorError, match=message):
            fetch.fill(layout, local=folder)
        assert tree_of(layout) == {}
    (source / "src/unicode.cpp").write_text(SOURCES["src/unicode.cpp"])
    fetch.fill(layout, local=source)
    (layout.tree / ".git").mkdir()  # such a tree is its owner's
    patch(layout, PATCH)
    assert fetch.fill(layout) == "vendor/llama.cpp is an editable tree: used as it is"
    assert tree_of(layout) == {name: SOURCES[name] for name in KEPT}


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
