"""A folder of texts that were read; what a sequence takes from it, and gives to it."""

import copy
import json
import os
import shutil
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from datetime import date, datetime
from itertools import accumulate, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from h2o_llama._internal import check
from h2o_llama._internal.terminal import warn
from h2o_llama._prompt import Tokens, shared_prefix
from h2o_llama.documents import forget_texts
from h2o_llama.errors import DamagedFileError, H2OError
from h2o_llama.library import _texts
from h2o_llama.library._index import HEAD_TOKENS, Index
from h2o_llama.library._texts import Text
from h2o_llama.models._named import cache_folder
from h2o_llama.sequence import _snapshot_file
from h2o_llama.sequence._keeping import LEAST_NEW, UNKNOWN, About
from h2o_llama.sequence._moving import find_pieces, n_moved
from h2o_llama.sequence.snapshot import Snapshot, SnapshotOrigin

if TYPE_CHECKING:
    from h2o_llama.model import Model

_OWNER = "Library"

_MOST_BYTES = 8_000_000_000

_WRITE_SECONDS = 3600
"""A block that is older, and of no text, was left by a process that was killed."""

_SECTIONS = ("known", "tokens", "blocks")
"""Of the file of a text that is given away."""

_READERS = 4
"""Threads that read blocks: they are checked and decompressed meanwhile."""

_LEAST_SHARE = 1 / 16
"""Of a text, to be worth loading all of it."""

_DATE_TOKENS = 32
"""The most that a date takes."""

_LEAST_DIGITS = 6
"""Of an id, to name a text."""


def default_folder() -> Path:
    """Where the library of this user is: the environment's H2O_LLAMA_LIBRARY, or in the cache folder."""
    named = os.environ.get("H2O_LLAMA_LIBRARY")
    return Path(named) if named else cache_folder() / "library"


class Found(NamedTuple):
    """A text that begins as another one does, and the number of its tokens to return to."""

    text: Text
    n_tokens: int


class Library:
    """A folder of texts that were read, for any number of programs at the same time.

    `Llama(…, library=Library(…))` loads the beginning of a prompt from it, and adds each text that it has read. Common
    prefixes are stored once. If texts take more than `limit_bytes`, the least recently used ones are removed.

    Raises ValueError if an argument is bad, or `folder` is a file; OSError if the folder cannot be made.

    Parameters
    ----------
    folder : str or os.PathLike, optional
        It is made if it is missing. Only this user can read its files. By default `default_folder()`.
    limit_bytes : int, optional
        By default the environment's H2O_LLAMA_LIBRARY_BYTES; else 8 GB, but at most a tenth of the disk's free space
        and the library's own together.

    Examples
    --------
    >>> with Llama("qwen2.5-coder-0.5b", library=True) as llm:  # doctest: +SKIP
    ...     llm(document + question)["usage"]["prompt_tokens_details"]
    {'cached_tokens': 29952}
    >>> [text.name for text in Library().texts()]  # doctest: +SKIP
    ['document.txt']
    """

    def __init__(self, folder: str | os.PathLike[str] | None = None, *, limit_bytes: int | None = None) -> None:
        if folder is not None and (not isinstance(folder, str | os.PathLike) or not os.fspath(folder)):
            raise check.bad_argument(_OWNER, "folder", "the path of a folder", folder)
        self.folder = default_folder() if folder is None else Path(os.path.expanduser(folder))
        if self.folder.exists() and not self.folder.is_dir():
            raise ValueError(f"[{_OWNER}] {self.folder} is a file, expected a folder")
        set_by = os.environ.get("H2O_LLAMA_LIBRARY_BYTES") if limit_bytes is None else None
        if set_by is not None and not set_by.isdecimal():
            raise ValueError(f"[{_OWNER}] H2O_LLAMA_LIBRARY_BYTES must be a number of bytes, got {set_by!r:.40}")
        limit = limit_bytes if set_by is None else int(set_by)
        self._limit = None if limit is None else check.integer(_OWNER, "limit_bytes", limit, 0, 1 << 62)
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._blocks = _texts.BlockFiles(self.folder / "blocks")
        self._index = Index(self.folder)
        self._owner = ""
        self._shown: str | None = None  # all owners' texts
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
        return min(_MOST_BYTES, (free + self._taken(None)) // 10)

    @property
    def n_bytes(self) -> int:
        """How much it takes."""
        return self._taken(self._shown)

    def of_owner(self, owner: str) -> "Library":
        """A view of the texts of one owner alone, in the same folder and within the same limit."""
        view = copy.copy(self)
        view._owner = view._shown = owner
        view._waiting = None
        return view

    # --- its texts

    def texts(self, origin: SnapshotOrigin | None = None) -> list[Text]:
        """Its texts, of all owners, last used first. Unreadable ones are left out: `verify` names them.

        `origin`, such as a snapshot's, leaves only texts that fit a model and its settings.
        """
        self.flush()
        with self._index.reading() as connection:
            stored, _ = self._index.texts(connection, self._shown, None if origin is None else _texts.key_of(origin))
            sizes, n_users = self._index.blocks(connection), self._index.n_users(connection)
        stored.sort(key=lambda text: text.used, reverse=True)
        documents = _texts.documents_of(stored)
        sized = []
        for text in stored:
            blocks = set(text.contents.blocks)
            own = text.n_bytes + sum(sizes.get(name, 0) for name in blocks if n_users.get(name) == 1)
            size = text.n_bytes + sum(sizes.get(name, 0) for name in blocks)
            sized.append(replace(text, n_bytes=size, n_own_bytes=own, document=documents[text.id]))
        return sized

    def remove(self, *names: str) -> int:
        """Remove texts: by their name, their id or its first digits, six at least. Returns how many there were.

        With a document go the texts that continue it, such as questions about it. Raises ValueError if a name means no
        text, or several documents. Nothing is removed then. Raises BusyError if another program does not let go of the
        library.
        """
        texts = self.texts()
        ids = {self._named("remove", name).id for name in names}
        return self._remove([text.id for text in texts if ids & {text.id, text.document}])

    def clear(self) -> int:
        """Remove all texts, and whatever else was left. Returns how many there were."""
        self.flush()
        try:
            with self._index.reading() as connection:
                texts, problems = self._index.texts(connection, self._shown)
            return self._remove([*(text.id for text in texts), *problems], every=True)
        except DamagedFileError:
            self._index.discard()
            return self._remove([], every=True)

    def _remove(self, ids: list[str], every: bool = False) -> int:
        with self._index.changing() as connection:
            n = self._index.remove(connection, ids)
        self._sweep(every=every)
        forget_texts(self.folder)
        return n

    def verify(self, *, repair: bool = False) -> list[str]:
        """Read every text, while others read and write. Returns a line about each one that is damaged.

        Texts of earlier versions are not read. With `repair` damaged ones are removed, and blocks that no text has.
        Raises BusyError if another program does not let go of the library.
        """
        check.flag(f"{_OWNER}.verify", "repair", repair)
        self.flush()
        try:
            with self._index.reading() as connection:
                texts, problems = self._index.texts(connection)
            read = set[str]()
            for text in (text for text in texts if not text.is_old):
                try:
                    for digest in set(text.contents.blocks) - read:
                        self._blocks.read(digest, is_verified=True)
                        read.add(digest)
                except (OSError, ValueError) as error:
                    problems[text.id] = DamagedFileError(f"text {text.id[:8]} ({text.name}): {error}")
            with self._index.reading() as connection:
                left, damaged = self._index.texts(connection)
            bad = problems.keys() & {*damaged, *(text.id for text in left)}  # others were removed meanwhile
            if repair:
                self._remove([*bad], every=True)
            return [str(problems[id]) for id in bad]
        except DamagedFileError as error:
            if repair:
                self._index.discard()
                self._remove([], every=True)
            return [str(error)]

    def export_text(self, name: str, path: str | os.PathLike[str]) -> None:
        """Write a text to one file, which `import_text` adds to another library.

        Raises ValueError if the name means no text, or several; OSError or DamagedFileError if the text cannot be read,
        or the file cannot be written.
        """
        self.flush()
        contents = self._named("export_text", name).contents
        blocks = [self._read_block(digest) for digest in contents.blocks]
        about = {"kind": "text", "key": _texts.key_of(contents.origin)}
        known = json.dumps({"contents": contents.to_json(), "sizes": [len(block) for block in blocks]})
        sections = (
            _snapshot_file.Section(known.encode(), 1),
            _snapshot_file.Section(contents.tokens.astype("<i4").tobytes(), 4),
            _snapshot_file.Section(b"".join(blocks), contents.origin.number_bytes),
        )
        _snapshot_file.write(path, about, dict(zip(_SECTIONS, sections, strict=True)))

    def import_text(self, path: str | os.PathLike[str], model: "Model | None" = None) -> Text:
        """Add the text of a file that `export_text` has written. Only the same model with the same settings finds it.

        Raises ValueError if it was written by a version whose states this one cannot read, or is of another model than
        the one given; DamagedFileError if it is damaged, or of another kind; OSError if it cannot be read, or the
        library cannot be written; H2OError if it is larger than the library may be.
        """
        self.flush()
        about, (known, tokens, content) = _snapshot_file.read(path, _SECTIONS)
        try:
            if about["kind"] != "text":
                raise ValueError("it is not a text of a library")
            values = json.loads(known)
            contents, sizes = _texts.Contents.from_json(values["contents"], tokens), values["sizes"]
            ends = [*accumulate(sizes, initial=0)]
            blocks = [content[start:end] for start, end in pairwise(ends)]
            digests = tuple(map(_texts.digest_of, blocks))
            if digests != contents.blocks or ends[-1] != len(content):
                raise ValueError("its blocks are not what their names say")
        except (TypeError, KeyError, ValueError, RecursionError) as error:
            raise _snapshot_file.damaged(path, str(error)) from error
        if about.get("key") != _texts.key_of(contents.origin):
            raise ValueError(
                f"[{_OWNER}.import_text] {os.fspath(path)} was written by another version: export it with this one"
            )
        if model is not None and contents.origin.fingerprint != model.fingerprint:
            raise ValueError(
                f"[{_OWNER}.import_text] {os.fspath(path)} is of {contents.origin.model} (fingerprint "
                f"{contents.origin.fingerprint[:12]}), expected one of {os.path.basename(model.model_path)} "
                f"({model.fingerprint[:12]}), which is loaded"
            )
        self._keep(contents, lambda: blocks)
        for text in self.texts():
            if text.id == contents.id(self._owner):
                return text
        raise H2OError(f"[{_OWNER}.import_text] another program has removed the text of {os.fspath(path)} already")

    # --- for Llama

    def find(self, origin: SnapshotOrigin, ids: NDArray[np.int32], n_ctx: int) -> Found | None:
        """The text with which a prompt, int32 [n], has most tokens in common, of this origin; None if none is worth it.

        A text that is still being written is not found.
        """
        return _best(self.stored(origin, ids), ids, n_ctx)

    def n_known(self, origin: SnapshotOrigin, ids: Tokens) -> int:
        """The number of a prompt's tokens that `find` finds, in a context of any size."""
        found = self.find(origin, np.asarray(ids, dtype=np.int32), check.INT32_MAX)
        return found.n_tokens if found else 0

    def stored(self, origin: SnapshotOrigin | None = None, like: NDArray[np.int32] | None = None) -> list[Text]:
        """The owner's texts of this origin, or of any, last used first; `like`: that may begin as it does."""
        key = None if origin is None else _texts.key_of(origin)
        with self._index.reading() as connection:
            texts, _ = self._index.texts(connection, self._owner, key, like)
        return sorted(texts, key=lambda text: text.used, reverse=True)

    def load(self, found: Found) -> Snapshot:
        """The text's state, as it was read. Its last use is now.

        Raises DamagedFileError or OSError if a file is damaged or missing. Damaged files are removed, so that they can
        be written again.
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
            raise DamagedFileError(f"[{_OWNER}] text {found.text.id} does not fit its blocks: {error}") from error
        self._index.use(found.text.id)
        known = np.frombuffer(logits, dtype="<f4").astype(np.float32) if contents.has_logits else None
        return Snapshot(contents.origin, contents.tokens, known, state)

    def take(
        self,
        origin: SnapshotOrigin,
        ids: NDArray[np.int32],
        n_ctx: int,
        n_least: int,
        use: Callable[[Snapshot], object] = lambda snapshot: None,
        cache_reuse: int = 0,
    ) -> tuple[Snapshot | None, NDArray[np.int32]]:
        """Load what `find` finds, if a prompt has at least n_least tokens of it, and call `use` with it.

        With cache_reuse > 0 rather a text that has `cache_reuse` tokens more, in pieces of at least that length.
        Without it, the tokens of the text that begins most like the prompt. Where a checksum is wrong the text is
        removed, with a warning. After any other failure, of memory say, it stays.
        """
        tried = set[str]()  # a text that cannot be loaded stays in a library that cannot be written
        nearest = np.empty(0, dtype=np.int32)
        try:
            while True:
                texts = [text for text in self.stored(origin, ids) if text.id not in tried]
                found = _best(texts, ids, n_ctx)
                if cache_reuse > 0:
                    n_exact = max(n_least, found.n_tokens if found else 0)
                    found = _with_pieces(self.stored(origin), ids, n_ctx, cache_reuse, n_exact, tried) or found
                if found is None or found.n_tokens < n_least:
                    tokens = (text.contents.tokens for text in texts)
                    return None, max(tokens, key=lambda text: shared_prefix(text, ids), default=nearest)
                tried.add(found.text.id)
                try:
                    snapshot = self.load(found)
                    use(snapshot)
                    return snapshot, snapshot.tokens
                except FileNotFoundError:  # it was removed meanwhile, as when a longer text has taken its place
                    self._forget(found.text)
                except DamagedFileError:
                    self._forget(found.text)
                    raise
        except (OSError, ValueError, H2OError, MemoryError) as error:
            warn(f"{str(error) or 'there is not enough memory'}: the text is read again")
        return None, nearest

    def _forget(self, text: Text) -> None:
        """A text that cannot be loaded, where that can be written."""
        with suppress(OSError, H2OError), self._index.changing(1.0) as connection:
            self._index.remove(connection, [text.id])

    def add(
        self,
        snapshot: Snapshot,
        rows: Iterable[Sequence[int]],
        points: Sequence[tuple[int, int]],
        name: str,
        day: str | None = None,
        about: About = UNKNOWN,
    ) -> None:
        """Write a text, by a thread of its own. `flush` waits for it.

        `rows` are the places of token rows in its state, `points` ranges of positions that it can be rewound to. `day`
        is that of a date in it, by default today.
        """
        h2o = snapshot.origin.h2o
        places = (_texts.Rows(*row) for row in rows)
        layout = _texts.layout_of(
            len(snapshot.state), places, snapshot.n_tokens, h2o.chunk_size if h2o else None, points
        )
        self.flush()
        known = (snapshot.origin, name, snapshot.tokens, tuple(points), snapshot.logits is not None, layout, ())
        contents = _texts.Contents(*known, day or date.today().isoformat(), about)
        self._waiting = self._writer.submit(self._write, contents, snapshot)

    def flush(self) -> bool:
        """Wait until everything is written. Returns whether it could be.

        Warns
        -----
        H2OWarning
            If a text could not be.
        """
        waiting, self._waiting = self._waiting, None
        problem = None if waiting is None else waiting.result()
        if problem is not None:
            warn(f"{problem}: this text is not kept")
        return problem is None

    # --- writing

    def _write(self, contents: _texts.Contents, snapshot: Snapshot) -> str | None:
        """Returns why it could not be written."""
        logits = b"" if snapshot.logits is None else snapshot.logits.astype("<f4").tobytes()

        def blocks() -> Iterator[bytes]:
            for i, content in enumerate(contents.layout.split(snapshot.state)):
                yield logits + content if i == len(contents.layout.cuts) else content

        try:
            self._keep(contents, blocks)
        except (OSError, ValueError, H2OError, MemoryError) as error:
            return str(error) or "there is not enough memory"
        return None

    def _keep(self, contents: _texts.Contents, blocks: Callable[[], Iterable[bytes]]) -> None:
        """Write a text, and remove others beyond the limit. Raises H2OError if it is larger by itself."""
        limit = self.limit_bytes
        if contents.layout.size > limit:
            raise H2OError(f"[{_OWNER}] its {contents.layout.size:,} bytes are more than limit_bytes={limit:,}")
        try:
            self._write_blocks(contents, blocks)
        except DamagedFileError:  # the index
            self._index.discard()
            self._write_blocks(contents, blocks)
        if self._taken(None) > limit:
            self._make_room(limit * 9 // 10)
        self._sweep()

    def _write_blocks(self, contents: _texts.Contents, blocks: Callable[[], Iterable[bytes]]) -> None:
        """Blocks first, while others write theirs; then the index, whose lock is held for this moment alone."""
        origin, width = contents.origin, contents.origin.number_bytes
        names, new = list[str](), list[str]()
        try:
            for block in blocks():
                digest, is_new = self._blocks.add(block, width)
                names.append(digest)
                new += [digest] * is_new
            with self._index.changing() as connection:
                others, _ = self._index.texts(connection, self._owner, _texts.key_of(origin), contents.tokens)
                contents = replace(contents, blocks=tuple(names))
                text = Text(contents.id(self._owner), self._owner, datetime.now(), 0, contents)
                replaced = _replaced(text, others)
                n_uses = sum(other.n_uses + 1 for other in others if other.id in {*replaced, text.id})
                for digest, block in zip(names, blocks(), strict=True):
                    if not self._blocks.path(digest).exists():  # another program has removed the text that had it
                        self._blocks.add(block, width)
                sizes = {digest: self._blocks.path(digest).stat().st_size for digest in names}
                self._index.add(connection, replace(text, n_uses=n_uses), sizes)
                self._index.remove(connection, replaced)
        except BaseException:
            self._drop(new)
            raise

    def _drop(self, names: list[str]) -> None:
        """Remove blocks of a text that could not be written, unless another program has a text of them by now."""
        try:
            with self._index.changing() as connection:
                for name in set(names) - self._index.blocks(connection).keys():
                    self._blocks.remove(name)
        except OSError:  # then no other program could add one
            for name in names:
                self._blocks.remove(name)

    def _taken(self, owner: str | None) -> int:
        try:
            with self._index.reading() as connection:
                return self._index.n_bytes(connection, owner)
        except DamagedFileError:  # the next text begins a new one
            return 0

    def _make_room(self, limit: int) -> None:
        """Remove damaged texts, and of all owners down to a limit twins, then the least recently used texts."""
        with self._index.changing() as connection:
            stored, problems = self._index.texts(connection)
            sizes = self._index.blocks(connection)
            kept, n, dropped = set[str](), 0, list(problems)
            stored.sort(key=lambda text: text.used, reverse=True)
            twins = _twins(stored)
            for text in sorted(stored, key=lambda text: text.id in twins):
                needed = set(text.contents.blocks)
                n += sum(sizes.get(name, 0) for name in needed - kept) + text.n_bytes
                if n > limit and kept:
                    dropped.append(text.id)
                else:
                    kept |= needed
            self._index.remove(connection, dropped)

    def _sweep(self, *, every: bool = False) -> None:
        """Remove blocks that no text has, also those of a process that was killed while it wrote.

        Texts are out of the index by then, whatever stops this. `every`: also blocks that may belong to a text that is
        being written, which writes them again.
        """
        with self._index.changing() as connection:
            sizes, users = self._index.blocks(connection), self._index.n_users(connection)
            unused = sizes.keys() - users.keys()
            if every or time.time() > self._blocks.looked + _WRITE_SECONDS:
                self._blocks.looked = time.time()
                unused |= self._blocks.left(0 if every else _WRITE_SECONDS) - users.keys()
            for name in unused:
                self._blocks.remove(name)
            connection.executemany("DELETE FROM blocks WHERE name = ?", [(name,) for name in unused])

    def _read_block(self, digest: str) -> bytes:
        try:
            return self._blocks.read(digest)
        except DamagedFileError:
            self._blocks.remove(digest)
            raise

    def _named(self, method: str, name: str) -> Text:
        """The text of this id, or of the only document whose name this is or whose id begins so."""
        with self._index.reading() as connection:
            texts, _ = self._index.texts(connection, self._shown)
        documents = _texts.documents_of(texts)
        found = [text for text in texts if text.id == name] or [
            text
            for text in texts
            if name == text.name
            or os.path.abspath(name) == os.path.join(text.about.folder, text.name)
            or (len(name) >= _LEAST_DIGITS and text.id.startswith(name))
        ]
        if len(found) > 1:
            roots = {documents[text.id] for text in found}
            found = [text for text in texts if text.id in roots]
        if len(found) > 1:
            places = ", ".join(f"{text.id[:8]} {text.contents.about.folder}".strip() for text in found)
            raise ValueError(f"[{_OWNER}.{method}] {name!r} names {len(found)} documents: choose by id: {places}")
        if not found:
            raise ValueError(
                f"[{_OWNER}.{method}] there is no text {name!r} in {self.folder}, expected a name or {_LEAST_DIGITS} "
                "digits of an id or more: `h2o-llama library list` lists them"
            )
        return found[0]


def _best(texts: Iterable[Text], ids: NDArray[np.int32], n_ctx: int) -> Found | None:
    """The text that is most of use for a prompt, if one is worth it, and fits into n_ctx."""
    found = (Found(text, text.contents.n_usable(ids)) for text in texts if text.n_tokens <= n_ctx)
    worth = (each for each in found if each.n_tokens > each.text.n_tokens * _LEAST_SHARE)
    return max(worth, key=lambda each: (each.n_tokens, -each.text.n_tokens), default=None)


def _with_pieces(
    texts: Iterable[Text], ids: NDArray[np.int32], n_ctx: int, least: int, n_exact: int, without: Collection[str]
) -> Found | None:
    """The text that has most tokens of a prompt, in pieces of at least `least`; at least `least` more than n_exact."""
    fitting = (text for text in texts if text.n_tokens <= n_ctx and text.id not in without)
    found = (Found(text, n_moved(find_pieces(text.contents.tokens, ids, 0, 0, least))) for text in fitting)
    best = max(found, key=lambda each: each.n_tokens, default=None)
    return best if best and best.n_tokens >= n_exact + least else None


def _twins(texts: Iterable[Text]) -> set[str]:
    """The ids of texts, the last used first, that were asked once and share half of their rows with a newer one."""
    newer: dict[tuple[str, str, bytes], list[NDArray[np.int32]]] = {}
    twins = set[str]()
    for text in texts:
        tokens = text.contents.tokens
        others = newer.setdefault((text.owner, _texts.key_of(text.contents.origin), tokens[:HEAD_TOKENS].tobytes()), [])
        if text.n_uses == 0 and any(2 * shared_prefix(other, tokens) >= len(tokens) for other in others):
            twins.add(text.id)
        others.append(tokens)
    return twins


def _replaced(text: Text, others: list[Text]) -> list[str]:
    """The ids of texts that this one continues, as a conversation does its earlier turns.

    A smaller context may have no room for this one: of each beginning the shortest of at most twice its length stays.
    """
    covered = sorted((other.n_tokens, other.id) for other in others if text.contents.covers(other.contents))
    stay, ids = 0, []
    for n, id in covered:
        if n < 2 * stay:
            ids.append(id)
        else:
            stay = n
    return ids


def day_of(
    library: Library | None,
    origin: SnapshotOrigin,
    ids: Tokens,
    ids_on: Callable[[str], Tokens],
    now: Tokens = (),
    day: str | None = None,
) -> str | None:
    """The day on which most tokens of a prompt are known; None if that is today, as `ids` has it.

    They are known from the library, or from the text `now` that has this `day` in it.
    """
    asked, texts = np.asarray(ids, dtype=np.int32), list[Text]()

    def n_known(ids: Tokens) -> int:
        found = _best(texts, np.asarray(ids, dtype=np.int32), check.INT32_MAX)
        return max(shared_prefix(now, ids), found.n_tokens if found else 0)

    def days() -> Iterator[str]:
        """Of texts that differ from the prompt in a few tokens, as in a date."""
        if day is not None:
            yield day
        for text in texts:
            tokens = text.contents.tokens
            n = shared_prefix(tokens, asked)
            after = asked[n + _DATE_TOKENS :][:_DATE_TOKENS]
            if len(after) > 0 and after.tobytes() in tokens[n:][: 3 * _DATE_TOKENS].tobytes():
                yield text.contents.day

    best, today = None, date.today().isoformat()
    with suppress(OSError, ValueError, H2OError, MemoryError):  # reading the prompt warns of it
        if library is not None and shared_prefix(now, asked) < len(asked) // 2:
            texts += library.stored(origin)
        n = n_known(asked) + LEAST_NEW
        for other in dict.fromkeys(days()) if n < len(asked) // 2 else ():
            if other != today and (n_other := n_known(ids_on(other))) > n:
                n, best = n_other, other
            if n > len(asked) // 2:
                break
    return best


def open_library(owner: str, library: object) -> Library | None:
    """The library that the argument `library` of a `Llama` means."""
    if library is None or library is False or isinstance(library, Library):
        return library or None
    if library is True:
        return Library()
    if isinstance(library, str | os.PathLike):
        return Library(library)
    raise check.bad_argument(owner, "library", "a Library, the path of a folder, True or None", library)
