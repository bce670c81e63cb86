"""Files from a server."""

import hashlib
import os
from pathlib import Path


def download(url: str, path: Path, file: str) -> None:
    """A file, unless it is there; what an interrupted download has left is continued."""
    from huggingface_hub.file_download import http_get

    if not path.is_file():
        part = path.with_name(f".{path.name}.part")
        with part.open("ab") as content:
            http_get(url, content, resume_size=content.tell(), displayed_filename=file)
        part.replace(path)


def file_sha256(path: str | bytes | os.PathLike[str]) -> str:
    """Of a whole file, in hexadecimal."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()
