"""What a sequence takes from its library, and gives to it."""

from __future__ import annotations

import os
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from h2o_llama import _core
from h2o_llama._internal import check
from h2o_llama._internal.warn import warn
from h2o_llama.errors import H2OError
from h2o_llama.library._cutting import Rows, layout_of
from h2o_llama.library._texts import name_of
from h2o_llama.library.library import Library
from h2o_llama.sequence._rewinding import keep_prefix, n_kept
from h2o_llama.sequence.snapshot import restore_snapshot, take_snapshot

if TYPE_CHECKING:
    from h2o_llama.sequence.sequence import Sequence

LEAST_TOKENS = 256
"""A shorter text is read faster than it is found."""

LEAST_NEW = 64
"""So many tokens must be new for a text to be written again, or known for it to be loaded."""

MARKS = (512, 256, 128, 64)
"""Where a prompt is cut, before its end: it can be gone back to there, when its end, a question say, is another one.

What is computed again is then at most twice what is new.
"""

NAME_TOKENS = 200
"""At the beginning of a text without a name: they are its name."""


def open_library(owner: str, library: object) -> Library | None:
    """What the argument `library` of a `Llama` says."""
    if library is None or library is False or isinstance(library, Library):
        return library or None
    if library is True:
        return Library()
    if isinstance(library, str | os.PathLike):
        return Library(library)
    raise check.bad_argument(owner, "library", "a Library, the path of a folder, True or None", library)


def needs_marks(context: _core.Context) -> bool:
    """Whether a sequence can go back to where its calls began, but not to any place."""
    kv = _core.KV.of_context(context)
    return kv is not None and kv.info.rewind_step == 0


def split_at_marks(calls: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Calls (start, stop), cut near the end of the last one where a later prompt may part."""
    n = calls[-1][1]
    marks = {n - mark for mark in MARKS if n - mark >= MARKS[-1]}
    edges = sorted({0, *marks, *(stop for _, stop in calls)})
    return list(pairwise(edges))


def take(sequence: Sequence, context: _core.Context, ids: NDArray[np.int32]) -> None:
    """Make the sequence the text of its library that begins most like `ids`, if that has more than it has itself."""
    library, origin = sequence._engine.library, sequence._engine.origin
    if library is None or len(ids) < LEAST_NEW:
        return
    n_ctx = sequence._engine.n_ctx
    found = library.find(origin, ids, n_ctx)
    if found is None or found.n_tokens < n_kept(context, ids) + LEAST_NEW:
        return
    try:
        snapshot = library.load(found)
        restore_snapshot(context, snapshot, origin, n_ctx)
    except FileNotFoundError:  # it was removed meanwhile, as when a longer text has taken its place
        library.discard(found)
        take(sequence, context, ids)
        return
    except (OSError, ValueError, H2OError, MemoryError) as error:
        library.discard(found)
        warn(f"{error}: the text is read again")
        return
    sequence._n_kept = snapshot.n_tokens
    sequence._logits = None if snapshot.logits is None else snapshot.logits[np.newaxis].copy()


def take_or_keep(sequence: Sequence, context: _core.Context, ids: NDArray[np.int32]) -> int:
    """Make the sequence as much of a text as is known, of its own tokens or of its library, and say how much."""
    take(sequence, context, ids)
    n = keep_prefix(context, ids)
    sequence._n_texts += 1
    sequence._n_kept = min(sequence._n_kept, n)
    sequence.n_cached = n
    if not context.has_logits:
        sequence._logits = None
    return n


def give(sequence: Sequence, context: _core.Context) -> None:
    """Add the sequence to its library, if there is enough that is new."""
    library, engine = sequence._engine.library, sequence._engine
    n = context.n_tokens
    if library is None or n < LEAST_TOKENS or n < sequence._n_kept + LEAST_NEW:
        return
    sequence._n_kept = n
    try:
        snapshot = take_snapshot(context, engine.origin)
        rows = [Rows(*row) for row in context.state_rows()]
        points = context.state_points()
    except (H2OError, MemoryError) as error:
        warn(f"{error}: this text is not kept")
        return
    if (snapshot.tokens == -1).any():  # what is not known cannot be found again
        return
    h2o = engine.params.h2o
    layout = layout_of(len(snapshot.state), rows, n, h2o.chunk_size if h2o else None, points)
    library.add(snapshot, layout, points, sequence.text_name or _begin(sequence, snapshot.tokens))


def _begin(sequence: Sequence, tokens: NDArray[np.int32]) -> str:
    begin = tokens[:NAME_TOKENS]
    return name_of(sequence.model.detokenize(begin[begin >= 0]).decode(errors="replace"))
