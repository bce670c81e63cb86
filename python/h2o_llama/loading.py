"""Opening model files."""

from __future__ import annotations

import os
from pathlib import Path

from h2o_llama import _check, _core
from h2o_llama.named_files import MODELS, find_model, suggestion

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


def load_model(model_path: str | os.PathLike[str], n_gpu_layers: int, verbose: bool) -> _core.Model:
    """Load a GGUF file, or a model that has a name.

    Raises
    ------
    FileNotFoundError
        If there is no such file.
    ValueError
        If it is a folder, empty, damaged, or no GGUF model file.
    H2OError
        If llama.cpp refuses it; the message has its reason.
    """
    if not isinstance(model_path, str | os.PathLike):
        raise _check.bad_argument("Llama", "model_path", "the path of a GGUF file, or an open Llama", model_path)
    return _core.Model(os.fsencode(check_model_file("Llama", model_path)), n_gpu_layers, verbose)


def check_model_file(owner: str, model_path: str | os.PathLike[str]) -> Path:
    """The GGUF file that a path or a name stands for, as far as Python can tell. Raises as `load_model`."""
    path = find_model(model_path)
    if not path.exists():
        raise FileNotFoundError(f"[{owner}] there is no file {path}{suggestion(model_path, MODELS)}")
    if not path.is_file():
        raise ValueError(f"[{owner}] {path} is a folder or a special file, expected a GGUF file")
    if path.stat().st_size == 0:
        raise ValueError(f"[{owner}] {path} is empty, expected a GGUF file")
    with path.open("rb"):  # PermissionError, rather than "no valid GGUF"
        pass
    return path
