"""The model, the texts and the library that a command line names."""

import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import typer

from h2o_llama import H2OError, Llama, Model
from h2o_llama._cli.command import describe
from h2o_llama._cli.options import Options
from h2o_llama._cli.progress import progress_bars
from h2o_llama._internal.terminal import echo
from h2o_llama.documents import text_of
from h2o_llama.library import Library, default_folder
from h2o_llama.models._find import find_text
from h2o_llama.models._hub import similar
from h2o_llama.models._messages import data_url
from h2o_llama.models._named import TEXTS
from h2o_llama.sequence._engine import resolved_matmul_kernels


def open_model(o: Options, kernels: str | None = None) -> Model:
    """The model, to cut the text into tokens: then it is known how large a context must be.

    The layout of its weights is for `o.attention`, unless `kernels` says whose they are.
    """
    config: Any = o.attention if kernels is None else None
    return Model(
        o.model,
        n_gpu_layers=o.gpu_layers,
        rpc_servers=o.rpc,
        matmul_kernels=kernels or resolved_matmul_kernels(config, o.matmul_kernels),
        use_mlock=o.mlock,
        use_mmap=not o.no_mmap,
        **o.changes,
        mmproj=o.mmproj,
    )


def open_llama(o: Options, weights: Model, n_ctx: int, h2o: Any = "auto", **more: Any) -> Llama:
    """A sequence for that many tokens."""
    return Llama(
        weights,
        n_ctx=n_ctx,
        n_threads=o.threads,
        n_threads_batch=o.threads_batch,
        h2o=h2o,
        matmul_kernels=o.matmul_kernels,
        library=has_library(o.library),
        cache_reuse=o.cache_reuse,
        **more,
    )


def has_library(is_wanted: bool, folder: Path | None = None, off: str = "--no-library") -> bool:
    """Whether there can be a library, which nobody needs to have asked for. Where texts are kept is said once."""
    folder = folder or default_folder()
    try:
        if is_wanted and not folder.exists():
            echo(f"Texts are kept in {folder} once read: see `h2o-llama library`, {off}.", err=True)
        return is_wanted and Library(folder).limit_bytes > 0
    except (OSError, H2OError) as error:
        echo(f"h2o-llama: {describe(error)}: texts are not kept", err=True)
        return False


def said(text: str, images: Sequence[Path] | None) -> dict[str, Any]:
    """A user's message: images, and a text about them. Raises OSError or ValueError if an image cannot be read."""
    urls = [data_url("[--image]", image) for image in images or ()]
    parts: list[dict[str, Any]] = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
    return {"role": "user", "content": [*parts, {"type": "text", "text": text}] if parts else text}


def title_of(file: Path) -> str:
    """What the library calls its text."""
    return "standard input" if str(file) == "-" else file.name


def read_prompt(o: Options) -> str:
    """The file's text and --prompt after it."""
    if o.file is None and not o.prompt:
        raise typer.BadParameter("give a text by --file, --prompt or both")
    return ("" if o.file is None else read_text(o.file, o.library)) + o.prompt


def read_text(file: Path, is_kept: bool = False) -> str:
    """A document, a text that has a name, or with - standard input. `is_kept`: a text that takes long is kept."""
    path = find_text(file)
    names = "" if file.suffix else similar(file, TEXTS)
    if str(file) == "-":
        content, name = sys.stdin.buffer.read(), "standard input"
    elif re.match("https?:/", str(file)):
        address = str(file).replace(":/", "://", 1)
        raise ValueError(f"{address} is an address: save it first (`curl -LO {address}`), and name the file")
    elif path.is_dir():
        raise ValueError(f"{file} is a folder: `read` reads all documents in it, and `batch` asks about each")
    elif names and not path.exists():
        raise FileNotFoundError(f"{file}: No such file or directory{names}")
    else:
        content, name = path.expanduser().read_bytes(), str(file)
    library = default_folder() if has_library(is_kept) else None
    with progress_bars() as update:
        return text_of(content, name, library, lambda n, total: update(f"{name}, pages", n, total))
