"""What a library knows of a text (tokens, places to rewind to, names of blocks), and the blocks of their states."""

import hashlib
import json
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from datetime import date, datetime
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from h2o_llama._core import UPSTREAM_COMMIT
from h2o_llama._prompt import shared_prefix, text_ids
from h2o_llama.sequence import _snapshot_file
from h2o_llama.sequence._keeping import UNKNOWN, About
from h2o_llama.sequence.snapshot import SnapshotOrigin

DENSE_GRID = 256
"""Tokens of a block without H2O, where a text can be gone back to anywhere."""


class Rows(NamedTuple):
    """Bytes of a state that are n rows of row_bytes each, of the positions from `first` on."""

    offset: int
    first: int
    n: int
    row_bytes: int

    def part(self, start: int, stop: int) -> slice:
        """Bytes of the rows of the positions [start, stop)."""
        begin = min(max(start - self.first, 0), self.n)
        end = min(max(stop - self.first, 0), self.n)
        return slice(self.offset + begin * self.row_bytes, self.offset + end * self.row_bytes)

    @property
    def end(self) -> int:
        return self.offset + self.n * self.row_bytes


@dataclass(frozen=True)
class Layout:
    """Which bytes of a state of `size` bytes are in which block.

    Block i has the rows of the positions from cuts[i - 1], or 0, to cuts[i]; the rest is what `rows` leave out.

    Raises ValueError if rows overlap, do not ascend or are not within the state, or cuts do not ascend.
    """

    size: int
    rows: tuple[Rows, ...]
    cuts: tuple[int, ...]

    def __post_init__(self) -> None:
        end = 0
        for rows in self.rows:
            if min(rows.first, rows.n, rows.row_bytes) < 0 or rows.offset < end or rows.first + rows.n > self.n_tokens:
                raise ValueError(f"impossible rows {rows}")
            end = rows.end
        if end > self.size or any(a >= b for a, b in zip((0, *self.cuts), self.cuts, strict=False)):
            raise ValueError("rows or cuts are not within the state")

    @property
    def n_tokens(self) -> int:
        return self.cuts[-1] if self.cuts else 0

    @classmethod
    def from_json(cls, values: Any) -> "Layout":
        """Of its fields in JSON. Raises TypeError, KeyError or ValueError if it is anything else."""
        rows = tuple(Rows(*map(_number, row)) for row in values["rows"])
        return cls(_number(values["size"]), rows, tuple(map(_number, values["cuts"])))

    def _parts(self) -> Iterator[list[slice]]:
        """The byte ranges of each block, then of the rest. Some are empty."""
        for start, stop in zip((0, *self.cuts), self.cuts, strict=False):
            yield [rows.part(start, stop) for rows in self.rows if rows.first < stop and rows.first + rows.n > start]
        ends = (0, *(rows.end for rows in self.rows))
        begins = (*(rows.offset for rows in self.rows), self.size)
        yield [slice(*part) for part in zip(ends, begins, strict=True)]

    def split(self, state: bytes) -> Iterator[bytes]:
        """The blocks, and the rest."""
        view = memoryview(state)
        for parts in self._parts():
            yield b"".join([view[part] for part in parts])

    def join(self, blocks: Iterable[bytes]) -> bytes:
        """The state of the blocks and the rest. Raises ValueError if one has not the size it must have."""
        pieces: list[tuple[int, memoryview]] = []
        for parts, block in zip(self._parts(), blocks, strict=True):
            view, begin = memoryview(block), 0
            for part in parts:
                end = begin + part.stop - part.start
                pieces.append((part.start, view[begin:end]))
                begin = end
            if begin != len(view):
                raise ValueError(f"a block has {len(view)} bytes, expected {begin}")
        return b"".join([piece for _, piece in sorted(pieces, key=lambda piece: piece[0])])


def layout_of(
    size: int, rows: Iterable[Rows], n_tokens: int, chunk_size: int | None, points: Sequence[tuple[int, int]]
) -> Layout:
    """Of the state of a text with chunks of this size, or without H2O.

    It is cut on the grid of chunks, where single positions can be gone back to, and at its end.
    """
    grid = chunk_size or DENSE_GRID
    single = (first for first, last in points if first == last and chunk_size is not None)
    return Layout(size, tuple(sorted(rows)), tuple(sorted({*range(grid, n_tokens, grid), *single, n_tokens})))


def _number(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(f"expected a number of bytes or tokens, got {value!r:.40}")
    return value


FORMAT = 4
"""Of the index and of the blocks."""

VERSION = f"{FORMAT} {UPSTREAM_COMMIT}"
"""Texts of another one cannot be gone on with."""

_NO_DAY = "2000-01-01"
"""Of a text of an earlier version."""


def key_of(origin: SnapshotOrigin) -> str:
    """A name for all texts that can be gone on with where this one can: model, settings, llama.cpp, format."""
    values = asdict(origin) | {"h2o": None, "flash_attn": origin.flash_attn == "off"}
    del values["model"]  # the name of its file
    if origin.h2o is not None:
        store = "memory" if origin.h2o.cold_store else ""  # where it is does not matter
        values |= {"h2o": origin.h2o.as_text() | {"cold_store": store}, "flash_attn": None}
    known = json.dumps([VERSION, values], sort_keys=True)
    return hashlib.sha256(known.encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Contents:
    """The contents of a text: `blocks` are SHA-256 digests, the last one for everything but rows of tokens.

    `points` are ranges of positions, first and last, to which the text can be rewound; `has_logits` is whether its last
    token's are known. `day` is the date in it, if its chat template writes one.
    """

    origin: SnapshotOrigin
    name: str
    tokens: NDArray[np.int32]
    points: tuple[tuple[int, int], ...]
    has_logits: bool
    layout: Layout
    blocks: tuple[str, ...]
    day: str
    about: About = UNKNOWN

    @classmethod
    def from_json(cls, text: str, tokens: bytes) -> "Contents":
        """What `to_json` gave, and int32 tokens. Raises TypeError, KeyError or ValueError if it is anything else."""
        about = json.loads(text)
        blocks = about["blocks"]
        if not all(isinstance(block, str) and is_digest(block) for block in blocks):
            raise ValueError("it has no names of blocks")
        contents = cls(
            SnapshotOrigin.from_json(about["origin"]),
            str(about["name"]),
            np.frombuffer(tokens, dtype="<i4").astype(np.int32),
            tuple((_number(first), _number(last)) for first, last in about["points"]),
            about["has_logits"] is True,
            Layout.from_json(about["layout"]),
            tuple(blocks),
            max(date.fromisoformat(about.get("day", _NO_DAY)).isoformat(), _NO_DAY),
            About(*map(str, about.get("about", ()))),
        )
        n = len(contents.tokens)
        if contents.layout.n_tokens != n or len(blocks) != len(contents.layout.cuts) + 1:
            raise ValueError("its sizes do not fit")
        if not all(0 < first <= last <= n for first, last in contents.points):
            raise ValueError("its points are not in the text")
        text_ids("Library", contents.tokens, contents.origin.n_vocab)
        return contents

    def to_json(self) -> str:
        """All but the tokens."""
        about = {**vars(self), "origin": self.origin.to_json(), "layout": vars(self.layout)}
        del about["tokens"]
        return json.dumps(about)

    def id(self, owner: str) -> str:
        """Of an owner's text, with its model and settings."""
        begin = (owner + key_of(self.origin)).encode()
        return hashlib.sha256(begin + self.tokens.astype("<i4").tobytes()).hexdigest()[:24]

    def n_usable(self, ids: NDArray[np.int32]) -> int:
        """How many tokens of another text need not be computed."""
        n = shared_prefix(self.tokens, ids)
        if n == len(ids) and not (n == len(self.tokens) and self.has_logits):
            n -= 1  # the last token's logits are wanted
        return max((min(last, n) for first, last in self.points if first <= n), default=0)

    def covers(self, other: "Contents") -> bool:
        """Whether this text continues the other one, and can be rewound to its end and its first mark."""
        n = len(other.tokens)
        if n >= len(self.tokens) or shared_prefix(self.tokens, other.tokens) < n:
            return False
        grid = self.origin.h2o.chunk_size if self.origin.h2o else 1
        marks = [first for first, last in other.points if first == last and first % grid]
        return all(any(first <= point <= last for first, last in self.points) for point in (*marks[:1], n))


def make_private(folder: Path) -> None:
    """Make a folder, if it is missing, that others cannot look into."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if folder.stat().st_mode & 0o077:  # it was there, open to others
        folder.chmod(0o700)


def digest_of(content: bytes) -> str:
    """The name of a block: SHA-256 of the format and the content, in hexadecimal."""
    digest = hashlib.sha256(bytes([FORMAT]))
    digest.update(content)
    return digest.hexdigest()


def is_digest(text: str) -> bool:
    """Whether it can be the name of a block."""
    return len(text) == 64 and set(text) <= set("0123456789abcdef")


@dataclass(frozen=True)
class Text:
    """A text in a library.

    `id` has 24 hex digits; where one is asked for, the first six or more do if no other id begins so. `n_bytes` is the
    size of its files, `n_own_bytes` that of files that no other text has. `used` is when it was last read or continued.
    `owner` is empty, or in a server's library a digest of its API key. A text that `is_old` was read by an earlier
    version, with another llama.cpp or format, and is not found any more. `document` is the id of the shortest text that
    begins as it does: the document, or the conversation, that it continues. `n_uses` is how often it was continued.
    """

    id: str
    owner: str
    used: datetime
    n_bytes: int
    contents: Contents = field(repr=False, compare=False)
    is_old: bool = False
    n_own_bytes: int = 0
    document: str = ""
    n_uses: int = 0

    @property
    def name(self) -> str:
        """Its name when it was read, or its beginning."""
        return self.contents.name

    @property
    def model(self) -> str:
        """The file name of the model that read it."""
        return self.contents.origin.model

    @property
    def n_tokens(self) -> int:
        """Its tokens."""
        return len(self.contents.tokens)

    @property
    def about(self) -> About:
        """Its folder, how it begins, and the last question about it, where they are known."""
        return self.contents.about


def documents_of(texts: Iterable[Text]) -> dict[str, str]:
    """The `document` of each text, by ids: the shortest of the same owner and model that shares half of its tokens."""
    found: dict[str, str] = {}
    shortest: dict[tuple[str, bool, str], list[Text]] = {}
    for text in sorted(texts, key=lambda text: text.n_tokens):
        tokens = text.contents.tokens
        others = shortest.setdefault((text.owner, text.is_old, key_of(text.contents.origin)), [])
        like = (other for other in others if 2 * shared_prefix(other.contents.tokens, tokens) >= other.n_tokens)
        found[text.id] = next((other.id for other in like), text.id)
        others += [text] if found[text.id] == text.id else []
    return found


class BlockFiles:
    """The blocks of a folder: each file is named by its content, so it need not be written again.

    `looked` is when it was looked for what other processes have left.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.looked = 0.0

    def path(self, digest: str) -> Path:
        """Where it is, or would be."""
        return self._folder / digest[:2] / digest

    def left(self, seconds: float) -> set[str]:
        """The names of older blocks. Files that were never completed are removed."""
        found, before = set[str](), time.time() - seconds
        for path in self._folder.glob("??/*"):
            with suppress(FileNotFoundError):
                if path.stat().st_mtime <= before:
                    if is_digest(path.name):
                        found.add(path.name)
                    elif path.name.endswith(".new"):
                        path.unlink()
        return found

    def add(self, content: bytes, width: int) -> tuple[str, bool]:
        """Its digest, and whether it is new. `width` is how many bytes make a number. Raises OSError."""
        digest = digest_of(content)
        path = self.path(digest)
        if path.exists():
            return digest, False
        make_private(self._folder)
        path.parent.mkdir(exist_ok=True)
        about = {"kind": "block", "sha256": digest}
        _snapshot_file.write(path, about, {"content": _snapshot_file.Section(content, width)})
        return digest, True

    def read(self, digest: str, *, is_verified: bool = False) -> bytes:
        """The content. Raises OSError, or DamagedFileError if it is none, damaged, or another block.

        Checksums are looked at in any case; `is_verified` computes the digest, too.
        """
        path = self.path(digest)
        about, (content,) = _snapshot_file.read(path, ("content",))
        if not isinstance(about, dict) or about.get("kind") != "block" or about.get("sha256") != digest:
            raise _snapshot_file.damaged(path, "it is another block")
        if is_verified and digest_of(content) != digest:
            raise _snapshot_file.damaged(path, "its content is not what its name says")
        return content

    def remove(self, digest: str) -> None:
        """It need not be there."""
        self.path(digest).unlink(missing_ok=True)
