"""How many bytes a generated token has to read."""

from __future__ import annotations

from collections.abc import Mapping

# Of these one row is read, which is next to nothing; of the first all are if it is the output layer too.
_TOKEN_EMBEDDING = "token_embd.weight"
_LOOKED_UP = ("position_embd.weight", "token_types.weight", "per_layer_token_embd.weight")
_OUTPUT = "output.weight"


def weights_read(tensors: Mapping[str, int], metadata: Mapping[str, str]) -> int:
    """Bytes of the weights that one token needs, rounded down.

    Parameters
    ----------
    tensors : mapping of str to int
        Bytes of each tensor, by llama.cpp's names.
    metadata : mapping of str to str
        The model's; of a mixture of experts, it tells how many of them a token uses.
    """
    experts = metadata.get("general.architecture", "") + ".expert_"
    n_experts = int(metadata.get(experts + "count", 0))
    n_used = int(metadata.get(experts + "used_count", n_experts))
    total = 0
    for name, n_bytes in tensors.items():
        if name in _LOOKED_UP or (name == _TOKEN_EMBEDDING and _OUTPUT in tensors):
            continue
        is_expert = n_experts > 0 and "_exps." in name
        total += n_bytes * n_used // n_experts if is_expert else n_bytes
    return total


def kv_read(bytes_per_position: float, n_tokens: int, n_gen: int) -> int:
    """Bytes of K and V that a token of n_gen reads, on average, after a prompt of n_tokens and one token more.

    Every generated token attends to all positions up to its own, with H2O too.
    """
    return round(bytes_per_position * (n_tokens + 1 + (n_gen + 1) / 2))
