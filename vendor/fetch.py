"""Fill vendor/llama.cpp: the pinned llama.cpp source with patches/ applied.

CMake runs this when it configures. The pin is vendor/requirements.txt. The source distribution is downloaded once, by
pip, into vendor/.cache; H2O_LLAMA_SOURCE names a local checkout of the same commit to use instead. The new tree is
built beside the old one and renamed into place, so it is whole or not there. A tree under git
(`tools/patches.py edit`) belongs to whoever edits it and is left alone.
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
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
STAMP = ".h2o-stamp"

# What CMake reads or compiles. Models, docs, tests, the web UI and backends that need another vendor's SDK stay behind.
_KEEP = re.compile(
    r"""CMakeLists\.txt | LICENSE | scripts/ui-assets\.cmake | tests/test-(backend-ops | llama-archs)\.cpp
      | (cmake | common | include | licenses | src | vendor) / .+
      | ggml/CMakeLists\.txt | ggml/(cmake | include)/.+
      | ggml/src/([^/]+ | ggml-(blas | cpu | cuda | hip | metal | musa | rpc | vulkan)/.+)
      | tools/CMakeLists\.txt | tools/ui/(CMakeLists\.txt | [^/]+\.in)
      | tools/(?!ui/)[^/]+/(.+/)?[^/]+\.(cpp | h | hpp | txt)""",
    re.VERBOSE,
)


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
    def requirements(self) -> Path:
        return self.root / "vendor" / "requirements.txt"

    @property
    def cache(self) -> Path:
        return self.root / "vendor" / ".cache"

    @property
    def tree(self) -> Path:
        return self.root / "vendor" / "llama.cpp"

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

    `source` is a folder to take instead of the download. Raises VendorError, and changes nothing then.
    """
    if (layout.tree / ".git").exists():
        return "vendor/llama.cpp is an editable tree: used as it is"
    stamp = _stamp(layout)
    stamp_file = layout.tree / STAMP
    if stamp_file.is_file() and stamp_file.read_text(encoding="utf-8") == stamp:
        return "vendor/llama.cpp is current"
    with tempfile.TemporaryDirectory(prefix=".new-", dir=layout.tree.parent) as folder:
        new = Path(folder) / "llama.cpp"
        extract_pristine(layout, new, source)
        apply_patches(layout.patches(), new)
        (new / STAMP).write_text(stamp, encoding="utf-8")
        keep_times(layout.tree, new)
        replace_tree(new, layout.tree)
    return f"vendor/llama.cpp filled, {len(layout.patches())} patches applied"


def extract_pristine(layout: Layout, target: Path, source: Path | None = None) -> None:
    """Write the unpatched files to the new folder `target`, from `source` or the (cached) download."""
    pin = read_pin(layout.requirements)
    files = _read_folder(source) if source else _read_sdist(_llama_sdist(layout, pin), pin.prefix)
    digests = []
    for name, data in files:
        path = target / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
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


def _stamp(layout: Layout) -> str:
    inputs = [layout.requirements, *sorted(Path(__file__).parent.glob("*.py")), *layout.patches()]
    return "".join(f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in inputs)


def _read_sdist(sdist: Path, prefix: str) -> Iterator[tuple[str, bytes]]:
    with tarfile.open(sdist) as archive:
        for member in archive:
            name = member.name.removeprefix(prefix)
            if name != member.name and member.isfile() and _KEEP.fullmatch(name):
                file = archive.extractfile(member)
                assert file is not None  # isfile()
                yield name, file.read()


def _read_folder(folder: Path) -> Iterator[tuple[str, bytes]]:
    if not (folder / "CMakeLists.txt").is_file():
        raise VendorError(f"H2O_LLAMA_SOURCE={folder} is not a llama.cpp source folder")
    for path in folder.rglob("*"):
        name = path.relative_to(folder).as_posix()
        if _KEEP.fullmatch(name) and path.is_file():
            yield name, path.read_bytes()


def _llama_sdist(layout: Layout, pin: Pin) -> Path:
    return cached_sdist(layout.cache, layout.requirements, pin.release, ["--no-build-isolation"])


def cached_sdist(cache: Path, requirements: Path, release: Release, options: Iterable[str] = ()) -> Path:
    """The verified source distribution, downloaded unless the cache has it. `options` are pip's."""
    # pip also asks the package for its metadata. Without build isolation its build backend must be importable; with it,
    # pip installs that for a moment.
    options = [f"--no-binary={release.name}", *options]
    return _cached(cache / release.sdist, requirements, release, options, {"scikit_build_core": "scikit-build-core"})


def cached_wheel(cache: Path, requirements: Path, release: Release) -> Path:
    """The verified wheel, downloaded unless the cache has it."""
    return _cached(cache / release.wheel, requirements, release, [f"--only-binary={release.name}"], {})


def _cached(
    cached: Path, requirements: Path, release: Release, options: Iterable[str], needed: Mapping[str, str]
) -> Path:
    if cached.is_file() and hashlib.sha256(cached.read_bytes()).hexdigest() == release.sha256:
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
    source = os.environ.get("H2O_LLAMA_SOURCE")
    try:
        print(fill(Layout(ROOT), Path(source) if source else None))
    except VendorError as error:
        sys.exit(f"h2o-llama: {error}")


if __name__ == "__main__":
    main()
