"""What `h2o-llama serve` asks of Python, and gives to it: texts that are kept, and documents (src/server/texts.h)."""

import hashlib
import json
import os
import re
import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from h2o_llama._internal.check import INT32_MAX
from h2o_llama._internal.terminal import warn
from h2o_llama._prompt import shared_prefix
from h2o_llama.documents import text_of
from h2o_llama.errors import BusyError, H2OError
from h2o_llama.library._library import Library, day_of
from h2o_llama.library._texts import Text
from h2o_llama.models._template import noon
from h2o_llama.sequence._keeping import LEAST_NEW, LEAST_TOKENS, MARKS, NAME_TOKENS, About, name_of
from h2o_llama.sequence.snapshot import Snapshot, SnapshotOrigin

_ID = re.compile("[0-9a-f]{24}")

_LAST = 10
"""The priority of what writes texts: the model's threads go first."""


class ServerTexts:
    """The texts of one model and its settings, a view of them for each owner: nobody is given the text of another one.

    The server's threads call it, several at a time. Without a folder it only reads documents.
    """

    n_least, n_new, n_name, marks = LEAST_TOKENS, LEAST_NEW, NAME_TOKENS, MARKS

    def __init__(self, folder: Path | None, origin: SnapshotOrigin, tells_day: bool, cache_reuse: int = 0) -> None:
        self.has_library = folder is not None
        self.tells_day = tells_day  # the chat template
        self._cache_reuse = cache_reuse
        self._folder = folder
        self._origin = origin
        self._reading = threading.Lock()  # clients' documents take turns: each may take gigabytes
        self._given = dict[int, Callable[[], None]]()
        self._writer = ThreadPoolExecutor(1, initializer=_goes_last)  # and so the threads that it starts
        if folder is not None:
            self._texts = Library(folder)

    def close(self) -> None:
        """Wait until all that was given is written."""
        self._writer.shutdown()

    def _library(self, key: str) -> Library:
        """That of an owner. Without a key it is what the user's other programs have."""
        return self._texts.of_owner(hashlib.sha256(key.encode()).hexdigest()[:32] if key else "")

    def take(
        self, key: str, ids: NDArray[np.int32], n_least: int, n_ctx: int
    ) -> tuple[NDArray[np.int32], bytes] | None:
        """Tokens and state of the text that shares most tokens with a prompt, if a slot can hold it."""
        snapshot, _ = self._library(key).take(self._origin, ids, n_ctx, n_least, cache_reuse=self._cache_reuse)
        return None if snapshot is None else (snapshot.tokens, snapshot.state)

    def time(self, key: str, now: int, ids_at: Callable[[int], NDArray[np.int32]]) -> int:
        """Noon of the day on which a prompt continues a text; `now` if there is none. `ids_at` is the prompt then."""
        day = day_of(self._library(key), self._origin, ids_at(now), lambda day: ids_at(int(noon(day))))
        return now if day is None else int(noon(day))

    def give(self, slot: int, *text: Any) -> None:
        """Write a text, as `write` takes it, in turn. If a slot gives faster than is written, its newest text is."""
        self._given[slot] = partial(self.write, *text)
        self._writer.submit(lambda: self._given.pop(slot, lambda: None)())

    def write(
        self,
        key: str,
        ids: NDArray[np.int32],
        state: NDArray[np.uint8],
        rows: Iterable[Sequence[int]],
        points: Sequence[tuple[int, int]],
        begin: str,
    ) -> None:
        """Add a text to the owner's library, if it is new. Warns if it cannot be written."""
        try:
            library = self._library(key)
            found = library.find(self._origin, ids, INT32_MAX)  # another slot or program may have given it
            if found is None or found.n_tokens + LEAST_NEW <= len(ids):
                whole: Any = state.data  # bytes would be a copy
                text = Snapshot(self._origin, ids, None, whole)
                name, day = name_of(begin), found.text.contents.day if found else None
                library.add(text, rows, points, name, day, About("", name))
                library.flush()
        except (H2OError, OSError, ValueError, MemoryError) as error:
            warn(f"{str(error) or 'there is not enough memory'}: a text is not kept")

    def like(self, key: str, ids: NDArray[np.int32]) -> str:
        """JSON: by the ids of texts, how many of a prompt's first tokens each has."""
        texts = self._library(key).stored(self._origin)
        return json.dumps({text.id: shared_prefix(text.contents.tokens, ids) for text in texts})

    def answer(self, key: str, id: str | None, removes: bool = False) -> tuple[int, str]:
        """The status and the JSON of GET /h2o/library; with an id, of GET and DELETE /h2o/library/{id}."""
        try:
            library = self._library(key)
            if id is None:
                found = {"n_bytes": library.n_bytes, "limit_bytes": library.limit_bytes}
                listed = [_listed(text) for text in library.texts(self._origin)]  # another model's would be read again
                return 200, json.dumps({**found, "texts": listed})
            with suppress(ValueError):  # by its whole id
                if _ID.fullmatch(id) and removes and library.remove(id) > 0:
                    return 200, json.dumps({"success": True})
            for text in [] if removes else library.stored(self._origin):
                if text.id == id:
                    return 200, json.dumps({"tokens": text.contents.tokens.tolist()})
            status, kind, message = 404, "not_found_error", f"there is no text {id!r:.40}: GET /h2o/library lists them"
        except BusyError as error:
            status, kind, message = 503, "unavailable_error", str(error)
        except (H2OError, OSError, ValueError, MemoryError) as error:
            status, kind, message = 500, "server_error", str(error) or "there is not enough memory"
            warn(message)
        return status, json.dumps({"error": {"code": status, "message": message, "type": kind}})

    def read(self, name: str, content: bytes) -> tuple[int, str]:
        """The status and the JSON of POST /h2o/document: the text of a file, which is kept in a library's folder."""
        try:
            with self._reading:
                return 200, json.dumps({"text": text_of(content, name or "the document", self._folder)})
        except ValueError as error:
            return 400, json.dumps({"error": {"code": 400, "message": str(error), "type": "invalid_request_error"}})


def _listed(text: Text) -> dict[str, Any]:
    used = text.used.astimezone().isoformat(timespec="seconds")
    about = {"document": text.document, **text.about._asdict()}
    return {**about, "id": text.id, "name": text.name, "n_tokens": text.n_tokens, "n_bytes": text.n_bytes, "used": used}


def _goes_last() -> None:
    if sys.platform == "linux":
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _LAST)
