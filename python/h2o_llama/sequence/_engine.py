"""What the sequences of a `Llama` share, and how they compute a prompt."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from h2o_llama import _core
from h2o_llama._internal import check
from h2o_llama._internal.lock import Lock
from h2o_llama._internal.machine import core_errors
from h2o_llama.errors import BusyError
from h2o_llama.library._library import Library
from h2o_llama.model import Model
from h2o_llama.sequence._params import ContextParams
from h2o_llama.sequence._prompt import Prompt
from h2o_llama.sequence.snapshot import SnapshotOrigin

Progress = Callable[[int, int], object]


def split_calls(params: ContextParams, prompt: Prompt) -> list[tuple[int, int]]:
    """First and last place + 1 of each call: tokens and rows of embeddings cannot share one."""
    calls: list[tuple[int, int]] = []
    first = 0
    for run in prompt.runs():
        calls += [(first + start, first + stop) for start, stop in params.split_calls(len(run))]
        first += len(run)
    return calls


def evaluate(
    context: _core.Context,
    params: ContextParams,
    prompt: Prompt,
    calls: list[tuple[int, int]],
    logits: NDArray[np.float32],
    progress: Progress | None,
    dense_tail: int,
    decode: bool,
) -> None:
    """Append the prompt to the context's sequence, in these calls.

    `logits` [n, n_vocab] gets every token's, [1, n_vocab] the last one's. The other arguments: see `eval`.
    """
    n = len(prompt)
    for start, stop in calls:
        part = prompt[start:stop]

        def report(n_done: int, n_before: int = start) -> None:
            if progress is not None:
                progress(n_before + n_done, n)

        rows = logits[start:stop] if len(logits) == n else logits[: int(stop == n)]
        tail = max(0, dense_tail - (n - stop))
        tell = None if progress is None else report
        if len(part.rows) > 0:
            context.decode_embeddings(part.rows, rows, tail, tell)
        else:
            context.decode(part.ids, rows, tail, decode, tell)
        if params.h2o is None:
            report(stop - start)


class Engine:
    """An open model, its llama.cpp context, and the places for sequences in it.

    A sequence can hold `n_ctx` tokens. `seed` is the default of generation, `origin` what snapshots are of;
    `claim` lets one call in at a time. `library` is where texts are taken from and given to.
    """

    def __init__(
        self,
        model: Model,
        params: ContextParams,
        n_ctx: int,
        seed: int | None,
        claim: Lock,
        library: Library | None = None,
    ) -> None:
        self.model = model
        self.library = library
        self.params = params
        n_learned = model._handle.n_learned_positions
        if 0 < n_learned < n_ctx:
            raise ValueError(
                f"[Llama] n_ctx={n_ctx}, but this model has learned {n_learned} positions and has no others: "
                f"use n_ctx={n_learned} or less"
            )
        self.n_ctx = n_ctx
        if params.n_ctx == 0 and params.has_bounded_memory:
            self.n_ctx = n_learned or check.INT32_MAX
            n_ctx = max(n_ctx, int(params.n_batch))  # a call takes no more
        self.seed = seed
        self.origin = SnapshotOrigin(
            model=os.path.basename(model.model_path),
            fingerprint=model.fingerprint,
            n_vocab=model.n_vocab,
            type_k=params.type_k,
            type_v=params.type_v,
            flash_attn=params.flash_attn,
            h2o=params.h2o,
        )
        self.claim = claim
        # when a text gets longer than what the model was trained for
        self.warns_of_length = params.h2o is not None and params.has_bounded_memory and params.h2o.positions == "text"
        with core_errors():
            first = params.make_context(model._handle, model._rope, n_ctx)
        self._places = [first, *(first.sequence(i) for i in range(1, int(params.n_seq_max)))]
        h2o = params.h2o
        if library is not None and h2o is not None and (not h2o.evict or h2o.cold_store is not None):
            for place in self._places:
                place.keep_boundaries()
        self._owners: list[weakref.ref[object] | None] = [None] * len(self._places)

    @property
    def core(self) -> _core.Model:
        """The core's model. Raises ValueError if it is closed."""
        return self.model._handle

    def take(self, owner: object) -> _core.Context:
        """An empty place, which the owner has until it gives it back or is garbage."""
        for i, ref in enumerate(self._owners):
            if ref is None or ref() is None:
                if ref is not None:
                    self._places[i].clear()
                self._owners[i] = weakref.ref(owner)
                return self._places[i]
        n = len(self._places)
        raise BusyError(
            f"[Llama.sequence] all n_seq_max={n} sequences are in use, that of the Llama itself among them: close one, "
            "or pass a larger n_seq_max to Llama"
        )

    def give_back(self, place: _core.Context) -> None:
        if self.model._core is not None:
            place.clear()
            self._owners[self._places.index(place)] = None

    def close(self) -> None:
        """Free the context and the model, for all sequences."""
        for place in self._places:
            place.close()
        self.model.close()
        if self.library is not None:
            self.library.flush()
