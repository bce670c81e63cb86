"""The devices of a model's weights, replaced metadata, and adapters."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from h2o_llama import _core
from h2o_llama._internal import check
from h2o_llama._internal.core_errors import core_errors
from h2o_llama.models._adapters import Lora, check_adapters

_OWNER = "Llama"

Override = bool | int | float | str

_KEY_BYTES = 127  # and as many of a text: llama_model_kv_override


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
