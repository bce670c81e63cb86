"""LoRA adapters, which are added to a model's weights."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from h2o_llama._internal import check
from h2o_llama.models._gguf_file import check_gguf_file

_FLOAT32_MAX = 3.4e38
_BLOCK = 1 << 20

Lora: TypeAlias = (
    "str | os.PathLike[str] | Sequence[str | os.PathLike[str] | tuple[str | os.PathLike[str], float]] | None"
)
"""The file of an adapter; or several, each alone or with its scale."""


class Adapter(NamedTuple):
    """A file, absolute, and what its weights are multiplied by."""

    path: bytes
    scale: float


def check_adapters(owner: str, lora: Any) -> list[Adapter]:
    """The adapters that an argument `lora` names.

    Raises FileNotFoundError if a file is missing, DamagedFileError if it is empty, ValueError if a scale is not
    a finite number or `lora` is something else.
    """
    named = [] if lora is None else [lora] if isinstance(lora, str | os.PathLike) else lora
    if not isinstance(named, Sequence):
        raise check.bad_argument(owner, "lora", "a file, or a list of files and of pairs (file, scale)", lora)
    return [_check(owner, item) for item in named]


def _check(owner: str, item: Any) -> Adapter:
    name, scale = item if isinstance(item, tuple | list) and len(item) == 2 else (item, 1.0)
    if not isinstance(name, str | os.PathLike):
        raise check.bad_argument(owner, "lora", "a file, or a list of files and of pairs (file, scale)", item)
    scale = check.real(owner, f"the scale of {os.fspath(name)}", scale, -_FLOAT32_MAX, _FLOAT32_MAX)
    path = Path(name)
    check_gguf_file(f"[{owner}] lora:", path)
    return Adapter(os.fsencode(path.absolute()), scale)


def identity(adapters: Iterable[Adapter]) -> list[tuple[str, float]]:
    """Contents of the files and scales, not paths; in any order, and without adapters of scale 0."""
    # llama.cpp computes with scales in float32
    return sorted((_sha256(path), float(np.float32(scale))) for path, scale in adapters if scale != 0)


def _sha256(path: bytes) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()
