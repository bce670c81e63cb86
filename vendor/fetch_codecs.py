"""Fill vendor/codecs: the source of zstd that src/h2o/store/codec is built with.

CMake runs this when it configures. It is taken out of a Python package's source distribution, pinned in
vendor/requirements-zstd.txt and downloaded once, by pip, into vendor/.cache. H2O_LLAMA_CODECS names a folder with this
distribution to use instead of the package index. The folder is built beside the old one and renamed into place.
"""

from __future__ import annotations

import hashlib
import os
import sys
import tarfile
import tempfile
from pathlib import Path

from fetch import ROOT, STAMP, Release, VendorError, cached_sdist, read_release, replace_tree

PIN = "requirements-zstd.txt"

# where a file lies in the distribution -> its name in vendor/codecs
FILES = {
    "zstd/zstd.c": "zstd.c",
    "zstd/zstd.h": "zstd.h",
    "zstd/zstd_errors.h": "zstd_errors.h",
    "zstd/zdict.h": "zdict.h",
    "zstd/LICENSE": "LICENSE-zstd",
}


def fill(vendor: Path, source: Path | None = None) -> str:
    """Make vendor/codecs current and say in one line what was done.

    `source` is a folder with the source distribution. Raises VendorError, and changes nothing then.
    """
    target = vendor / "codecs"
    stamp = "".join(
        f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in (vendor / PIN, Path(__file__))
    )
    stamp_file = target / STAMP
    if stamp_file.is_file() and stamp_file.read_text(encoding="utf-8") == stamp:
        return "vendor/codecs is current"
    with tempfile.TemporaryDirectory(prefix=".new-", dir=vendor) as folder:
        new = Path(folder) / "codecs"
        new.mkdir()
        release = read_release(vendor / PIN)
        _extract(_sdist(vendor, vendor / PIN, release, source), release.folder, new)
        (new / STAMP).write_text(stamp, encoding="utf-8")
        replace_tree(new, target)
    return "vendor/codecs filled"


def _sdist(vendor: Path, requirements: Path, release: Release, source: Path | None) -> Path:
    if source is None:
        return cached_sdist(vendor / ".cache", requirements, release)
    path = source / release.sdist
    if not path.is_file() or hashlib.sha256(path.read_bytes()).hexdigest() != release.sha256:
        raise VendorError(f"H2O_LLAMA_CODECS={source} has no {release.sdist} with the sha256 in {requirements}")
    return path


def _extract(sdist: Path, prefix: str, target: Path) -> None:
    with tarfile.open(sdist) as archive:
        for path, name in FILES.items():
            try:
                file = archive.extractfile(f"{prefix}/{path}")
            except KeyError:
                file = None
            if file is None:
                raise VendorError(f"{sdist.name} has no file {path}")
            (target / name).write_bytes(file.read())


def main() -> None:
    source = os.environ.get("H2O_LLAMA_CODECS")
    try:
        print(fill(ROOT / "vendor", Path(source) if source else None))
    except VendorError as error:
        sys.exit(f"h2o-llama: {error}")


if __name__ == "__main__":
    main()
