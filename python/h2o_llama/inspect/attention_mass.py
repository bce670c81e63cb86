"""How much attention every position really gets: dense attention's mass, chunk by chunk."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from h2o_llama._internal import check
from h2o_llama.config import H2OConfig
from h2o_llama.llama import Llama
from h2o_llama.model import Model, Tokens

_OWNER = "chunk_masses"


def chunk_masses(
    model: Model | Llama, tokens: Tokens, *, chunk_size: int, n_threads: int | None = None
) -> Iterator[dict[int, NDArray[np.float32]]]:
    """Read a text with dense attention, and yield what each chunk's queries gave to every position.

    For chunk c in order, for every layer with attention: float32 [n_head_kv, min((c + 1) * S, N)], the sum of the
    softmax weights of the chunk's queries and of the query heads of a KV head's group. A head's numbers add up to
    queries times query heads of the group.

    It is computed in a second context on the model's weights, whose memory sets have room for the whole text: then H2O
    is dense attention, and a position's score is the mass that it received. The difference of two scores is good to
    about 1e-7 of the larger one.

    Raises ValueError if an argument is bad; H2OError if H2O cannot work with the model.
    """
    ids = check.token_ids(_OWNER, tokens, model.n_vocab)
    if len(ids) < 1:
        raise ValueError(f"[{_OWNER}] tokens must not be empty")
    return _chunk_masses(model, ids, check.integer(_OWNER, "chunk_size", chunk_size, 1), n_threads)


def _chunk_masses(
    model: Model | Llama, ids: NDArray[np.int32], chunk_size: int, n_threads: int | None
) -> Iterator[dict[int, NDArray[np.float32]]]:
    with _dense_llama(model, len(ids), chunk_size, n_threads) as llm:
        before = {layer: np.zeros((1, 0), np.float32) for layer in llm.kv.layers}
        for start in range(0, len(ids), chunk_size):
            llm.eval(ids[start : start + chunk_size])
            masses = {}
            for layer in before:
                scores = llm.kv.scores(layer)
                masses[layer] = scores.copy()
                masses[layer][:, :start] -= before[layer]
                before[layer] = scores
            yield masses


def _dense_llama(model: Model | Llama, n_tokens: int, chunk_size: int, n_threads: int | None) -> Llama:
    """A second context that attends to everything and scores it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # that its memory sets are large is meant
        return Llama(
            model,
            n_ctx=n_tokens,
            n_threads=n_threads,
            h2o=H2OConfig(local_window=0, heavy_budget=n_tokens, scorer="sum", lookup_budget=0, chunk_size=chunk_size),
        )
