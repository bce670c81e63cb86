"""What a sequence takes from its library, and gives to it."""

from __future__ import annotations

import os
from collections.abc import Callable
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from h2o_llama import _core
from h2o_llama._internal import check
from h2o_llama._internal.terminal import warn
from h2o_llama.errors import H2OError
from h2o_llama.library._library import Library
from h2o_llama.library._texts import Rows, layout_of, name_of
from h2o_llama.sequence._prompt import n_kept
from h2o_llama.sequence.snapshot import Snapshot, SnapshotOrigin, restore_snapshot, take_snapshot

LEAST_TOKENS = 256
"""A shorter text is read faster than it is found."""

LEAST_NEW = 64
"""The fewest new tokens for writing a text again, and the fewest known ones for loading it."""

MARKS = (512, 256, 128, 64)
"""Where a prompt is cut, before its end: it can be rewound to there when its end, a question say, is another one.

At most twice the number of new tokens is then computed.
"""

NAME_TOKENS = 200
"""At the beginning of a text without a name: they are its name."""


def open_library(owner: str, library: object) -> Library | None:
    """The library that the argument `library` of a `Llama` means."""
    if library is None or library is False or isinstance(library, Library):
        return library or None
    if library is True:
        return Library()
    if isinstance(library, str | os.PathLike):
        return Library(library)
    raise check.bad_argument(owner, "library", "a Library, the path of a folder, True or None", library)


def needs_marks(context: _core.Context) -> bool:
    """Whether a sequence can return to where its calls began, but not to any position."""
    kv = _core.KV.of_context(context)
    return kv is not None and kv.info.rewind_step == 0


def split_at_marks(calls: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Calls (start, stop), cut near the end of the last one where a later prompt may part."""
    n = calls[-1][1]
    marks = {n - mark for mark in MARKS if n - mark >= MARKS[-1]}
    edges = sorted({0, *marks, *(stop for _, stop in calls)})
    return list(pairwise(edges))


def take(
    library: Library | None, origin: SnapshotOrigin, n_ctx: int, context: _core.Context, ids: NDArray[np.int32]
) -> Snapshot | None:
    """Make a sequence the text that begins most like `ids`, if that has more than it has itself, and return it."""
    if library is None or len(ids) < LEAST_NEW:
        return None
    n_least = n_kept(context, ids) + LEAST_NEW
    return library.take(
        origin, ids, n_ctx, n_least, lambda snapshot: restore_snapshot(context, snapshot, origin, n_ctx)
    )


def give(
    library: Library,
    origin: SnapshotOrigin,
    chunk_size: int | None,
    context: _core.Context,
    name: str,
    detokenize: Callable[[NDArray[np.int32]], bytes],
) -> None:
    """Add a sequence, with chunks of this size or without H2O. A text without a name has its beginning as one."""
    try:
        snapshot = take_snapshot(context, origin)
        rows = [Rows(*row) for row in context.state_rows()]
        points = context.state_points()
    except (H2OError, MemoryError) as error:
        warn(f"{error}: this text is not kept")
        return
    if (snapshot.tokens == -1).any():  # unknown tokens cannot be found again
        return
    begin = snapshot.tokens[:NAME_TOKENS]
    name = name or name_of(detokenize(begin[begin >= 0]).decode(errors="replace"))
    library.add(snapshot, layout_of(len(snapshot.state), rows, snapshot.n_tokens, chunk_size, points), points, name)
