"""The model and the text that a command line names, and the progress of reading it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from h2o_llama import H2OConfig, Model, demo_model_path
from h2o_llama._cli.errors import describe
from h2o_llama._cli.options import NONE, Changes
from h2o_llama._internal.terminal import echo
from h2o_llama.chat._messages import data_url
from h2o_llama.library import Library, default_folder
from h2o_llama.models._named import TEXTS, find_text, suggestion
from h2o_llama.sequence._engine import resolved_matmul_kernels


def model_file(name: str) -> Path:
    """The path or the name of a model; 'demo' is the one in this package."""
    return demo_model_path() if name == "demo" else Path(name)


def open_model(
    name: str,
    gpu_layers: int | None,
    rpc: str | None = None,
    h2o: H2OConfig | None = None,
    matmul_kernels: str = "own",
    mlock: bool = False,
    no_mmap: bool = False,
    changes: Changes = NONE,
    mmproj: Path | None = None,
) -> Model:
    """The model, to cut the text into tokens: then it is known how large a context must be.

    `h2o` and `matmul_kernels` are later given to the context, too: the layout of the weights depends on them. `changes`
    are further arguments of `Model`.
    """
    matmul_kernels = resolved_matmul_kernels(h2o, matmul_kernels)
    return Model(
        model_file(name),
        n_gpu_layers=gpu_layers,
        rpc_servers=rpc,
        matmul_kernels=matmul_kernels,
        use_mlock=mlock,
        use_mmap=not no_mmap,
        **changes,
        mmproj=mmproj,
    )


def has_library(is_wanted: bool, folder: Path | None = None, off: str = "--no-library") -> bool:
    """Whether there can be a library, which nobody needs to have asked for. Where texts are kept is said once."""
    folder = folder or default_folder()
    try:
        if is_wanted and not folder.exists() and sys.stderr.isatty():
            echo(f"Texts are kept in {folder} once read: see `h2o-llama library`, {off}.", err=True)
        return is_wanted and Library(folder).limit_bytes > 0
    except OSError as error:
        echo(f"h2o-llama: {describe(error)}: texts are not kept", err=True)
        return False


def said(text: str, images: Sequence[Path] | None) -> dict[str, Any]:
    """A user's message: images, and a text about them. Raises OSError or ValueError if an image cannot be read."""
    urls = [data_url("[--image]", image) for image in images or ()]
    parts: list[dict[str, Any]] = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
    return {"role": "user", "content": [*parts, {"type": "text", "text": text}] if parts else text}


def read_prompt(file: Path | None, prompt: str) -> bytes:
    """The file's text and `prompt` after it."""
    if file is None and not prompt:
        raise typer.BadParameter("give a text by --file, --prompt or both")
    if file is None:
        return prompt.encode()
    return read_text(file) + prompt.encode()


def read_text(file: Path) -> bytes:
    """A text file, a text that has a name, or with - standard input."""
    if str(file) == "-":
        return sys.stdin.buffer.read()
    path = find_text(file)
    names = suggestion(file, TEXTS)
    if names and not path.exists():
        raise FileNotFoundError(f"{file}: No such file or directory{names}")
    return path.read_bytes()


def tokenize(llm: Model, text: bytes, special: bool = False) -> list[int]:
    """Token ids of a text. Raises ValueError if there are none."""
    tokens = llm.tokenize(text, parse_special=special)
    if not tokens:
        raise ValueError("the text is empty")
    return tokens


@contextmanager
def progress_bars(auto_refresh: bool = True) -> Iterator[Callable[[str, int, int], None]]:
    """Yield `update(name, n_done, n_total)`, with one bar per name. The bars vanish at the end.

    They are shown only in a terminal. Without `auto_refresh` they are drawn by `update` only, not by a thread, which
    would take time from the measurement.
    """
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    tasks: dict[str, TaskID] = {}
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal, auto_refresh=auto_refresh
    ) as bars:

        def update(name: str, n_done: int, n_total: int) -> None:
            if name not in tasks:
                tasks[name] = bars.add_task(name)
            bars.update(tasks[name], completed=n_done, total=n_total, refresh=not auto_refresh)

        yield update
