"""The model and the text that a command line names, and the progress of reading it."""

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from h2o_llama import H2OError, Llama, Model
from h2o_llama._cli.errors import describe
from h2o_llama._cli.options import Options
from h2o_llama._internal.terminal import counted, echo
from h2o_llama.chat._messages import data_url
from h2o_llama.documents import read_document
from h2o_llama.library import Library, default_folder
from h2o_llama.library._library import LEAST_TOKENS
from h2o_llama.models._find import find_text
from h2o_llama.models._hub import similar
from h2o_llama.models._named import TEXTS
from h2o_llama.sequence._engine import resolved_matmul_kernels
from h2o_llama.sequence._prompt import Tokens

_PAUSE = 10.0
"""Seconds between two lines of progress without a terminal."""


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
        **more,
    )


def read_tokens(llm: Llama, tokens: Tokens, name: str, **options: Any) -> None:
    """Read a text, and say on standard error how fast that was."""
    start = time.perf_counter()
    with progress_bars() as update:
        llm.eval(tokens, progress=lambda done, total: update(name, done, total), **options)
    short = ", too short to keep" if llm.library is not None and len(tokens) < LEAST_TOKENS else ""
    echo(f"[{name}: {took('read', len(tokens), time.perf_counter() - start, llm.n_cached)}{short}]", err=True)


def took(verb: str, n: int, seconds: float, n_known: int = 0, where: str = "from the library") -> str:
    """A line about reading or writing, the same in all commands. Few tokens do not tell a speed."""
    known, n_new = f" ({n_known:,} {where})" if n_known else "", n - n_known
    speed = f" ({n_new / seconds:,.0f} tokens/s)" if n_new >= (64 if verb == "read" else 8) else ""
    return f"{verb} {counted(n, 'token')}{known} in {seconds:,.1f} s{speed}"


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


def read_prompt(o: Options) -> str:
    """The file's text and --prompt after it."""
    if o.file is None and not o.prompt:
        raise typer.BadParameter("give a text by --file, --prompt or both")
    return ("" if o.file is None else read_text(o.file)) + o.prompt


def read_text(file: Path) -> str:
    """A document, a text that has a name, or with - standard input."""
    if str(file) == "-":
        return read_document(sys.stdin.buffer.read(), "standard input")
    path = find_text(file)
    names = similar(file, TEXTS)
    if names and not path.exists():
        raise FileNotFoundError(f"{file}: No such file or directory{names}")
    return read_document(path, str(file))


@contextmanager
def progress_bars(auto_refresh: bool = True) -> Iterator[Callable[[str, int, int], None]]:
    """Yield `update(name, n_done, n_total)`, with one bar per name. The bars vanish at the end.

    Without a terminal there is a line now and then instead. Without `auto_refresh` bars are drawn by `update` only, not
    by a thread, which would take time from the measurement.
    """
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    tasks: dict[str, TaskID] = {}
    start = last = time.monotonic()
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal, auto_refresh=auto_refresh
    ) as bars:

        def update(name: str, n_done: int, n_total: int) -> None:
            nonlocal last
            now = time.monotonic()
            if not console.is_terminal and now - last >= _PAUSE:
                last = now
                echo(f"{name}: {n_done:,} of {n_total:,}, {now - start:,.0f} s", err=True)
            if name not in tasks:
                tasks[name] = bars.add_task(name)
            bars.update(tasks[name], completed=n_done, total=n_total, refresh=not auto_refresh)

        yield update
