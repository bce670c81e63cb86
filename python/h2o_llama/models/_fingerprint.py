"""Which model a file holds, told by a part of its bytes."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import Any

from h2o_llama.models._gguf_file import tensor_starts

_VERSION = b"2"
"""Of the fingerprint. After a change, texts of a library are read again."""

_HEAD_BYTES = 1 << 20
"""At least these of the beginning."""

_SAMPLES = 128
_SAMPLE_BYTES = 4096

_PART = re.compile(r"-(\d{5})-of-(\d{5})(\.gguf)$")


def model_fingerprint(path: str | Path) -> str:
    """SHA-256 of parts of a GGUF file, and of its other parts if it has some.

    These are the beginning (metadata, vocabulary, the tensors' names, types and places; at least 1 MiB), the first and
    the last 4 KiB of every tensor, and 128 evenly spread samples of 4 KiB. So a tensor that was trained,
    quantised or put together otherwise is seen. A change inside one tensor that leaves both its ends and the samples as
    they were is not: reading all of a file would take as long as loading it.
    """
    digest = hashlib.sha256(_VERSION)
    for part in _parts(Path(path)):
        size = part.stat().st_size
        digest.update(size.to_bytes(8, "little"))
        with part.open("rb") as file:
            starts = [start for start in tensor_starts(file) if start < size]
            head = max(_HEAD_BYTES, min(starts, default=0))
            file.seek(0)
            while head > 0 and (block := file.read(min(head, _HEAD_BYTES))):
                digest.update(block)
                head -= len(block)
            spread = [max(0, size - _SAMPLE_BYTES) * i // (_SAMPLES - 1) for i in range(_SAMPLES)]
            for start in sorted({*spread, *starts, *(max(0, start - _SAMPLE_BYTES) for start in starts)}):
                file.seek(start)
                digest.update(file.read(_SAMPLE_BYTES))
    return digest.hexdigest()


def changed_fingerprint(fingerprint: str, *changes: Any) -> str:
    """The fingerprint of a model with changes to its file's metadata, which may change its results.

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
