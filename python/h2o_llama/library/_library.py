"""A folder of texts that were read; what a sequence takes from it, and gives to it."""

from __future__ import annotations

import os
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from pathlib import Path

import filelock
import numpy as np
from numpy.typing import NDArray

from h2o_llama import _core
from h2o_llama._internal import check
from h2o_llama._internal.terminal import warn
from h2o_llama.errors import BusyError, DamagedFileError, H2OError
from h2o_llama.library._texts import (
    BlockFiles,
    Contents,
    Layout,
    Rows,
    Stored,
    Text,
    TextFiles,
    key_of,
    layout_of,
    write_text,
)
from h2o_llama.models._named import cache_folder
from h2o_llama.sequence.snapshot import Snapshot, SnapshotOrigin

_OWNER = "Library"

_MOST_BYTES = 8_000_000_000
_LOCK_SECONDS = 60
_READERS = 4
"""Threads that read blocks: they are checked and decompressed meanwhile."""

_LEAST_SHARE = 1 / 16
"""Of a text, to be worth loading all of it."""

_LEAST_DIGITS = 6
"""Of an id, to name a text."""


def default_folder() -> Path:
    """Where the library of this user is: the environment's H2O_LLAMA_LIBRARY, or in the cache folder."""
    named = os.environ.get("H2O_LLAMA_LIBRARY")
    return Path(named) if named else cache_folder() / "library"


@dataclass(frozen=True)
class Found:
    """A text that begins as another one does, and the number of its tokens to return to."""

    text: Stored
    n_tokens: int


class Library:
    """A folder of texts that were read, for any number of programs at the same time.

    `Llama(…, library=Library(…))` loads the beginning of a prompt from it, and adds each text that it has read. Common
    prefixes are stored once. If texts take more than `limit_bytes`, the least recently used ones are removed.

    Parameters
    ----------
    folder : str or os.PathLike, optional
        It is made if it is missing. Only this user can read its files. By default `default_folder()`.
    limit_bytes : int, optional
        By default the environment's H2O_LLAMA_LIBRARY_BYTES; else 8 GB, but at most a tenth of the disk's free space
        and the library's own together.

    Raises
    ------
    ValueError
        If an argument is bad, or `folder` is a file.
    OSError
        If the folder cannot be made.

    Examples
    --------
    >>> with Llama("qwen2.5-coder-0.5b", library=True) as llm:  # doctest: +SKIP
    ...     llm(document + question)["usage"]["prompt_tokens_details"]
    {'cached_tokens': 29952}
    >>> [text.name for text in Library().texts()]  # doctest: +SKIP
    ['document.txt']
    """

    def __init__(self, folder: str | os.PathLike[str] | None = None, *, limit_bytes: int | None = None) -> None:
        if folder is not None and not isinstance(folder, str | os.PathLike):
            raise check.bad_argument(_OWNER, "folder", "the path of a folder", folder)
        self.folder = default_folder() if folder is None else Path(folder)
        if self.folder.exists() and not self.folder.is_dir():
            raise ValueError(f"[{_OWNER}] {self.folder} is a file, expected a folder")
        if limit_bytes is None:
            limit_bytes = _limit_of_environment()
        self._limit = None if limit_bytes is None else check.integer(_OWNER, "limit_bytes", limit_bytes, 0, 1 << 62)
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._blocks = BlockFiles(self.folder / "blocks")
        self._texts = TextFiles(self.folder / "texts")
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="h2o-library")
        self._waiting: Future[str | None] | None = None

    def __repr__(self) -> str:
        return f"Library({str(self.folder)!r}, limit_bytes={self.limit_bytes})"

    @property
    def limit_bytes(self) -> int:
        """How much it may take."""
        if self._limit is not None:
            return self._limit
        free = shutil.disk_usage(self.folder).free
        return min(_MOST_BYTES, (free + self.n_bytes) // 10)

    @property
    def n_bytes(self) -> int:
        """How much it takes."""
        return sum(self._blocks.digests().values()) + sum(map(_size, self._texts.paths()))

    # --- its texts

    def texts(self) -> list[Text]:
        """Its texts, last used first. Unreadable files are left out: `verify` names them."""
        self.flush()
        stored, _ = self._texts.read()
        sizes = self._blocks.digests()
        n_users = Counter(digest for text in stored for digest in set(text.contents.blocks))
        stored.sort(key=lambda text: text.used, reverse=True)
        return [_described(text, sizes, n_users) for text in stored]

    def remove(self, *names: str) -> int:
        """Remove texts: by their name, their id or its first digits, six at least. Returns how many there were.

        Raises
        ------
        ValueError
            If a name means no text, or several. Nothing is removed then.
        BusyError
            If another program does not let go of the library.
        """
        self.flush()
        with self._alone():
            chosen = {text.path: text for text in (self._named("remove", name) for name in names)}
            self._remove(list(chosen.values()))
        return len(chosen)

    def clear(self) -> int:
        """Remove all texts, and whatever else was left. Returns how many there were."""
        self.flush()
        with self._alone():
            n = len(self._texts.paths())
            self._make_room(0)
        return n

    def verify(self, *, repair: bool = False) -> list[str]:
        """Read every file. Returns a line about each that is damaged, and each text that lacks one.

        With `repair` these are removed, and blocks that no text has. A file that cannot be read at all stays.

        Raises
        ------
        BusyError
            If another program does not let go of the library.
        """
        check.flag(f"{_OWNER}.verify", "repair", repair)
        self.flush()
        self._texts.forget()
        with self._alone():
            texts, problems = self._texts.read()
            lines = [str(problem) for problem in problems.values()]
            there = set(self._blocks.digests())
            for digest in sorted(there):
                try:
                    self._blocks.read(digest, is_verified=True)
                except (OSError, ValueError) as error:
                    there.remove(digest)
                    lines.append(str(error))
                    if repair and not isinstance(error, OSError):
                        self._blocks.remove(digest)
            for text in texts:
                n_missing = len(set(text.contents.blocks) - there)
                if n_missing:
                    lines.append(f"text {text.path.name} ({text.contents.name}) lacks {n_missing} of its blocks")
            if repair:
                self._make_room(sys.maxsize)
        return lines

    # --- for Llama

    def find(self, origin: SnapshotOrigin, ids: NDArray[np.int32], n_ctx: int) -> Found | None:
        """The text with which a prompt, int32 [n], has most tokens in common, of this origin; None if none is worth it.

        A text that is still being written is not found.
        """
        texts, _ = self._texts.read(key_of(origin))
        best = None
        for text in texts:
            n, n_all = text.contents.n_usable(ids), len(text.contents.tokens)
            is_better = best is None or (n, -n_all) > (best.n_tokens, -len(best.text.contents.tokens))
            if is_better and n_all <= n_ctx and n > n_all * _LEAST_SHARE:
                best = Found(text, n)
        return best

    def load(self, found: Found) -> Snapshot:
        """The text's state, as it was read. Its last use is now.

        Raises
        ------
        DamagedFileError, OSError
            If a file is damaged or missing. Damaged files are removed, so that they can be written again.
        """
        contents = found.text.contents
        with ThreadPoolExecutor(_READERS) as readers:
            reading = [readers.submit(self._read_block, digest) for digest in contents.blocks]
        blocks = [block.result() for block in reading]  # all are read by now, and all that are damaged removed
        n_logits = 4 * contents.origin.n_vocab if contents.has_logits else 0
        logits, blocks[-1] = blocks[-1][:n_logits], blocks[-1][n_logits:]
        try:
            state = contents.layout.join(blocks)
        except ValueError as error:
            raise DamagedFileError(f"[{_OWNER}] {found.text.path} does not fit its blocks: {error}") from error
        os.utime(found.text.path)
        known = np.frombuffer(logits, dtype="<f4").astype(np.float32) if contents.has_logits else None
        return Snapshot(contents.origin, contents.tokens, known, state)

    def take(
        self,
        origin: SnapshotOrigin,
        ids: NDArray[np.int32],
        n_ctx: int,
        n_least: int,
        use: Callable[[Snapshot], object] = lambda snapshot: None,
    ) -> Snapshot | None:
        """Load what `find` finds, if a prompt has at least n_least tokens of it, and call `use` with it.

        A text that cannot be read or used is removed, with a warning.
        """
        while True:
            found = self.find(origin, ids, n_ctx)
            if found is None or found.n_tokens < n_least:
                return None
            try:
                snapshot = self.load(found)
                use(snapshot)
                return snapshot
            except FileNotFoundError:  # it was removed meanwhile, as when a longer text has taken its place
                found.text.path.unlink(missing_ok=True)
            except (OSError, ValueError, H2OError, MemoryError) as error:
                found.text.path.unlink(missing_ok=True)
                warn(f"{error}: the text is read again")
                return None

    def add(
        self, snapshot: Snapshot, rows: Iterable[Sequence[int]], points: Sequence[tuple[int, int]], name: str
    ) -> None:
        """Write a text, by a thread of its own. `flush` waits for it.

        `rows` are the places of token rows in its state, `points` ranges of positions that it can be rewound to.
        """
        h2o = snapshot.origin.h2o
        places = (Rows(*row) for row in rows)
        layout = layout_of(len(snapshot.state), places, snapshot.n_tokens, h2o.chunk_size if h2o else None, points)
        self.flush()
        self._waiting = self._writer.submit(self._write, snapshot, layout, tuple(points), name)

    def flush(self) -> None:
        """Wait until everything is written.

        Warns
        -----
        H2OWarning
            If a text could not be.
        """
        waiting, self._waiting = self._waiting, None
        problem = None if waiting is None else waiting.result()
        if problem is not None:
            warn(f"{problem}: this text is not kept")

    # --- writing, one program at a time

    @contextmanager
    def _alone(self) -> Iterator[None]:
        try:
            with filelock.FileLock(self.folder / "lock", timeout=_LOCK_SECONDS):
                self._make_private()
                yield
        except filelock.Timeout as error:
            raise BusyError(
                f"[{_OWNER}] another program has been writing to {self.folder} for {_LOCK_SECONDS} seconds: try again"
            ) from error

    def _make_private(self) -> None:
        """The folder itself may have been there, and be open to others."""
        for name in ("blocks", "texts"):
            (self.folder / name).mkdir(mode=0o700, exist_ok=True)
            if (self.folder / name).stat().st_mode & 0o077:
                (self.folder / name).chmod(0o700)

    def _write(self, snapshot: Snapshot, layout: Layout, points: tuple[tuple[int, int], ...], name: str) -> str | None:
        """Returns why it could not be written."""
        limit = self.limit_bytes
        if layout.size > limit:
            return f"[{_OWNER}] its {layout.size:,} bytes are more than limit_bytes={limit:,}"
        has_logits, origin = snapshot.logits is not None, snapshot.origin
        logits = b"" if snapshot.logits is None else snapshot.logits.astype("<f4").tobytes()
        digests, new = list[str](), list[str]()
        try:
            with self._alone():
                try:
                    for i, content in enumerate(layout.split(snapshot.state)):
                        block = logits + content if i == len(layout.cuts) else content
                        digest, is_new = self._blocks.add(block, origin.number_bytes)
                        digests.append(digest)
                        new += [digest] * is_new
                    contents = Contents(origin, name, snapshot.tokens, points, has_logits, layout, tuple(digests))
                    path = self._texts.path(contents)
                    path.parent.mkdir(parents=True, exist_ok=True)
                    write_text(path, contents)
                except BaseException:
                    for digest in new:
                        self._blocks.remove(digest)
                    raise
                others, _ = self._texts.read(key_of(contents.origin))
                self._remove([text for text in others if contents.covers(text.contents)])
                if self.n_bytes > limit:
                    self._make_room(limit * 9 // 10)
        except (OSError, ValueError, H2OError, MemoryError) as error:
            return str(error) or "there is not enough memory"
        return None

    def _remove(self, chosen: list[Stored]) -> None:
        """Remove texts, and the blocks that no other one has. The caller is alone."""
        if not chosen:
            return
        for text in chosen:
            text.path.unlink(missing_ok=True)
        others, problems = self._texts.read()
        if _has_unread(problems):
            return  # their blocks are not known: _make_room removes the rest
        used = {digest for text in others for digest in text.contents.blocks}
        for digest in {digest for text in chosen for digest in text.contents.blocks} - used:
            self._blocks.remove(digest)

    def _make_room(self, limit: int) -> None:
        """Remove damaged texts, least recently used texts down to a limit, and blocks without a text. As `_remove`."""
        stored, problems = self._texts.read()
        dropped = set[str]()
        for path, problem in problems.items():
            if not isinstance(problem, OSError):  # the file itself may be fine
                path.unlink(missing_ok=True)
        sizes = self._blocks.digests()
        kept, n = set[str](), 0
        stored.sort(key=lambda text: text.used, reverse=True)
        for text in stored:
            needed = set(text.contents.blocks)
            n += sum(sizes.get(digest, 0) for digest in needed - kept) + _size(text.path)
            if n > limit or not needed <= sizes.keys():
                text.path.unlink(missing_ok=True)
                dropped |= needed
            else:
                kept |= needed
        for digest in (dropped & sizes.keys() if _has_unread(problems) else sizes.keys()) - kept:
            self._blocks.remove(digest)
        for path in self.folder.glob("*/*/.*.new"):  # left by a process that was killed while it wrote
            path.unlink(missing_ok=True)

    def _read_block(self, digest: str) -> bytes:
        try:
            return self._blocks.read(digest)
        except DamagedFileError:
            self._blocks.remove(digest)
            raise

    def _named(self, method: str, name: str) -> Stored:
        """The text of this id, or the only one whose name this is or whose id begins so."""
        texts, _ = self._texts.read()
        found = [text for text in texts if text.path.name == name] or [
            text
            for text in texts
            if text.contents.name == name or (len(name) >= _LEAST_DIGITS and text.path.name.startswith(name))
        ]
        if len(found) > 1:
            ids = ", ".join(text.path.name[:8] for text in found)
            raise ValueError(f"[{_OWNER}.{method}] {name!r} names {len(found)} texts: choose by id: {ids}")
        if not found:
            raise ValueError(
                f"[{_OWNER}.{method}] there is no text {name!r} in {self.folder}, expected a name or {_LEAST_DIGITS} "
                "digits of an id or more: `h2o-llama library list` lists them"
            )
        return found[0]


def _limit_of_environment() -> int | None:
    text = os.environ.get("H2O_LLAMA_LIBRARY_BYTES")
    if text is None:
        return None
    if not text.isdecimal():
        raise ValueError(f"[{_OWNER}] H2O_LLAMA_LIBRARY_BYTES must be a number of bytes, got {text!r:.40}")
    return int(text)


def _described(text: Stored, sizes: dict[str, int], n_users: Counter[str]) -> Text:
    contents, blocks, own = text.contents, set(text.contents.blocks), _size(text.path)
    return Text(
        id=text.path.name,
        name=contents.name,
        model=contents.origin.model,
        n_tokens=len(contents.tokens),
        n_bytes=own + sum(sizes.get(digest, 0) for digest in blocks),
        n_own_bytes=own + sum(sizes.get(digest, 0) for digest in blocks if n_users[digest] == 1),
        used=datetime.fromtimestamp(text.used),
    )


def _has_unread(problems: dict[Path, Exception]) -> bool:
    """Whether there are texts that could not be read, which is not to say that they are damaged."""
    return any(isinstance(problem, OSError) for problem in problems.values())


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


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
