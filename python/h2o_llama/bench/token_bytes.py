"""How many bytes a generated token has to read."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import mean

from h2o_llama.config import H2OConfig

# Of these one row is read, which is next to nothing; of the first all are if it is the output layer too.
_TOKEN_EMBEDDING = "token_embd.weight"
_LOOKED_UP = ("position_embd.weight", "token_types.weight", "per_layer_token_embd.weight")
_OUTPUT = "output.weight"


def weights_read(tensors: Mapping[str, int], metadata: Mapping[str, str]) -> int:
    """Bytes of the weights that one token needs, rounded down.

    `tensors` are bytes by llama.cpp's names. Of a mixture of experts, the model's `metadata` tell how many a token
    uses.
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


def kv_read(
    bytes_per_position: float, index_bytes: float, positions: range, h2o: H2OConfig | None, chunk_size: int
) -> int:
    """Bytes of K, V and the index of keys that the generated tokens at these positions read, on average.

    A token attends to all positions up to its own, with H2O too; with decode="memory" to a memory set, its chunk up to
    itself, and B positions that it looks up, taken as if none were in a memory set and every layer had one. For these
    it reads all of the index before its chunk, of `index_bytes` per position.
    """

    def n_bytes(position: int) -> float:
        chunk_start = position - position % chunk_size
        if h2o is None or h2o.decode == "full" or chunk_start == 0:
            return bytes_per_position * (position + 1)
        n_past = min(h2o.memory_size + h2o.lookup_budget, chunk_start)
        n_indexed = chunk_start if chunk_start > h2o.memory_size else 0
        return bytes_per_position * (n_past + position - chunk_start + 1) + index_bytes * n_indexed

    return round(mean(map(n_bytes, positions)))
