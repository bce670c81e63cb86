"""vendor/fetch_codecs.py on a small made-up source distribution."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

import fetch
import fetch_codecs
from fake_upstream import sha256, write_archive

REPOSITORY = Path(__file__).parent.parent


@pytest.fixture
def vendor(tmp_path: Path) -> Path:
    """vendor/ of a checkout with the pin of a made-up distribution, which lies in ../index."""
    vendor, index = tmp_path / "checkout" / "vendor", tmp_path / "checkout" / "index"
    vendor.mkdir(parents=True)
    index.mkdir()
    path = index / "zstd-1.0.tar.gz"
    write_archive(path, "zstd-1.0", {file: f"{file}\n" for file in [*fetch_codecs.FILES, "setup.py"]})
    (vendor / fetch_codecs.PIN).write_text(f"zstd==1.0 --hash=sha256:{sha256(path.read_bytes())}\n")
    return vendor


def index_of(vendor: Path) -> Path:
    return vendor.parent / "index"


def test_takes_out_what_is_built_and_the_licence(vendor: Path) -> None:
    assert fetch_codecs.fill(vendor, index_of(vendor)) == "vendor/codecs filled"
    found = {path.name for path in (vendor / "codecs").iterdir()}
    assert found == {*fetch_codecs.FILES.values(), fetch.STAMP}
    assert (vendor / "codecs" / "zstd.c").read_text() == "zstd/zstd.c\n"
    shutil.rmtree(index_of(vendor))
    assert fetch_codecs.fill(vendor, index_of(vendor)) == "vendor/codecs is current"


def test_a_new_pin_fills_it_again(vendor: Path) -> None:
    fetch_codecs.fill(vendor, index_of(vendor))
    path = vendor / "requirements-zstd.txt"
    path.write_text("# newer\n" + path.read_text())
    assert fetch_codecs.fill(vendor, index_of(vendor)) == "vendor/codecs filled"


def test_a_distribution_with_another_hash_or_without_a_file_changes_nothing(vendor: Path) -> None:
    fetch_codecs.fill(vendor, index_of(vendor))
    before = sorted(path.read_bytes() for path in (vendor / "codecs").iterdir())
    sdist, pin = index_of(vendor) / "zstd-1.0.tar.gz", vendor / "requirements-zstd.txt"
    with tarfile.open(sdist, "w:gz"):
        pass
    pin.write_text(pin.read_text() + "\n")
    with pytest.raises(
        fetch.VendorError, match=r"has no zstd-1\.0\.tar\.gz with the sha256 in .*requirements-zstd\.txt"
    ):
        fetch_codecs.fill(vendor, index_of(vendor))
    pin.write_text(f"zstd==1.0 --hash=sha256:{sha256(sdist.read_bytes())}\n")
    with pytest.raises(fetch.VendorError, match=r"zstd-1\.0\.tar\.gz has no file zstd/zstd\.c"):
        fetch_codecs.fill(vendor, index_of(vendor))
    pin.write_text("zstd==1.0\n")
    with pytest.raises(fetch.VendorError, match="must hold name==version --hash"):
        fetch_codecs.fill(vendor, index_of(vendor))
    assert sorted(path.read_bytes() for path in (vendor / "codecs").iterdir()) == before
    assert not list(vendor.glob(".new-*"))


def test_no_network(vendor: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.delenv("PIP_EXTRA_INDEX_URL", raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    with pytest.raises(fetch.VendorError, match=r"zstd 1\.0 cannot be downloaded"):
        fetch_codecs.fill(vendor)
    assert not (vendor / "codecs").exists()


def test_the_pin_is_that_of_the_sources_that_are_here() -> None:
    """Of this checkout, which is built."""
    command = [sys.executable, REPOSITORY / "vendor" / "fetch_codecs.py"]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    assert result.stdout == "vendor/codecs is current\n"
    text = (REPOSITORY / "vendor" / "codecs" / "LICENSE-zstd").read_text()
    assert "BSD License" in text
