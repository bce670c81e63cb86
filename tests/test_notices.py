"""The notices of the compiled sources are complete and part of the package."""

from __future__ import annotations

import re
import tarfile
from pathlib import Path

import pytest
from scikit_build_core import build

ROOT = Path(__file__).parent.parent
NOTICES = "THIRD_PARTY_NOTICES.txt"
HOLDER = re.compile(r"Copyright(?:Text:)?(?: Copyright)?(?: \([cC]\))?[\d –-]*(?: |$)([A-Z][\w ]+)")
VENDORED = [ROOT / "vendor" / name for name in ("codecs", "pcre2")]
VENDORED += [ROOT / "vendor" / "llama.cpp" / name for name in ("src", "common", "vendor")]
PDFJS = ROOT / "python" / "h2o_llama" / "page" / "app" / "pdfjs"
VENDORED += [ROOT / "vendor" / "llama.cpp" / "ggml" / "src" / name for name in ("ggml-cpu", "ggml-cuda", "ggml-rpc")]
FETCHED = ("vendor/llama.cpp", "vendor/codecs", "vendor/pcre2", PDFJS.relative_to(ROOT).as_posix(), ".venv", "build/")


def words(text: str) -> str:
    return " ".join(text.split())


def test_every_licence_file_is_in_them() -> None:
    notices = words((ROOT / NOTICES).read_text(encoding="utf-8"))
    files = [path for path in (ROOT / "vendor").glob("*/**/LICEN[SC]E*") if ".cache" not in path.parts]
    files += PDFJS.rglob("LICENSE")
    assert len(files) >= 10
    for path in files:
        for paragraph in path.read_text(encoding="utf-8").split("\n\n"):
            is_title = re.fullmatch(r"\W*(The )?(MIT|BSD|Unlicense)[ \w-]*(\(MIT\))?", words(paragraph))
            assert is_title or words(paragraph) in notices, f"{path}: {paragraph}"


def test_every_holder_is_in_them() -> None:
    notices = (ROOT / NOTICES).read_text(encoding="utf-8")
    holders = {}
    for path in (path for folder in VENDORED for path in folder.rglob("*.*")):
        if path.suffix in (".c", ".cpp", ".cu", ".h", ".hpp"):
            text = path.read_text(encoding="utf-8", errors="replace")
            for name in HOLDER.findall(text):
                holders[name.strip()] = path
    assert {"Yann Collet", "University of Cambridge", "Sean Barrett", "Niels Lohmann"} <= holders.keys()
    for holder, path in holders.items():
        assert holder in notices, path


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_they_are_in_wheel_and_source_distribution(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    info = tmp_path / build.prepare_metadata_for_build_wheel(str(tmp_path))
    for name in ("LICENSE", NOTICES):
        assert (info / "licenses" / name).read_bytes() == (ROOT / name).read_bytes()
    with tarfile.open(tmp_path / build.build_sdist(str(tmp_path))) as archive:
        names = {member.name.partition("/")[2] for member in archive}
    assert {"LICENSE", NOTICES, "src/h2o/llama-h2o.h", "vendor/fetch.py"} <= names
    assert not [name for name in names if name.startswith(FETCHED)]
