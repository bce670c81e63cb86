"""The devices of a model's weights, replaced metadata, and adapters."""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from h2o_llama import _core
from h2o_llama._internal import check
from h2o_llama._internal.core_errors import core_errors
from h2o_llama.models._gguf_file import check_gguf_file

_OWNER = "Llama"

Override = bool | int | float | str

_FLOAT32_MAX = 3.4e38
_BLOCK = 1 << 20
_KEY_BYTES = 127  # and as many of a text: llama_model_kv_override

Lora: TypeAlias = (
    "str | os.PathLike[str] | Sequence[str | os.PathLike[str] | tuple[str | os.PathLike[str], float]] | None"
)
"""The file of an adapter; or several, each alone or with its scale."""


@dataclass(frozen=True)
class Loading:
    """Arguments of `Model`; see there. Raises ValueError if one is bad."""

    use_mmap: bool = True
    use_mlock: bool = False
    kv_overrides: Mapping[str, Override] | None = None
    main_gpu: int | None = None
    tensor_split: Sequence[float] | None = None
    lora: Lora = None

    def checked(self, rpc_servers: tuple[str, ...]) -> dict[str, Any]:
        """As the core takes them."""
        return {
            "use_mmap": check.flag(_OWNER, "use_mmap", self.use_mmap),
            "use_mlock": check.flag(_OWNER, "use_mlock", self.use_mlock),
            "kv_overrides": _check_overrides(self.kv_overrides),
            "lora": check_adapters(_OWNER, self.lora),
            **self._devices(rpc_servers),
        }

    def check_left_out(self) -> None:
        """Weights that are shared are loaded already."""
        for field in fields(self):
            value = getattr(self, field.name)
            if value is not field.default:
                raise check.bad_argument(_OWNER, field.name, "left out with shared weights", value)

    def _devices(self, rpc_servers: tuple[str, ...]) -> dict[str, Any]:
        if self.main_gpu is None and self.tensor_split is None:
            return {}
        if self.main_gpu is not None and self.tensor_split is not None:
            raise check.bad_argument(_OWNER, "tensor_split", "left out with main_gpu", self.tensor_split)
        with core_errors():
            names = _core.layer_devices(list(rpc_servers))
        if not names:
            name = "main_gpu" if self.tensor_split is None else "tensor_split"
            raise check.bad_argument(_OWNER, name, "left out: there is no GPU", getattr(self, name))
        if self.main_gpu is not None:
            return {"main_gpu": check.integer(_OWNER, "main_gpu", self.main_gpu, 0, len(names) - 1)}
        return {"tensor_split": _check_split(self.tensor_split, names)}


def _check_split(split: Any, names: list[str]) -> list[float]:
    expected = f"{len(names)} numbers of at least 0, not all 0, one for each of {', '.join(names)}"
    try:
        parts = [check.real(_OWNER, "tensor_split", part, 0, 1e30) for part in split]
    except (TypeError, ValueError):
        parts = []
    if len(parts) != len(names) or not sum(parts) > 0:
        raise check.bad_argument(_OWNER, "tensor_split", expected, split)
    return parts


def _check_overrides(overrides: Any) -> dict[str, Override]:
    if overrides is None:
        return {}
    if not isinstance(overrides, Mapping):
        raise check.bad_argument(_OWNER, "kv_overrides", "a mapping from keys to bool, int, float or str", overrides)
    for key, value in overrides.items():
        if not isinstance(key, str) or not key or not _is_short(key):
            expected = f"names of metadata, of at most {_KEY_BYTES} bytes"
            raise check.bad_argument(_OWNER, "kv_overrides' keys", expected, key)
        ok = isinstance(value, bool | int | float | str)
        ok = ok and not (isinstance(value, float) and not math.isfinite(value))
        ok = ok and not (isinstance(value, str) and not _is_short(value))
        ok = ok and not (isinstance(value, int) and not -(2**31) <= value < 2**32)
        if not ok:
            expected = f"a bool, an int of 32 bits, a finite float or a str of at most {_KEY_BYTES} bytes"
            raise check.bad_argument(_OWNER, f"kv_overrides[{key!r}]", expected, value)
    return dict(overrides)


def _is_short(text: str) -> bool:
    return "\0" not in text and len(text.encode(errors="replace")) <= _KEY_BYTES


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
    return [_check_adapter(owner, item) for item in named]


def _check_adapter(owner: str, item: Any) -> Adapter:
    name, scale = item if isinstance(item, tuple | list) and len(item) == 2 else (item, 1.0)
    if not isinstance(name, str | os.PathLike):
        raise check.bad_argument(owner, "lora", "a file, or a list of files and of pairs (file, scale)", item)
    scale = check.real(owner, f"the scale of {os.fspath(name)}", scale, -_FLOAT32_MAX, _FLOAT32_MAX)
    path = Path(name)
    check_gguf_file(f"[{owner}] lora:", path)
    return Adapter(os.fsencode(path.absolute()), scale)


def adapters_identity(adapters: Iterable[Adapter]) -> list[tuple[str, float]]:
    """Contents of the files and scales, not paths; in any order, and without adapters of scale 0."""
    # llama.cpp computes with scales in float32
    return sorted((_sha256(path), float(np.float32(scale))) for path, scale in adapters if scale != 0)


def _sha256(path: bytes) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()
