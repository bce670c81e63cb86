"""Repositories of the Hugging Face Hub: which file a name means, and fetching it."""

import hashlib
import os
import re
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from fnmatch import fnmatchcase
from glob import escape
from pathlib import Path
from urllib.parse import unquote, urlsplit

from h2o_llama._internal.terminal import echo
from h2o_llama.errors import DamagedFileError
from h2o_llama.models._named import MODELS

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


def similar(name: str | os.PathLike[str], names: Collection[str] = (*MODELS, "demo")) -> str:
    """What a name that is not a path may have meant, for the message about a missing file; or nothing."""
    text = os.fspath(name)
    if Path(text).suffix in (".gguf", ".txt"):
        return "; `h2o-llama pull` lists names" * text.endswith(".gguf")
    meant = get_close_matches(text.rpartition("/")[2].lower(), names, cutoff=0.5)
    return f"; similar names: {', '.join(meant)}" if meant else f"; known names: {', '.join(names)}"


def here(wanted: HubFile) -> Path | None:
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


def download_from_hub(wanted: HubFile, token: str | bool | None) -> Path:
    from huggingface_hub import HfApi, hf_hub_download, try_to_load_from_cache

    repository, revision = wanted.repository, wanted.revision
    with asking(wanted):
        info = HfApi(token=token).model_info(repository, revision=revision, timeout=_SECONDS, files_metadata=True)
        files = {file.rfilename: file for file in info.siblings or ()}
        parts = choose(wanted, files)
        projector = projector_of(repository, files, or_none=True)
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
def asking(wanted: HubFile) -> Iterator[None]:
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


def projector_of(repository: str, names: Iterable[str], or_none: bool = False) -> str:
    """The file that reads images, rather in F16."""
    found = [name for name in names if re.search(r"mmproj[^/]*\.gguf$", name.lower())]
    if not found and not or_none:
        raise FileNotFoundError(f"{repository} has no projector (mmproj*.gguf): it does not read images")
    return min(found, key=lambda name: (not re.search(r"(^|[-._])f16", name.lower()), len(name), name), default="")


def download(url: str, path: Path, file: str) -> None:
    """A file, unless it is there; what an interrupted download of the same content has left is continued."""
    from huggingface_hub import get_session
    from huggingface_hub.file_download import http_get

    if path.is_file():
        return
    plain = {"Accept-Encoding": "identity"}
    about = get_session().head(url, headers=plain, follow_redirects=True, timeout=_SECONDS)
    length, etag = (about.headers.get(name) if about.is_success else None for name in ("content-length", "etag"))
    size = int(length) if length else None
    known = hashlib.sha256(f"{size} {etag}".encode()).hexdigest()[:8]
    part = path.with_name(f".{path.name}.{known}.part")
    for left in path.parent.glob(f".{escape(path.name)}*.part"):
        if left != part or etag is None:  # of another content, or nobody knows
            left.unlink()
    with part.open("ab") as content:
        http_get(url, content, resume_size=content.tell(), expected_size=size, headers=plain, displayed_filename=file)
    part.replace(path)


def _endpoint() -> str:
    from huggingface_hub import constants

    return constants.ENDPOINT


def file_sha256(path: str | bytes | os.PathLike[str]) -> str:
    """Of a whole file, in hexadecimal."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()
