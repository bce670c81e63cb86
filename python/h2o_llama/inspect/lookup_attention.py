"""How much attention goes to looked-up positions."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from h2o_llama.errors import H2OError
from h2o_llama.llama import Llama
from h2o_llama.model import Tokens


@dataclass(frozen=True)
class LookupAttention:
    """Of the attention to everything before a chunk, the share of looked-up positions, float64 [n_chunks, n_heads].

    Row c is chunk c + 1. A position that is in the head's memory set as well is not counted. `heads` are
    (layer, KV head), in the order of the columns.
    """

    heads: tuple[tuple[int, int], ...]
    share: NDArray[np.float64]


def lookup_attention(
    llm: Llama,
    tokens: Tokens,
    *,
    n_threads: int | None = None,
    progress: Callable[[int, int], object] | None = None,
) -> LookupAttention:
    """Read `tokens`, which are all that `llm` has evaluated, once more with the same memory sets and lookups.

    It is computed in a second context on the same weights, with F16 keys and values, whose scores are the attention
    that positions receive. What looked-up positions receive is not added to scores: it is what is missing from the sum.

    `llm` was opened with record=True and looks up by n-grams, its sequence is left alone; there are no dense tail and
    no generated tokens. `progress` is called as progress(n_done, N) after every chunk. Raises H2OError if `llm` did not
    record, or looks nothing up.
    """
    if llm.h2o is None or not llm.h2o.has_lookups:
        raise H2OError("[lookup_attention] nothing is looked up by the text: pass H2OConfig(retrieval='ngrams')")
    sets, size = llm.kv.history, llm.kv.chunk_size
    rows = []
    with _second_context(llm, len(tokens), n_threads) as again:
        before = np.zeros(0)
        per_query = np.zeros(0)
        for start in range(0, len(tokens), size):
            if start > 0:
                for layer, indices in sets[start // size - 1].items():
                    again.kv.set_memory_indices(layer, indices)
            again.eval(tokens[start : start + size])
            scores = np.concatenate([again.kv.scores(layer) for layer in again.kv.layers])
            own = scores[:, start:].sum(axis=1, dtype=np.float64)
            older = scores[:, :start].sum(axis=1, dtype=np.float64)
            if start == 0:
                # Here nothing is missing: as much as there are query heads for a KV head.
                per_query = np.round(own / scores.shape[1])
            else:
                rows.append(_share(older - before, own, per_query * (scores.shape[1] - start)))
            before = older + own
            if progress is not None:
                progress(scores.shape[1], len(tokens))
        heads = tuple((layer, head) for layer in again.kv.layers for head in range(len(again.kv.memory_indices(layer))))
    return LookupAttention(heads, np.array(rows).reshape(len(rows), len(heads)))


def _share(older: NDArray[np.float64], own: NDArray[np.float64], total: NDArray[np.float64]) -> NDArray[np.float64]:
    """Of the attention that is not `own`, the share that is not `older` either; NaN where there is none."""
    looked_up = np.maximum(0, total - older - own)
    share = np.full(len(total), np.nan)
    np.divide(looked_up, looked_up + older, out=share, where=looked_up + older > 0)
    return share


def _second_context(llm: Llama, n_tokens: int, n_threads: int | None) -> Llama:
    """One that attends as `llm` does, and scores by attention."""
    assert llm.h2o is not None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # that its memory sets are large was said of `llm`
        return Llama(
            llm,
            n_ctx=n_tokens,
            n_threads=n_threads,
            h2o=replace(llm.h2o, scorer="sum"),
            record=True,
        )
