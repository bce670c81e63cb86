"""Models with weights of another type."""

import os
import tempfile
from pathlib import Path

from h2o_llama import _core
from h2o_llama._internal import check
from h2o_llama._internal.atomic import check_target
from h2o_llama._internal.machine import available_cpus
from h2o_llama.models._files import check_model_file, reading_a_model


def quantize_model(
    model_path: str | os.PathLike[str], out: str | os.PathLike[str], type: str, n_threads: int | None = None
) -> None:
    """Write a model with weights of another type, by llama.cpp's own quantiser.

    Quantised weights are quantised again, which loses more. Weights whose rows do not fit the
    type get another one, as in llama.cpp. The file gets its name when it is complete, and replaces an existing one.
    The type is one of the core's `quantize_types()`, in any case.

    Raises as `Model`; ValueError also if `out` is the same file or the type is unknown, OSError if `out` cannot be
    written.
    """
    owner = "quantize"
    wanted = type.upper() if isinstance(type, str) else type
    check.choice(owner, "type", wanted, [*_core.quantize_types()])
    n_threads = available_cpus() if n_threads is None else check.integer(owner, "n_threads", n_threads, 1, 512)
    for name, path in (("model_path", model_path), ("out", out)):
        if not isinstance(path, str | os.PathLike):
            raise check.bad_argument(owner, name, "the path of a GGUF file", path)
    source, target = check_model_file(owner, model_path), Path(out)
    if target.exists() and target.samefile(source):
        raise ValueError(f"[{owner}] {target} is the model itself: give another file to write")
    check_target(target)
    with tempfile.TemporaryDirectory(prefix=".new-", dir=target.parent) as folder:
        made = Path(folder) / target.name
        try:
            with reading_a_model():
                _core.quantize(os.fsencode(source), os.fsencode(made), _core.quantize_types()[wanted], n_threads)
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(target)) from error
        os.replace(made, target)
