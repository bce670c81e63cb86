"""What a sequence was: going back to it, taking it along, and keeping what it shares with another text."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from contextlib import AbstractContextManager

import numpy as np
from numpy.typing import NDArray

from h2o_llama import _core
from h2o_llama._internal import check
from h2o_llama.errors import H2OError
from h2o_llama.model import Tokens
from h2o_llama.sequence.engine import Engine
from h2o_llama.sequence.rewinding import keep_prefix, rewind
from h2o_llama.sequence.snapshot import Snapshot, restore_snapshot, take_snapshot


class Past(ABC):
    """These methods of a `Sequence`."""

    _engine: Engine
    _n_texts = 0  # how often the text was replaced or cut

    def _check_text(self, owner: str, n_texts: int) -> None:
        """Raise H2OError if the text was replaced or cut since: a generator cannot go on after it."""
        if self._n_texts != n_texts:
            raise H2OError(
                f"[{owner}] the sequence now holds another text: generate again, or use a sequence for each text"
            )

    @abstractmethod
    def use_context(self) -> AbstractContextManager[_core.Context]:
        """The core's context, for one call."""

    @abstractmethod
    def keep_logits(self, logits: NDArray[np.float32] | None) -> None:
        """What `logits` returns from now on."""

    @property
    def tokens(self) -> NDArray[np.int32]:
        """The sequence, as token ids, int32 [n_tokens]."""
        with self.use_context() as context:
            return context.tokens

    def snapshot(self) -> Snapshot:
        """The sequence as it is now, to go back to or to go on from elsewhere.

        Raises
        ------
        H2OError
            If llama.cpp cannot save it.
        MemoryError
            If a second copy of K and V does not fit.
        """
        with self.use_context() as context:
            return take_snapshot(context, self._engine.origin)

    def restore(self, snapshot: Snapshot) -> None:
        """Put a snapshot in the place of the sequence: all that follows is as if its tokens had just been evaluated.

        Bit for bit, on the same machine; `kv.stats` begins anew. `n_ctx`, `n_batch` and threads may be others. With
        `record`, `kv.history` is there if it was recorded for the snapshot, too.

        Raises
        ------
        ValueError
            If it is of another model or configuration, or does not fit into n_ctx.
        H2OError
            If llama.cpp refuses it. In either case the sequence stays as it was.
        """
        with self.use_context() as context:
            restore_snapshot(context, snapshot, self._engine.origin, self._engine.n_ctx)
            self._n_texts += 1
            self.keep_logits(None if snapshot.logits is None else snapshot.logits[np.newaxis].copy())

    def rewind(self, n_tokens: int) -> None:
        """Keep the first tokens of the sequence, as if those after them had never been there.

        That is possible down to the last prompt token, as attention that was scored cannot be taken back; further back
        only to the end of the last closed chunk, with `record` of every one; and to 0. Without H2O everywhere, but for
        recurrent models.

        Parameters
        ----------
        n_tokens : int
            How many to keep. There are no logits then, unless it is all of them.

        Raises
        ------
        ValueError
            If the sequence has fewer.
        H2OError
            If it is not possible there; the message names the nearest positions that are. Nothing has changed then.
        """
        with self.use_context() as context:
            n_before = context.n_tokens
            rewind(context, n_tokens, bool(self._engine.params.record))
            self._n_texts += context.n_tokens < n_before
            if not context.has_logits:
                self.keep_logits(None)

    def reuse(self, tokens: Tokens) -> int:
        """Keep what the sequence shares with a text that is to be evaluated: `n_cached = llm.reuse(tokens)`.

        The sequence goes back to where the two part, or as little before as `rewind` can. What is kept stays as it was
        computed, generated tokens as generated. Then `llm.eval(tokens[n_cached:])`, or `generate`, computes the rest: a
        turn of a chat costs what is new in it.

        Parameters
        ----------
        tokens : sequence of int, or integer ndarray [n]
            Token ids: the whole text.

        Returns
        -------
        int
            How many of the tokens are in the sequence now. All only if it was this text already and has its logits;
            else at least the last one is left to be evaluated.
        """
        with self.use_context() as context:
            n_cached = keep_prefix(context, check.token_ids("Llama.reuse", tokens, self._engine.model.n_vocab))
            self._n_texts += 1
            if not context.has_logits:
                self.keep_logits(None)
            return n_cached

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the sequence to a file: `snapshot().save(path)`. See `Snapshot.save`."""
        self.snapshot().save(path)

    def load(self, path: str | os.PathLike[str]) -> None:
        """Go on from a file that `save` has written: `restore(Snapshot.load(path))`. See there."""
        self.restore(Snapshot.load(path))
