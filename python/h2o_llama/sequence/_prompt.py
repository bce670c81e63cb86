"""What a sequence is to read: token ids, and rows of embeddings in places that have no token."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

from h2o_llama import _core
from h2o_llama._internal import check
from h2o_llama.errors import UnsupportedModelError

Tokens = Sequence[int] | NDArray[np.integer[Any]]

_NEEDS_TOKENS = ("deepseek4", "dflash", "graniteswitch")
"""Architectures whose layers look at token ids."""


@dataclass(frozen=True, eq=False)
class Prompt(Sequence[int]):
    """Places of a text: `ids` int32 [n], and `rows` float32 [n_rows, n_embd] of those places whose id is below 0.

    The id of a row is a hash of its bytes, so that two texts can be compared. It is a sequence of these ids.
    """

    ids: NDArray[np.int32]
    rows: NDArray[np.float32]

    @classmethod
    def of_tokens(cls, ids: NDArray[np.int32]) -> Prompt:
        return cls(ids, np.empty((0, 0), dtype=np.float32))

    @classmethod
    def of_rows(cls, rows: NDArray[np.float32]) -> Prompt:
        return cls(_core.embedding_ids(rows), rows)

    @classmethod
    def join(cls, parts: Sequence[Prompt]) -> Prompt:
        """Concatenate parts, at least one."""
        rows = [part.rows for part in parts if len(part.rows) > 0]
        return cls(np.concatenate([part.ids for part in parts]), np.concatenate(rows) if rows else parts[0].rows)

    def __len__(self) -> int:
        return len(self.ids)

    @overload
    def __getitem__(self, part: int) -> int: ...

    @overload
    def __getitem__(self, part: slice) -> Prompt: ...

    def __getitem__(self, part: int | slice) -> int | Prompt:
        if not isinstance(part, slice):
            return int(self.ids[part])
        start, stop, _ = part.indices(len(self))
        first = int(np.count_nonzero(self.ids[:start] < 0))
        ids = self.ids[start:stop]
        return Prompt(ids, self.rows[first : first + int(np.count_nonzero(ids < 0))])

    @property
    def tokens(self) -> NDArray[np.int32]:
        """The ids that are tokens."""
        return self.ids[self.ids >= 0]

    def runs(self) -> Iterator[Prompt]:
        """Its parts that are either tokens or rows."""
        ends = np.flatnonzero(np.diff(self.ids < 0)) + 1
        for start, stop in zip([0, *ends.tolist()], [*ends.tolist(), len(self)], strict=True):
            yield self[start:stop]


def make_prompt(owner: str, model: _core.Model, tokens: Tokens | None, embeddings: ArrayLike | None = None) -> Prompt:
    """A prompt of either. Raises ValueError if a token or a number is none."""
    if isinstance(tokens, Prompt):
        return tokens
    if embeddings is None:
        return Prompt.of_tokens(check.token_ids(owner, cast("Tokens", tokens), model.n_vocab))
    if tokens is not None:
        raise ValueError(f"[{owner}] expected tokens or embeddings, got both: call it twice")
    check_takes_embeddings(owner, model)
    rows = check.float_array(owner, "embeddings", embeddings, [None, model.n_embd_input])
    if not np.isfinite(rows).all():
        raise ValueError(f"[{owner}] embeddings must be finite numbers, got infinity or NaN among them")
    return Prompt.of_rows(rows)


def check_takes_embeddings(owner: str, model: _core.Model) -> None:
    """Raise UnsupportedModelError if the model cannot do without token ids."""
    architecture = model.metadata.get("general.architecture", "")
    if architecture in _NEEDS_TOKENS:
        raise UnsupportedModelError(
            f"[{owner}] {architecture} models need token ids: embeddings cannot take their place"
        )


def text_ids(owner: str, tokens: Any, n_vocab: int) -> NDArray[np.int32]:
    """Token ids, and what `Sequence.tokens` has for rows of embeddings: int32 [n]. Raises ValueError for all else."""
    if isinstance(tokens, np.ndarray) and tokens.dtype == np.int32:
        check.token_ids(owner, np.where(tokens < -1, 0, tokens), n_vocab)
        return tokens
    return check.token_ids(owner, tokens, n_vocab)
