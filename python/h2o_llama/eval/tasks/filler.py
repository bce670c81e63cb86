"""Lines to hide something in."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import accumulate, cycle, islice
from random import Random

from h2o_llama import _check
from h2o_llama.demo.document import standard_library_text

# filler(n): n lines, each with its newline.
Filler = Callable[[int], list[bytes]]

# Big single files in every supported Python.
_MODULES = """
argparse ast configparser difflib doctest enum inspect mailbox optparse pickle pickletools shutil statistics subprocess
tarfile typing
"""
_MODULE_BYTES = 32_768


@lru_cache(maxsize=1)
def _standard_library_lines() -> tuple[bytes, ...]:
    return tuple(b"".join(standard_library_text(_MODULE_BYTES, module) for module in _MODULES.split()).splitlines())


def make_filler(haystack: bytes | None, rng: Random) -> Filler:
    """Lines of a text from a random one on, over again from its start when it ends.

    Raises ValueError if the text is empty; OSError if there is no text and this interpreter has no source files.
    """
    if not isinstance(haystack, bytes | None):
        raise _check.bad_argument("make_item", "haystack", "bytes or None", haystack)
    lines = _standard_library_lines() if haystack is None else tuple(haystack.splitlines())
    if not any(map(bytes.strip, lines)):
        raise ValueError("[make_item] haystack has no text to hide anything in")
    start = rng.randrange(len(lines))
    return lambda n: [line + b"\n" for line in islice(cycle(lines), start, start + n)]


def hide(lines: Sequence[bytes], needles: Sequence[tuple[float, bytes]]) -> bytes:
    """Put each (depth, needle) at the line start that is nearest to its depth, 0 the text's start, 1 its end.

    Needles of the same place keep their order.
    """
    starts = list(accumulate(map(len, lines), initial=0))
    pieces: list[list[bytes]] = [[] for _ in starts]
    for depth, needle in needles:
        pieces[_nearest(starts, depth * starts[-1])].append(needle)
    return b"".join(b"".join((*found, line)) for found, line in zip(pieces, (*lines, b""), strict=True))


def _nearest(ascending: Sequence[int], x: float) -> int:
    right = bisect_left(ascending, x)
    is_left = right > 0 and x - ascending[right - 1] < ascending[right] - x
    return right - 1 if is_left else right


def spread(depth: float, n: int) -> list[float]:
    """Depths of n needles: the first at `depth`, the others evenly over the rest, the end left out."""
    return [depth + (1 - depth) * i / n for i in range(n)]
