"""Fill vendor/codecs: the sources of zstd, LZ4 and xxHash that src/h2o/store/codec is built with.

CMake runs this when it configures. Each is taken out of a Python package's source distribution, pinned in
vendor/requirements-*.txt and downloaded once, by pip, into vendor/.cache. H2O_LLAMA_CODECS names a folder with these
distributions to use instead of the package index. The folder is built beside the old one and renamed into place.
"""

from __future__ import annotations

import hashlib
import os
import re
import sys
import tarfile
import tempfile
from pathlib import Path

from fetch import ROOT, STAMP, Release, VendorError, cached_sdist, replace_tree

# pin -> where a file lies in the distribution -> its name in vendor/codecs
FILES = {
    "requirements-zstd.txt": {
        "zstd/zstd.c": "zstd.c",
        "zstd/zstd.h": "zstd.h",
        "zstd/zstd_errors.h": "zstd_errors.h",
        "zstd/LICENSE": "LICENSE-zstd",
    },
    "requirements-lz4.txt": {
        "lz4libs/lz4.c": "lz4.c",
        "lz4libs/lz4.h": "lz4.h",
        "lz4libs/xxhash.c": "xxhash.c",
        "lz4libs/xxhash.h": "xxhash.h",
    },
}

# The licences of LZ4 and xxHash are the first comment of each header.
LICENSES = {"lz4.h": "LICENSE-lz4", "xxhash.h": "LICENSE-xxhash"}


def fill(vendor: Path, source: Path | None = None) -> str:
    """Make vendor/codecs current and say in one line what was done.

    `source` is a folder with the source distributions. Raises VendorError, and changes nothing then.
    """
    target = vendor / "codecs"
    stamp = "".join(
        f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n"
        for path in (*(vendor / name for name in FILES), Path(__file__))
    )
    stamp_file = target / STAMP
    if stamp_file.is_file() and stamp_file.read_text(encoding="utf-8") == stamp:
        return "vendor/codecs is current"
    with tempfile.TemporaryDirectory(prefix=".new-", dir=vendor) as folder:
        new = Path(folder) / "codecs"
        new.mkdir()
        for requirements, names in FILES.items():
            release = read_release(vendor / requirements)
            _extract(_sdist(vendor, vendor / requirements, release, source), release.folder, names, new)
        for header, name in LICENSES.items():
            comment = (new / header).read_text(encoding="utf-8").partition("*/")[0]
            (new / name).write_text(comment.replace("/*", "", 1) + "\n", encoding="utf-8")
        (new / STAMP).write_text(stamp, encoding="utf-8")
        replace_tree(new, target)
    return "vendor/codecs filled"


def read_release(requirements: Path) -> Release:
    """Parse a pin; VendorError when a part is missing."""
    text = requirements.read_text(encoding="utf-8")
    found = re.search(r"^([\w-]+)==(\S+) --hash=sha256:([0-9a-f]{64})$", text, re.MULTILINE)
    if not found:
        raise VendorError(f"{requirements} must hold name==version --hash=sha256:…")
    return Release(found[1], found[2], found[3])


def _sdist(vendor: Path, requirements: Path, release: Release, source: Path | None) -> Path:
    if source is None:
        return cached_sdist(vendor / ".cache", requirements, release)
    path = source / release.sdist
    if not path.is_file() or hashlib.sha256(path.read_bytes()).hexdigest() != release.sha256:
        raise VendorError(f"H2O_LLAMA_CODECS={source} has no {release.sdist} with the sha256 in {requirements}")
    return path


def _extract(sdist: Path, prefix: str, names: dict[str, str], target: Path) -> None:
    with tarfile.open(sdist) as archive:
        for path, name in names.items():
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
