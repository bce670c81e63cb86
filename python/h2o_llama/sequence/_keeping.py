"""What of a text is kept in a library, and where it can be continued."""

import re
from itertools import pairwise
from typing import NamedTuple

from h2o_llama import _core
from h2o_llama.documents import ABOUT_A_DOCUMENT

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

_NAME_LENGTH = 40


class About(NamedTuple):
    """What a person knows a text by: its file's folder, how it begins, and the last question about it."""

    folder: str = ""
    begin: str = ""
    question: str = ""


UNKNOWN = About()


def name_of(text: str) -> str:
    """How a text begins, after what all texts begin with: the document, or what the user of a chat says first."""
    said = re.search(r"(?:^|\n)user\n+(.+?)(?:\nassistant\n|$)", text, re.DOTALL)
    begin = said[1] if said and ABOUT_A_DOCUMENT not in text else text.rpartition(ABOUT_A_DOCUMENT)[2]
    line = " ".join(begin.split()).removeprefix("system ")
    return line[:_NAME_LENGTH] + "…" * (len(line) > _NAME_LENGTH)


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
