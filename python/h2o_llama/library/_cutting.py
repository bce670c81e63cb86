"""A state cut into blocks, so that texts with the same beginning have the same blocks.

Most of a state are rows of tokens: K and V by layer, the index of keys, records of boundaries and marks. A block holds
the rows of a range of tokens, of all layers. The rest is one more block.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

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

    Raises
    ------
    ValueError
        If rows overlap, do not ascend or are not within the state, or cuts do not ascend.
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
    def from_json(cls, values: Any) -> Layout:
        """What `to_json` gave. Raises TypeError, KeyError or ValueError if it is anything else."""
        rows = tuple(Rows(*map(_number, row)) for row in values["rows"])
        return cls(_number(values["size"]), rows, tuple(map(_number, values["cuts"])))

    def to_json(self) -> dict[str, Any]:
        return {"size": self.size, "rows": self.rows, "cuts": self.cuts}

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
        found: list[tuple[int, memoryview]] = []
        for parts, block in zip(self._parts(), blocks, strict=True):
            view, begin = memoryview(block), 0
            for part in parts:
                n = part.stop - part.start
                found.append((part.start, view[begin : begin + n]))
                begin += n
            if begin != len(view):
                raise ValueError(f"a block has {len(view)} bytes, expected {begin}")
        found.sort(key=lambda piece: piece[0])
        state = b"".join([piece for _, piece in found])
        if len(state) != self.size:
            raise ValueError(f"the state has {len(state)} bytes, expected {self.size}")
        return state


def cuts_of(n_tokens: int, grid: int, points: Sequence[tuple[int, int]]) -> tuple[int, ...]:
    """Where to cut a text: on the grid, where single positions can be gone back to, and at its end."""
    single = (first for first, last in points if first == last)
    return tuple(sorted({*range(grid, n_tokens, grid), *single, n_tokens}))


def layout_of(
    size: int, rows: Iterable[Rows], n_tokens: int, chunk_size: int | None, points: Sequence[tuple[int, int]]
) -> Layout:
    """Of the state of a text with chunks of this size, or without H2O."""
    cuts = cuts_of(n_tokens, DENSE_GRID, []) if chunk_size is None else cuts_of(n_tokens, chunk_size, points)
    return Layout(size, tuple(sorted(rows)), cuts)


def _number(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(f"expected a number of bytes or tokens, got {value!r:.40}")
    return value
