"""The index of a library: one SQLite file with a write-ahead log, for any number of programs at the same time."""

import errno
import sqlite3
import time
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from datetime import datetime
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from h2o_llama._internal.atomic import alone_with
from h2o_llama.errors import BusyError, DamagedFileError, H2OError
from h2o_llama.library._texts import FORMAT, VERSION, Contents, Text, key_of, make_private

_SECONDS = 60.0
"""How long a change waits for another program's, which takes milliseconds."""

HEAD_TOKENS = 64
"""At the beginning of a text: it is looked for by their hash."""

_STEPS = {
    (2, "texts, and the blocks that they share"): """
CREATE TABLE texts (
    id TEXT PRIMARY KEY, owner TEXT, key TEXT, head INTEGER, used REAL,
    contents TEXT, tokens BLOB, checksum INTEGER, n_bytes INTEGER);
CREATE INDEX heads ON texts (owner, key, head);
CREATE TABLE parts (text TEXT, block TEXT, PRIMARY KEY (text, block)) WITHOUT ROWID;
CREATE INDEX users ON parts (block);
CREATE TABLE blocks (name TEXT PRIMARY KEY, n_bytes INTEGER) WITHOUT ROWID
""",
    (3, "the version that wrote a text"): "ALTER TABLE texts ADD COLUMN version TEXT NOT NULL DEFAULT ''",
    (4, "how often a text was continued"): "ALTER TABLE texts ADD COLUMN n_uses INTEGER NOT NULL DEFAULT 0",
}
"""By format and its name: the statements that turn the format before into it."""


class Index:
    """The file. A connection is open for one use at a time, so threads and forked processes share nothing.

    Raises H2OError if the file is of a later version; DamagedFileError if it is damaged; BusyError if another program
    does not let go of it; OSError if it cannot be read or written.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / "texts" / "index.sqlite"
        if self.path.exists():
            with suppress(OSError, H2OError), self._errors():
                with closing(self._connect("mode=ro", 1.0)) as connection:
                    is_old = 0 < self._format(connection) < FORMAT
                if is_old:
                    with self.changing(1.0):
                        pass  # it is brought to the present format

    # --- connections

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.OperationalError as error:
            if "locked" in str(error):
                raise BusyError(
                    f"[Library] another program has been writing to {self.path} for {_SECONDS:.0f} seconds: try again"
                ) from error
            if str(error).startswith(("no such", "malformed", "unsupported file format")):
                raise DamagedFileError(f"[Library] {self.path} is damaged: {error}") from error
            raise OSError(errno.EIO, f"[Library] {self.path} cannot be written or read ({error})") from error
        except sqlite3.DatabaseError as error:
            raise DamagedFileError(f"[Library] {self.path} is damaged: {error}") from error

    def _connect(self, mode: str, seconds: float) -> sqlite3.Connection:
        name = f"{self.path.absolute().as_uri()}?{mode}"
        return sqlite3.connect(name, uri=True, timeout=seconds, isolation_level=None)

    def _format(self, connection: sqlite3.Connection) -> int:
        """0 if it has no tables yet: no file, or that of a process that was killed before it made them."""
        # in this order: another program may make both, in one transaction, meanwhile
        has_tables = connection.execute("SELECT * FROM sqlite_master").fetchone() is not None
        found = int(connection.execute("PRAGMA user_version").fetchone()[0])
        if found > FORMAT:
            raise H2OError(
                f"[Library] {self.path} is of format {found}, this h2o-llama reads format {FORMAT}: update h2o-llama "
                "or name another folder"
            )
        if has_tables and found < min(_STEPS)[0]:
            raise DamagedFileError(f"[Library] {self.path} is damaged: its format is {found}, expected {FORMAT}")
        return found

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """As the last change has left it. Nobody waits for it; it may be read-only.

        It is empty without a file, and if it is of an earlier format and cannot be changed.
        """
        with self._errors(), closing(self._open_to_read()) as connection:
            yield connection

    def _open_to_read(self) -> sqlite3.Connection:
        """A log that cannot be written may be unreadable: then the file is read without it."""
        for mode in ("mode=rw", "mode=ro", "immutable=1") if self.path.exists() else ():
            with ExitStack() as opened:
                try:
                    connection = opened.enter_context(closing(self._connect(mode, _SECONDS)))
                    connection.execute("BEGIN")
                    if self._format(connection) < FORMAT:  # the transaction begins with the first read
                        break
                    opened.pop_all()
                    return connection
                except sqlite3.OperationalError:
                    if mode == "immutable=1":
                        raise
        empty = sqlite3.connect(":memory:")
        _migrate(empty, 0)
        return empty

    @contextmanager
    def changing(self, seconds: float = _SECONDS) -> Iterator[sqlite3.Connection]:
        """A transaction that no other one overlaps. It is undone if the block raises."""
        with self._errors():
            make_private(self.path.parent)
            with closing(self._connect("mode=rwc", seconds)) as connection:
                if self._format(connection) == 0:
                    with alone_with(self.path):  # SQLite does not wait for another program that does this
                        connection.execute("PRAGMA journal_mode = WAL")
                connection.execute("BEGIN IMMEDIATE")
                try:
                    _migrate(connection, self._format(connection))
                    yield connection
                    connection.execute("COMMIT")
                except BaseException:
                    with suppress(sqlite3.Error):
                        connection.execute("ROLLBACK")
                    raise

    def discard(self) -> None:
        """Remove a damaged file. Blocks stay: texts that are read again find them."""
        for path in self.path.parent.glob(f"{self.path.name}*"):
            path.unlink(missing_ok=True)

    # --- texts

    def texts(
        self,
        connection: sqlite3.Connection,
        owner: str | None = None,
        key: str | None = None,
        like: NDArray[np.int32] | None = None,
    ) -> tuple[list[Text], dict[str, DamagedFileError]]:
        """Texts of an owner, or all; and the errors of damaged texts, by their ids.

        `key` leaves only texts of a model and its settings, `like` only texts that may begin like the ids of a prompt.
        """
        texts, problems = list[Text](), dict[str, DamagedFileError]()
        given = {"owner": owner, "key": key, "head": None if like is None else _head(like)}
        known = {column: value for column, value in given.items() if value is not None}
        where = " AND ".join(["1", *(f"{column} = :{column}" for column in known)])
        rows = connection.execute(
            f"SELECT id, owner, used, n_bytes, version, n_uses, contents, tokens, checksum FROM texts WHERE {where}",
            known,
        )
        for id, of, used, n_bytes, version, n_uses, contents, tokens, checksum in rows:
            try:
                if _checksum(of, contents, tokens) != checksum:
                    raise ValueError("its checksum is wrong")
                about = Contents.from_json(contents, tokens)
                last, is_old = datetime.fromtimestamp(used), version != VERSION
                texts.append(Text(id, of, last, n_bytes, about, is_old, n_uses=n_uses))
            except (TypeError, KeyError, ValueError, RecursionError) as error:
                problems[id] = DamagedFileError(f"[Library] text {id} in {self.path} is damaged: {error}")
        return texts, problems

    def add(self, connection: sqlite3.Connection, text: Text, sizes: dict[str, int]) -> None:
        """A text, or another version of it, whose blocks have these sizes. They are on the disk."""
        contents = text.contents
        about, tokens = contents.to_json(), contents.tokens.astype("<i4").tobytes()
        like = (key_of(contents.origin), _head(contents.tokens), text.used.timestamp())
        size, checksum = len(about) + len(tokens), _checksum(text.owner, about, tokens)
        values = (text.id, text.owner, *like, about, tokens, checksum, size, VERSION, text.n_uses)
        self.remove(connection, [text.id])
        connection.execute(f"INSERT INTO texts VALUES ({', '.join('?' * len(values))})", values)
        connection.executemany("INSERT OR REPLACE INTO blocks VALUES (?, ?)", sizes.items())
        connection.executemany("INSERT INTO parts VALUES (?, ?)", [(text.id, name) for name in sizes])

    def remove(self, connection: sqlite3.Connection, ids: list[str]) -> int:
        """Remove texts. Their blocks are `unused` then, unless others have them. Returns how many texts there were."""
        connection.executemany("DELETE FROM parts WHERE text = ?", [(id,) for id in ids])
        return connection.executemany("DELETE FROM texts WHERE id = ?", [(id,) for id in ids]).rowcount

    def use(self, id: str) -> None:
        """Its last use is now, if that can be written."""
        with suppress(OSError, H2OError), self.changing(1.0) as connection:
            connection.execute("UPDATE texts SET used = ?, n_uses = n_uses + 1 WHERE id = ?", (time.time(), id))

    # --- blocks

    def blocks(self, connection: sqlite3.Connection) -> dict[str, int]:
        """The names and sizes of all that the index knows."""
        return dict(connection.execute("SELECT name, n_bytes FROM blocks").fetchall())

    def n_users(self, connection: sqlite3.Connection) -> dict[str, int]:
        """How many texts have each block."""
        return dict(connection.execute("SELECT block, count(*) FROM parts GROUP BY block").fetchall())

    def n_bytes(self, connection: sqlite3.Connection, owner: str | None) -> int:
        """The size of the texts of an owner, or of all."""
        where = "1" if owner is None else "owner = :owner"
        (n,) = connection.execute(
            f"SELECT (SELECT total(n_bytes) FROM texts WHERE {where}) + "
            f"(SELECT total(n_bytes) FROM blocks WHERE name IN "
            f"(SELECT block FROM parts JOIN texts ON text = id WHERE {where}))",
            {"owner": owner},
        ).fetchone()
        return int(n)


def _migrate(connection: sqlite3.Connection, found: int) -> None:
    """From the format that was found to the present one."""
    for (format, _), statements in _STEPS.items():
        if format > found:
            for statement in (*statements.split(";"), f"PRAGMA user_version = {format}"):
                connection.execute(statement)


def _head(tokens: NDArray[np.int32]) -> int:
    return zlib.crc32(tokens[:HEAD_TOKENS].astype("<i4").tobytes())


def _checksum(owner: str, contents: str, tokens: bytes) -> int:
    return zlib.crc32(tokens, zlib.crc32(f"{owner}\n{contents}".encode()))
