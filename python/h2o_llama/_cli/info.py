"""`h2o-llama info`: what a model is, and whether H2O works with it."""

from __future__ import annotations

from rich.console import Console
from rich.filesize import decimal
from rich.table import Table

from h2o_llama import H2OConfig, H2OError, Llama
from h2o_llama._cli import options
from h2o_llama._cli.prompt import model_file
from h2o_llama._cli.weights import NONE, Changes, with_changes
from h2o_llama._internal.terminal import plain

_N_CTX = 256
_SMALL = H2OConfig(chunk_size=_N_CTX)


@with_changes
def info(model: options.Model, changes: Changes = NONE) -> None:
    """Describe a model: its sizes, its heads, its KV cache, and whether H2O works with it."""
    with Llama(model_file(model), n_ctx=_N_CTX, h2o=None, **changes) as llm:
        rows = [("File", llm.model_path), *_facts(llm), ("H2O", _verdict(llm))]
    table = Table(show_header=False, box=None)
    for name, value in rows:
        table.add_row(plain(name, "bold"), plain(value))
    Console().print(table)


def _verdict(llm: Llama) -> str:
    """Whether H2O works with the model, and if not, why."""
    try:
        with Llama(llm, n_ctx=_N_CTX, h2o=_SMALL):
            return "works"
    except H2OError as error:
        return f"does not work: {error}"


def _facts(llm: Llama) -> list[tuple[str, str]]:
    """Names and values."""
    core, metadata = llm.model._handle, llm.metadata
    architecture = metadata.get("general.architecture", "unknown")
    head_size = metadata.get(f"{architecture}.attention.key_length") or str(core.n_embd // max(core.n_head, 1))
    varying = "" if f"{architecture}.attention.head_count_kv" in metadata else " in the first layer"
    per_token = llm.kv.stats.kv_bytes // _N_CTX
    return [
        ("Name", metadata.get("general.name", "-")),
        ("Model", llm.desc),
        ("Architecture", architecture),
        ("Parameters", f"{llm.n_params:,} in {decimal(llm.model_bytes)}"),
        ("Vocabulary", f"{llm.n_vocab:,} tokens"),
        ("Context", f"{core.n_ctx_train:,} tokens in training"),
        ("Layers", f"{core.n_layer}, width {core.n_embd:,}"),
        ("Heads", f"{core.n_head} Q, {core.n_head_kv} KV{varying}, size {head_size}"),
        ("KV cache", f"{per_token:,} bytes per token (F16), {decimal(per_token * core.n_ctx_train)} at full context"),
    ]
