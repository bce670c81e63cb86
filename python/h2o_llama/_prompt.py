"""Prompts: token ids and rows of embeddings; and the prefix that a prompt shares with a sequence."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypedDict, cast, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

from h2o_llama import _core
from h2o_llama._internal import check
from h2o_llama.errors import H2OError, UnsupportedModelError

Tokens = Sequence[int] | NDArray[np.integer[Any]]

_TOLD = 8
"""Tokens of each of two texts, where they part."""

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
    def of_tokens(cls, ids: NDArray[np.int32]) -> "Prompt":
        return cls(ids, np.empty((0, 0), dtype=np.float32))

    @classmethod
    def of_rows(cls, rows: NDArray[np.float32]) -> "Prompt":
        return cls(_core.embedding_ids(rows), rows)

    @classmethod
    def join(cls, parts: "Sequence[Prompt]") -> "Prompt":
        """Concatenate parts, at least one."""
        rows = [part.rows for part in parts if len(part.rows) > 0]
        return cls(np.concatenate([part.ids for part in parts]), np.concatenate(rows) if rows else parts[0].rows)

    def __len__(self) -> int:
        return len(self.ids)

    @overload
    def __getitem__(self, part: int) -> int: ...

    @overload
    def __getitem__(self, part: slice) -> "Prompt": ...

    def __getitem__(self, part: int | slice) -> "int | Prompt":
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

    def runs(self) -> "Iterator[Prompt]":
        """Its parts that are either tokens or rows."""
        ends = np.flatnonzero(np.diff(self.ids < 0)) + 1
        for start, stop in zip([0, *ends.tolist()], [*ends.tolist(), len(self)], strict=True):
            yield self[start:stop]


def make_prompt(owner: str, model: _core.Model, tokens: Tokens | None, embeddings: ArrayLike | None = None) -> Prompt:
    """A prompt of either. Raises ValueError if a token or number is invalid."""
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


def check_rewind(owner: str, context: _core.Context, n_tokens: int, keep_history: bool) -> int:
    """The argument of `Sequence.rewind`."""
    n_now = context.n_tokens
    n = check.integer(owner, "n_tokens", n_tokens, 0, n_now)
    below, above = context.rewind_points(n)
    if below != n:
        kv = _core.KV.of_context(context)
        is_grid = kv is not None and kv.info.rewind_step > 0
        advice = "" if keep_history or is_grid else "; with keep_history=True more boundaries between chunks are kept"
        raise H2OError(
            f"[{owner}] the sequence of {n_now} tokens cannot be rewound to {n}, as later tokens left traces: the "
            f"nearest possible are {below} and {above}{advice}"
        )
    return n


def shared_prefix(a: Tokens, b: Tokens) -> int:
    """How many tokens two texts begin with in common, each a sequence of ints or an array.

    Examples
    --------
    >>> shared_prefix([1, 2, 3], [1, 2, 4, 5])
    2
    """
    n = min(len(a), len(b))
    differ = np.flatnonzero(np.asarray(a[:n]) != np.asarray(b[:n]))
    return int(differ[0]) if len(differ) else n


class CacheStop(TypedDict):
    """Where a known text and a prompt part: the first token that differs, and the characters from there on of both."""

    token: int
    kept: str
    asked: str


def where_they_part(model: _core.Model, kept: NDArray[np.int32], ids: NDArray[np.int32]) -> CacheStop | None:
    """None if one continues the other."""
    n = shared_prefix(kept, ids)
    if n == min(len(kept), len(ids)):
        return None
    parts = (part[n:][:_TOLD] for part in (kept, ids))
    told, asked = (model.detokenize(part[part >= 0].tolist(), True) for part in parts)
    return {"token": n, "kept": told.decode(errors="replace"), "asked": asked.decode(errors="replace")}


def as_generated(model: _core.Model, now: NDArray[np.int32], ids: NDArray[np.int32]) -> NDArray[np.int32]:
    """The same text as `ids`, with the tokens of `now` where their text is the same.

    A model may spell a word in other tokens than the tokenizer. They stay then, and need not be read again.
    """
    n = m = shared_prefix(now, ids)  # now[:n] and ids[:m] are the same text
    i, j, said, told = n, m, b"", b""  # the text after it in each
    while (said.startswith(told) and j < len(ids)) or (told.startswith(said) and i < len(now)):
        is_told = said.startswith(told) and j < len(ids)
        id_ = int(ids[j] if is_told else now[i])
        piece = b"" if id_ < 0 else model.detokenize([id_], False)
        if not piece:  # neither special tokens nor images are text
            break
        if is_told:
            told, j = told + piece, j + 1
        else:
            said, i = said + piece, i + 1
        if said == told:
            shared = shared_prefix(now[i:], ids[j:])
            n, m = i, j = i + shared, j + shared
            said = told = b""
    return np.concatenate([now[:n], ids[m:]])


def n_reusable(context: _core.Context, ids: NDArray[np.int32], has_logits: bool) -> int:
    """How much of the context's sequence, with its last token's logits or not, can be kept for these ids."""
    now = context.tokens
    n = shared_prefix(now, ids)
    if n == len(ids) and not (n == len(now) and has_logits):
        n = max(n - 1, 0)  # the last token's logits are wanted
    return context.rewind_points(n)[0]
