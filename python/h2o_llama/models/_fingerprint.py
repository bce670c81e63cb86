"""Which model a file holds, told by a part of its bytes."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import Any

_HEAD_BYTES = 1 << 20
_SAMPLES = 128
_SAMPLE_BYTES = 4096

_PART = re.compile(r"-(\d{5})-of-(\d{5})(\.gguf)$")


def model_fingerprint(path: str | Path) -> str:
    """SHA-256 of sizes, beginnings (the metadata) and evenly spread samples (the weights) of a GGUF file and its parts.

    Reading all of it would take as long as loading it.
    """
    digest = hashlib.sha256()
    for part in _parts(Path(path)):
        size = part.stat().st_size
        digest.update(size.to_bytes(8, "little"))
        with part.open("rb") as file:
            digest.update(file.read(_HEAD_BYTES))
            for i in range(_SAMPLES):
                file.seek(max(0, size - _SAMPLE_BYTES) * i // (_SAMPLES - 1))
                digest.update(file.read(_SAMPLE_BYTES))
    return digest.hexdigest()


def changed_fingerprint(fingerprint: str, *changes: Any) -> str:
    """That of a model where something is put in the place of what its file says: what it computes may differ.

    Changes are what JSON can say; an empty one is none.
    """
    for change in changes:
        if change:
            fingerprint = hashlib.sha256((fingerprint + json.dumps(change, sort_keys=True)).encode()).hexdigest()
    return fingerprint


def _parts(path: Path) -> list[Path]:
    """A model in parts is named by its first."""
    match = _PART.search(path.name)
    if match is None:
        return [path]
    stem, n = path.name[: match.start()], int(match[2])
    parts = [path.with_name(f"{stem}-{i:05}-of-{n:05}{match[3]}") for i in range(1, n + 1)]
    return [part for part in parts if part.exists()]  # one file may have such a name, too
