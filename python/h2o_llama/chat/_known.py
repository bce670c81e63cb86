"""What of a prompt is known already: in the sequence, or in the library."""

from collections.abc import Callable
from contextlib import suppress
from datetime import date

import numpy as np
from numpy.typing import NDArray

from h2o_llama._prompt import CacheStop, Tokens, where_they_part
from h2o_llama.errors import H2OError
from h2o_llama.library._library import Library, day_of
from h2o_llama.sequence._keeping import LEAST_TOKENS
from h2o_llama.sequence._state import State


def library_of(state: State) -> Library | None:
    """Where its texts are kept."""
    return state.engine.library if isinstance(state.engine.library, Library) else None


def known_day(state: State, ids: Tokens, ids_on: Callable[[str], Tokens]) -> str | None:
    """The day on which a prompt continues most of a known text; None if that is today, as `ids` has it."""
    engine, model = state.engine, state.engine.model
    if model.chat_template is None or not model._template.tells_day:
        return None
    with state.used() as context:
        now = context.tokens
    best = day_of(library_of(state), engine.origin, ids, ids_on, now, state.day)
    state.day = best or date.today().isoformat()
    return best


def cache_stop_of(state: State, ids: NDArray[np.int32]) -> CacheStop | None:
    """After `keep`: where the known text, or else the nearest one of the library, differs from a prompt."""
    known, library = state.known, library_of(state)
    if len(known) == 0 and library is not None and len(ids) >= LEAST_TOKENS:
        with suppress(OSError, ValueError, H2OError, MemoryError):
            near = library.nearest(ids, state.engine.origin)
            known = known if near is None else near.contents.tokens
    return where_they_part(state.engine.core, known, ids)
