"""A made-up checkout of this project whose pinned upstream is a handful of small files."""

from __future__ import annotations

import hashlib
import io
import tarfile
from collections.abc import Mapping
from pathlib import Path

import pytest

import fetch

FILES = {
    "CMakeLists.txt": "project(llama.cpp)\n",
    "src/llama.cpp": "".join(f"line {i}\n" for i in range(1, 21)),
    "src/unicode.cpp": "int unicode;\n",
    "models/big.gguf": "not built",
    "docs/build.md": "not built",
    "tools/ui/src/app.ts": "not built",
}
KEPT = {"CMakeLists.txt", "src/llama.cpp", "src/unicode.cpp"}
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

PYPROJECT = '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
BACKEND = """
import os
def prepare_metadata_for_build_wheel(folder, config_settings=None):
    os.mkdir(f"{folder}/some_package-1.0.dist-info")
    with open(f"{folder}/some_package-1.0.dist-info/METADATA", "w") as file:
        file.write("Metadata-Version: 2.1\\nName: some-package\\nVersion: 1.0\\n")
    return "some_package-1.0.dist-info"
"""


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def write_archive(path: Path, folder: str, files: Mapping[str, str]) -> None:
    """A source distribution with these files in a folder."""
    with tarfile.open(path, "w:gz") as archive:
        for name, text in files.items():
            member = tarfile.TarInfo(f"{folder}/{name}")
            member.size = len(text)
            archive.addfile(member, io.BytesIO(text.encode()))


def write_pin(layout: fetch.Layout, sdist_sha256: str, tree_sha256: str) -> None:
    layout.requirements.write_text(
        f"# commit: ggml-org/llama.cpp {'0' * 40}\n# tree-sha256: {tree_sha256}\n"
        f"some-package==1.0 --hash=sha256:{sdist_sha256}\n"
    )


def make_sdist(path: Path) -> str:
    """Write a source distribution with FILES, good enough for pip, and return its sha256."""
    files = {f"vendor/llama.cpp/{name}": text for name, text in FILES.items()}
    write_archive(path, "some_package-1.0", {**files, "pyproject.toml": PYPROJECT, "backend.py": BACKEND})
    return sha256(path.read_bytes())


def use_index(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make a new folder pip's only index."""
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))


def make_layout(root: Path) -> fetch.Layout:
    """A checkout in `root`, without patches, whose download is in the cache already."""
    layout = fetch.Layout(root)
    layout.cache.mkdir(parents=True)
    (root / "patches").mkdir()
    digest = make_sdist(layout.cache / "some_package-1.0.tar.gz")
    lines = sorted(f"{name} {sha256(FILES[name].encode())}\n" for name in KEPT)
    write_pin(layout, digest, sha256("".join(lines).encode()))
    return layout
