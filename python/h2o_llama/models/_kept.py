"""Models and texts that are on this machine."""

import re
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

from h2o_llama.models import _named
from h2o_llama.models._named import MODELS, TEXTS

_TYPE = re.compile(r"(?:^|[-._/])((?:UD-)?(?:I?Q\d\w*|BF16|F16|F32|MXFP4\w*))(?=[-._/])", re.IGNORECASE)


class KeptFile(NamedTuple):
    """A model with all its parts, or a text. Paths may be links into the hub's cache."""

    name: str
    type: str
    n_bytes: int
    used: datetime
    paths: tuple[Path, ...]

    def remove(self) -> None:
        """Remove files and the links to them."""
        for path in self.paths:
            path.resolve().unlink(missing_ok=True)
            path.unlink(missing_ok=True)


def kept_files() -> list[KeptFile]:
    """GGUF files in the hub's cache, also of other programs, and files from elsewhere."""
    from huggingface_hub import scan_cache_dir
    from huggingface_hub.errors import CacheNotFound

    models: dict[str, list[Path]] = {}
    try:
        for repo in scan_cache_dir().repos:
            for revision in repo.revisions:
                for file in revision.files:
                    if file.file_name.lower().endswith(".gguf"):
                        which = "mmproj" if "mmproj" in file.file_name.lower() else _type(file.file_path.name)
                        models.setdefault(f"{repo.repo_id}:{which}", []).append(file.file_path)
    except CacheNotFound:
        pass
    for name, named in (MODELS | TEXTS).items():
        if (packaged := named.packaged) is not None and packaged.path(name).is_file():
            models[name] = [packaged.path(name)]
    for path in _named.cache_folder().glob("*.gguf"):
        if [path] not in models.values():
            models[path.name] = [path]
    return [_kept(name, paths) for name, paths in models.items()]


def _type(file: str) -> str:
    found = _TYPE.search(file)
    return found[1].upper() if found else file


def _kept(name: str, paths: list[Path]) -> KeptFile:
    stats = [path.stat() for path in {path.resolve() for path in paths}]
    used = datetime.fromtimestamp(max(stat.st_atime for stat in stats))
    type = "text" if name in TEXTS else name.partition(":")[2] or _type(paths[0].name)
    return KeptFile(name, type, sum(stat.st_size for stat in stats), used, tuple(sorted(paths)))
