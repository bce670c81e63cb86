"""Models from the Hugging Face hub."""

from __future__ import annotations

import re
from fnmatch import fnmatchcase
from importlib import import_module
from pathlib import Path


def download_model(repo_id: str, filename: str) -> Path:
    """Download a model (or take it from the hub's cache) and return its first file; see `Llama.from_pretrained`."""
    try:
        huggingface_hub = import_module("huggingface_hub")
    except ImportError as error:
        raise ImportError('[Llama.from_pretrained] needs huggingface_hub: pip install "h2o-llama[hub]"') from error
    files = sorted(name for name in huggingface_hub.list_repo_files(repo_id) if name.endswith(".gguf"))
    matches = [name for name in files if fnmatchcase(name, filename)]
    # Of a model in parts, the first stands for all.
    models = [name for name in matches if not re.search(r"-(?!00001)\d{5}-of-\d{5}\.gguf$", name)]
    if len(models) != 1:
        found = "no file matches" if not models else f"{len(models)} files match"
        candidates = ", ".join(models or files) or "none"
        raise ValueError(
            f"[Llama.from_pretrained] {found} {filename!r} in {repo_id}, expected one; candidates: {candidates}"
        )
    stem, is_in_parts, n_parts = re.fullmatch(r"(.*?)(-00001-of-(\d{5}))?\.gguf", models[0]).groups()  # type: ignore[union-attr]
    parts = [f"{stem}-{i + 1:05}-of-{n_parts}.gguf" for i in range(int(n_parts))] if is_in_parts else models
    paths = [Path(huggingface_hub.hf_hub_download(repo_id, part)) for part in parts]
    return paths[0]
