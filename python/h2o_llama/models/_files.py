"""Opening model files."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from h2o_llama import _core
from h2o_llama._internal import check
from h2o_llama._internal.core_errors import core_errors
from h2o_llama.errors import DamagedFileError, H2OError
from h2o_llama.models._gguf_file import check_gguf_file
from h2o_llama.models._named import MODELS, find_model, suggestion

# Types that llama.cpp takes for K and V; the value tells whether they are quantised.
KV_TYPES = {
    "f32": False,
    "f16": False,
    "bf16": False,
    "q8_0": True,
    "q5_1": True,
    "q5_0": True,
    "q4_1": True,
    "q4_0": True,
    "iq4_nl": True,
}


def load_model(
    model_path: str | os.PathLike[str],
    n_gpu_layers: int,
    verbose: bool,
    rpc_servers: tuple[str, ...] = (),
    repack: bool = True,
    **loading: Any,
) -> _core.Model:
    """Load a GGUF file, or a model that has a name; the servers get its layers first.

    With `repack`, llama.cpp moves weights of some types into layouts for its own products, which only these can read.
    `loading` is the result of `Loading.checked`.

    Raises FileNotFoundError if the file is missing; ValueError if it is a folder, or an override does not fit;
    DamagedFileError if it is empty, damaged, or not a GGUF model file; H2OError if llama.cpp refuses
    it, or a server does not answer.
    """
    if not isinstance(model_path, str | os.PathLike):
        raise check.bad_argument(
            "Llama", "model_path", "the path of a GGUF file, or an open Model or Llama", model_path
        )
    path = os.fsencode(check_model_file("Llama", model_path))
    if loading.get("kv_overrides"):
        _core.Model.check_overrides(path, loading["kv_overrides"])
    with reading_a_model():
        return _core.Model(path, n_gpu_layers, verbose, list(rpc_servers), repack, **loading)


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
    """The GGUF file that a path or a name stands for, checked by Python alone. Raises as `load_model`."""
    path = find_model(model_path)
    check_gguf_file(f"[{owner}]", path, suggestion(model_path, MODELS))
    return path
