"""Memory sets by a scorer in Python: `H2OConfig.scorer`."""

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from h2o_llama import _core
from h2o_llama._internal import check
from h2o_llama.config import H2OConfig


def close_chunks(contexts: Sequence[_core.Context], h2o: H2OConfig | None) -> None:
    """Where a chunk is complete: every layer's memory set by the scores of `H2OConfig.scorer`, if that is Python's.

    Raises ValueError if these are not scores, and whatever the scorer raises. Nothing has changed then.
    """
    if h2o is not None and callable(h2o.scorer):
        chosen = [choice for context in contexts for choice in _chosen(context, h2o)]
        for kv, layer, indices in chosen:
            kv.set_memory_indices(layer, indices)


def _chosen(context: _core.Context, h2o: H2OConfig) -> Iterator[tuple[_core.KV, int, NDArray[np.int32]]]:
    """A cache, its layers and their memory sets, int32 [n_head_kv, M]."""
    kv, n = _core.KV.of_context(context), context.n_tokens
    if kv is None or not callable(h2o.scorer) or n % h2o.chunk_size:
        return
    for layer in kv.layers:
        scores = h2o.scorer(layer, kv.get_k(layer, n), kv.get_v(layer, n), kv.scores(layer))
        ranked = _checked(layer, scores, kv.n_head_kv(layer), n)
        if h2o.shared_heads:
            ranked[:] = ranked.mean(axis=0)
        ranked[:, : h2o.sink_tokens] = ranked[:, max(0, n - h2o.local_window) :] = np.inf
        kept = np.argsort(-ranked, axis=1, kind="stable")[:, : kv.n_memory(n)]
        indices = np.full((len(ranked), h2o.memory_size), -1, dtype=np.int32)
        indices[:, : kept.shape[1]] = np.sort(kept, axis=1)
        yield kv, layer, indices


def _checked(layer: int, scores: ArrayLike, n_head_kv: int, n: int) -> NDArray[np.float32]:
    owner, name = "H2OConfig", f"what scorer returns for layer {layer}"
    found: NDArray[np.float32] = check.float_array(owner, name, scores, (n_head_kv, n)).copy()
    if not np.isfinite(found).all():
        raise check.bad_argument(owner, name, "finite numbers", found)
    return found
