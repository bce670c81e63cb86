"""Opening files of models and adapters: arguments, checks by Python alone, and which model a file holds."""

import hashlib
import json
import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from h2o_llama import _core
from h2o_llama._internal import check
from h2o_llama._internal.machine import core_errors
from h2o_llama.errors import DamagedFileError, H2OError
from h2o_llama.models._find import find_model
from h2o_llama.models._hub import file_sha256, similar

_OWNER = "Llama"

Override = bool | int | float | str

_FLOAT32_MAX = 3.4e38
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
        if not key or not _is_short(key):
            expected = f"names of metadata, of at most {_KEY_BYTES} bytes"
            raise check.bad_argument(_OWNER, "kv_overrides' keys", expected, key)
        is_float = isinstance(value, float) and math.isfinite(value)
        is_int = isinstance(value, int) and -(2**31) <= value < 2**32
        if not (_is_short(value) or is_int or is_float):
            expected = f"a bool, an int of 32 bits, a finite float or a str of at most {_KEY_BYTES} bytes"
            raise check.bad_argument(_OWNER, f"kv_overrides[{key!r}]", expected, value)
    return dict(overrides)


def _is_short(text: Any) -> bool:
    return isinstance(text, str) and "\0" not in text and len(text.encode(errors="replace")) <= _KEY_BYTES


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
    path = Path(os.path.expanduser(name))
    check_gguf_file(f"[{owner}] lora:", path)
    return Adapter(os.fsencode(path.absolute()), scale)


def adapters_identity(adapters: Iterable[Adapter]) -> list[tuple[str, float]]:
    """Contents of the files and scales, not paths; in any order, and without adapters of scale 0."""
    # llama.cpp computes with scales in float32
    return sorted((file_sha256(path), float(np.float32(scale))) for path, scale in adapters if scale != 0)


_VERSION = b"2"
"""Of the fingerprint. After a change, texts of a library are read again."""

_HEAD_BYTES = 1 << 20
"""At least these of the beginning."""

_SAMPLES = 128
_SAMPLE_BYTES = 4096

_PART = re.compile(r"-(\d{5})-of-(\d{5})(\.gguf)$")


def model_fingerprint(path: str | os.PathLike[str]) -> str:
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
        starts = [start for start in _core.tensor_starts(os.fsencode(part)) if start < size]
        with part.open("rb") as file:
            head = max(_HEAD_BYTES, min(starts, default=0))
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


def check_gguf_file(prefix: str, path: Path, hint: str = "") -> None:
    """Whether there is a file with something in it. Messages begin with the prefix; the hint is for a missing file.

    Raises FileNotFoundError, PermissionError, ValueError for a folder or a special file, DamagedFileError for an empty
    file.
    """
    if not path.exists():
        raise FileNotFoundError(f"{prefix} there is no file {path}{hint}")
    if not path.is_file():
        raise ValueError(f"{prefix} {path} is a folder or a special file, expected a GGUF file")
    if path.stat().st_size == 0:
        raise DamagedFileError(f"{prefix} {path} is empty, expected a GGUF file")
    with path.open("rb"):  # PermissionError, rather than "no valid GGUF"
        pass


_QUANTIZED = ("q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl")
KV_TYPES = {**dict.fromkeys(("f32", "f16", "bf16"), False), **dict.fromkeys(_QUANTIZED, True)}
"""Types that llama.cpp takes for K and V, and whether they are quantised."""


@contextmanager
def reading_a_model() -> Iterator[None]:
    """Around calls of the core whose other arguments are checked: an error is then the file's."""
    try:
        with core_errors():
            yield
    except ValueError as error:
        raise error if isinstance(error, H2OError) else DamagedFileError(str(error)) from None


def check_rpc_servers(servers: str | Sequence[str] | None, n_gpu_layers: int = -1) -> tuple[str, ...]:
    """Addresses of RPC servers, HOST:PORT, as one text with commas or several. Raises ValueError where one is none."""
    names = servers.split(",") if isinstance(servers, str) else servers
    if names is None:
        return ()
    if not isinstance(names, Sequence) or not all(isinstance(name, str) and _is_address(name) for name in names):
        expected = "HOST:PORT, several with commas or as a list, or None"
        raise check.bad_argument("Llama", "rpc_servers", expected, servers)
    if len(set(names)) < len(names):
        raise check.bad_argument("Llama", "rpc_servers", "servers that are each named once", servers)
    if names and n_gpu_layers == 0:
        raise check.bad_argument("Llama", "n_gpu_layers", "left out, -1 or how many layers rpc_servers hold", 0)
    return tuple(names)


def _is_address(name: str) -> bool:
    host, _, port = name.partition(":")
    return bool(host) and host.isprintable() and port.isascii() and port.isdecimal() and 0 < int(port[:6]) < 65536


def check_model_file(owner: str, model_path: str | os.PathLike[str]) -> Path:
    """The GGUF file that a path or a name stands for, checked by Python alone. Raises as `Model`."""
    path = find_model(model_path)
    check_gguf_file(f"[{owner}]", path, similar(model_path))
    return path
