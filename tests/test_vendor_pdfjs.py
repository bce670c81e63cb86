"""vendor/fetch_pdfjs.py on a small made-up wheel."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from collections.abc import Iterable
from pathlib import Path

import pytest

import fetch
import fetch_pdfjs
from fake_upstream import sha256, use_index

REPOSITORY = Path(__file__).parent.parent
CMAP = f"{fetch_pdfjs.CMAPS}/A.bcmap"


@pytest.fixture
def vendor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """vendor/ of a checkout with the pin of a made-up wheel, which lies in pip's only index, ../index."""
    (vendor := tmp_path / "checkout" / "vendor").mkdir(parents=True)
    use_index(tmp_path / "checkout" / "index", monkeypatch)
    make_wheel(vendor, [*fetch_pdfjs.FILES, CMAP, "pdfjs_viewer/viewer.py"])
    return vendor


def make_wheel(vendor: Path, files: Iterable[str]) -> None:
    """Write a wheel with these files, good enough for pip, and its pin."""
    path = vendor.parent / "index" / "some_viewer-1.0-py3-none-any.whl"
    about = {
        "METADATA": "Metadata-Version: 2.1\nName: some-viewer\nVersion: 1.0\n",
        "WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        "RECORD": "",
    }
    with zipfile.ZipFile(path, "w") as archive:
        for name in files:
            archive.writestr(name, f"{name}\n")
        for name, text in about.items():
            archive.writestr(f"some_viewer-1.0.dist-info/{name}", text)
    (vendor / fetch_pdfjs.PIN).write_text(f"some-viewer==1.0 --hash=sha256:{sha256(path.read_bytes())}\n")


def test_takes_out_what_the_page_needs(vendor: Path, tmp_path: Path) -> None:
    target = tmp_path / "page" / "pdfjs"
    target.parent.mkdir()
    assert fetch_pdfjs.fill(vendor, target) == "pdfjs filled"
    found = {path.relative_to(target).as_posix() for path in target.rglob("*") if path.is_file()}
    assert found == {*fetch_pdfjs.FILES.values(), "cmaps/A.bcmap", fetch.STAMP}
    assert (target / "pdf.mjs").read_text() == "pdfjs_viewer/pdfjs/build/pdf.mjs\n"
    (vendor / ".cache" / "some_viewer-1.0-py3-none-any.whl").unlink()  # a second run needs no download
    assert fetch_pdfjs.fill(vendor, target) == "pdfjs is current"


def test_a_wheel_with_another_hash_or_without_a_file_changes_nothing(vendor: Path, tmp_path: Path) -> None:
    target = tmp_path / "pdfjs"
    fetch_pdfjs.fill(vendor, target)
    make_wheel(vendor, [CMAP])
    with pytest.raises(fetch.VendorError, match=r"some_viewer-1\.0-py3-none-any\.whl has no file pdfjs_viewer/pdfjs/"):
        fetch_pdfjs.fill(vendor, target)
    (vendor / fetch_pdfjs.PIN).write_text(f"some-viewer==1.0 --hash=sha256:{'0' * 64}\n")
    with pytest.raises(fetch.VendorError, match=r"some-viewer 1\.0 does not have the sha256 in .*-pdfjs\.txt"):
        fetch_pdfjs.fill(vendor, target)
    assert (target / "pdf.mjs").is_file()
    assert not list(vendor.glob(".new-*"))


def test_the_pin_is_that_of_the_files_that_are_here() -> None:
    """Of this checkout, which is built."""
    command = [sys.executable, REPOSITORY / "vendor" / "fetch_pdfjs.py"]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    assert result.stdout == "pdfjs is current\n"
