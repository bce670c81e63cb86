"""Refuses sizes that no memory could hold: the kernel would kill the process when it comes to use them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

from h2o_llama import _core
from h2o_llama.errors import OutOfMemoryError

_CGROUP_LIMIT = Path("/sys/fs/cgroup/memory.max")


def physical_memory() -> int | None:
    """Bytes of memory that this process could have at most; None if the system does not tell."""
    try:
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return None
    try:
        return min(total, int(_CGROUP_LIMIT.read_text()))
    except (OSError, ValueError):  # no cgroup, or "max"
        return total


def head_size(model: _core.Model, of: Literal["key", "value"] = "key") -> int:
    """Numbers of a head's key or value."""
    name = f"{model.metadata.get('general.architecture', '')}.attention.{of}_length"
    return int(model.metadata.get(name, model.n_embd // max(model.n_head, 1)))


def kv_bytes_at_least(model: _core.Model, n_cells: int, type_k: str, type_v: str, has_index: bool = False) -> int:
    """A lower bound for the bytes of a KV cache of `n_cells` tokens, and of an index of its keys."""
    prefix = model.metadata.get("general.architecture", "") + ".attention."
    size_k, size_v = head_size(model), head_size(model, "value")
    # Other memories than the plain KV cache hold less than this for most of their layers; and so may layers with head
    # counts of their own, which are an array and not in the metadata, while n_head_kv is the first layer's.
    is_plain = prefix + "head_count_kv" in model.metadata and not (
        model.is_recurrent or model.n_swa > 0 or prefix + "kv_lora_rank" in model.metadata
    )
    per_key = _core.type_size(type_k) + (_core.type_size("q4_0") if has_index else 0)
    per_layer = model.n_head_kv * (size_k * per_key + size_v * _core.type_size(type_v))
    return int(n_cells * per_layer) * (model.n_layer if is_plain else 1)


def fitting_cells(
    model: _core.Model, n_cells: int, type_k: str, type_v: str, has_index: bool, n_seq_max: int, n_least: int
) -> tuple[int, int, int]:
    """How many of n_cells for each sequence fit into memory with the weights; the needed and the available bytes.

    At least n_least of them: where not even these fit, `check_kv_size` says so.
    """
    needed = kv_bytes_at_least(model, n_cells * n_seq_max, type_k, type_v, has_index)
    memory = physical_memory()
    free = needed if memory is None else max(memory - model.size, 0)
    if needed <= free:
        return n_cells, needed, free
    n_fitting = n_cells * free // needed // 256 * 256  # llama.cpp rounds up to these
    return min(n_cells, max(n_fitting, n_least)), needed, free


def check_kv_size(
    owner: str,
    name: str,
    n_cells: int,
    model: _core.Model,
    type_k: str,
    type_v: str,
    has_index: bool = False,
    n_seq_max: int = 1,
    n_layer: int | None = None,
) -> None:
    """Raise OutOfMemoryError if caches of `n_cells` tokens, which the argument `name` asks for, cannot fit into memory.

    `n_layer` of the model's layers have them: by default all.
    """
    needed = kv_bytes_at_least(model, n_cells * n_seq_max, type_k, type_v, has_index)
    if n_layer is not None:
        needed = needed * n_layer // model.n_layer
    _check_fits(owner, name, n_cells, needed, "{} for the KV cache")


def check_logits_size(owner: str, model: _core.Model, n_queries: int, n_keys: int, name: str, value: int) -> None:
    """Raise OutOfMemoryError if two copies of the attention logits of these queries and keys cannot fit into memory.

    `name` and `value` are the argument that asks for them.
    """
    needed = 2 * 4 * n_queries * n_keys * model.n_head
    _check_fits(owner, name, value, needed, "about {} for attention logits")


def check_retrieved_size(owner: str, model: _core.Model, n_tiles: int, n_keys: int, name: str, value: int) -> None:
    """Raise OutOfMemoryError if two lists of n_keys rows, for each tile of queries and KV head, cannot fit into memory.

    `name` and `value` are the argument that asks for them.
    """
    needed = 2 * 4 * n_tiles * n_keys * model.n_head_kv
    _check_fits(owner, name, value, needed, "about {} for what every tile retrieves")


def check_all_logits_size(owner: str, n_tokens: int, n_vocab: int) -> None:
    """Raise OutOfMemoryError if the logits of `n_tokens` cannot fit into memory."""
    _check_fits(owner, "n_tokens", n_tokens, 4 * n_tokens * n_vocab, "{} for logits='all'")


def _check_fits(owner: str, name: str, value: int, needed: int, purpose: str) -> None:
    """Raise OutOfMemoryError if the machine has less than the `needed` bytes, {} in `purpose`."""
    available = physical_memory()
    if available is not None and needed > available:
        raise OutOfMemoryError(
            f"[{owner}] {name}={value} needs {purpose.format(f'{needed / 2**30:.1f} GiB')}, but this machine has "
            f"{available / 2**30:.1f} GiB of memory: use a smaller {name}"
        )
