"""Fill the page's folder pdfjs: the part of pdf.js that gets the text out of PDF files.

CMake runs this when it configures. It is taken out of a Python package's wheel, pinned in vendor/requirements-pdfjs.txt
and downloaded once, by pip, into vendor/.cache. The folder is built elsewhere and renamed into place.
"""

from __future__ import annotations

import hashlib
import sys
import tempfile
import zipfile
from pathlib import Path, PurePosixPath

from fetch import ROOT, STAMP, VendorError, cached_wheel, read_release, replace_tree

PIN = "requirements-pdfjs.txt"

FILES = {
    "pdfjs_viewer/pdfjs/LICENSE": "LICENSE",
    "pdfjs_viewer/pdfjs/build/pdf.mjs": "pdf.mjs",
    "pdfjs_viewer/pdfjs/build/pdf.worker.mjs": "pdf.worker.mjs",
}
"""Where a file lies in the wheel, and its name in the folder."""

CMAPS = "pdfjs_viewer/pdfjs/web/cmaps"
"""Tables from the codes of Chinese, Japanese and Korean fonts to characters, in a folder of their own."""


def fill(vendor: Path, target: Path) -> str:
    """Make the folder `target` current and say in one line what was done.

    Raises VendorError, and changes nothing then.
    """
    stamp = "".join(
        f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in (vendor / PIN, Path(__file__))
    )
    stamp_file = target / STAMP
    if stamp_file.is_file() and stamp_file.read_text(encoding="utf-8") == stamp:
        return f"{target.name} is current"
    with tempfile.TemporaryDirectory(prefix=".new-", dir=vendor) as folder:
        new = Path(folder) / target.name
        new.mkdir()
        _extract(cached_wheel(vendor / ".cache", vendor / PIN, read_release(vendor / PIN)), new)
        (new / STAMP).write_text(stamp, encoding="utf-8")
        replace_tree(new, target)
    return f"{target.name} filled"


def _extract(wheel: Path, target: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        cmaps = [name for name in archive.namelist() if PurePosixPath(name).parent == PurePosixPath(CMAPS)]
        names = FILES | {name: f"cmaps/{PurePosixPath(name).name}" for name in cmaps}
        (target / "cmaps").mkdir()
        for name, new in names.items():
            try:
                data = archive.read(name)
            except KeyError:
                raise VendorError(f"{wheel.name} has no file {name}") from None
            (target / new).write_bytes(data)


def main() -> None:
    try:
        print(fill(ROOT / "vendor", ROOT / "python" / "h2o_llama" / "page" / "app" / "pdfjs"))
    except VendorError as error:
        sys.exit(f"h2o-llama: {error}")


if __name__ == "__main__":
    main()
