"""Models from the Hugging Face hub."""

from __future__ import annotations

import re
from fnmatch import fnmatchcase
from importlib import import_module
from pathlib import Path
from typing import Any

from h2o_llama._internal.terminal import warn


def download_model(repo_id: str, filename: str, revision: str | None = None, token: str | bool | None = None) -> Path:
    """Download a model (or take it from the hub's cache) and return its first file; see `Llama.from_pretrained`."""
    try:
        hub = import_module("huggingface_hub")
    except ImportError as error:
        raise ImportError('[Llama.from_pretrained] needs huggingface_hub: pip install "h2o-llama[hub]"') from error
    options = {"revision": revision, "token": token}
    try:
        names = hub.list_repo_files(repo_id, **options)
    except Exception as error:  # of several libraries for HTTP
        if getattr(error, "response", None) is not None:  # the hub has answered: no such model, or not for everyone
            raise
        return _from_cache(hub, repo_id, filename, revision, error)
    parts = _choose(repo_id, filename, sorted(name for name in names if name.endswith(".gguf")))
    paths = [Path(hub.hf_hub_download(repo_id, part, **options)) for part in parts]
    return paths[0]


def _from_cache(hub: Any, repo_id: str, filename: str, revision: str | None, error: Exception) -> Path:
    """An earlier download, if all its parts are there; otherwise the network's error is raised again."""
    try:
        folder = Path(hub.snapshot_download(repo_id, revision=revision, local_files_only=True))
    except Exception:
        raise error from None
    names = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*.gguf"))
    parts = _choose(repo_id, filename, names)
    if not set(parts) <= set(names):
        raise error
    text = f"[Llama.from_pretrained] {error}: the earlier download of {repo_id} is used"
    warn(text)
    return folder / parts[0]


def _choose(repo_id: str, filename: str, files: list[str]) -> list[str]:
    """The file that matches, or all parts of the model that does."""
    matches = [name for name in files if fnmatchcase(name, filename)]
    # The first part of a model stands for all.
    models = [name for name in matches if not re.search(r"-(?!00001)\d{5}-of-\d{5}\.gguf$", name)]
    if len(models) != 1:
        found = "no file matches" if not models else f"{len(models)} files match"
        candidates = ", ".join(models or files) or "none"
        raise ValueError(
            f"[Llama.from_pretrained] {found} {filename!r} in {repo_id}, expected one; candidates: {candidates}"
        )
    stem, is_in_parts, n_parts = re.fullmatch(r"(.*?)(-00001-of-(\d{5}))?\.gguf", models[0]).groups()  # type: ignore[union-attr]
    return [f"{stem}-{i + 1:05}-of-{n_parts}.gguf" for i in range(int(n_parts))] if is_in_parts else models
