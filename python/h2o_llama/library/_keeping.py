"""Listing and removing texts. Callers that remove must hold the library's lock."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path

from h2o_llama.library._blocks import BlockFiles
from h2o_llama.library._texts import Stored, Text, TextFiles


def n_bytes(texts: TextFiles, blocks: BlockFiles) -> int:
    """How much all files take."""
    return sum(blocks.digests().values()) + sum(_size(path) for path in texts.paths())


def described(texts: TextFiles, blocks: BlockFiles) -> list[Text]:
    """The texts, last used first."""
    stored, _ = texts.read()
    sizes = blocks.digests()
    n_users = Counter(digest for text in stored for digest in set(text.contents.blocks))
    stored.sort(key=lambda text: text.used, reverse=True)
    return [_described(text, sizes, n_users) for text in stored]


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


def remove(texts: TextFiles, blocks: BlockFiles, chosen: list[Stored]) -> None:
    """Remove texts, and the blocks that no other one has."""
    if not chosen:
        return
    for text in chosen:
        text.path.unlink(missing_ok=True)
    others, problems = texts.read()
    if _has_unread(problems):
        return  # their blocks are not known: make_room removes the rest
    used = {digest for text in others for digest in text.contents.blocks}
    for digest in {digest for text in chosen for digest in text.contents.blocks} - used:
        blocks.remove(digest)


def make_room(texts: TextFiles, blocks: BlockFiles, limit: int) -> None:
    """Remove damaged texts, least recently used texts down to a limit, and blocks that nobody has."""
    stored, problems = texts.read()
    dropped = set[str]()
    for path, problem in problems.items():
        if not isinstance(problem, OSError):  # the file itself may be fine
            path.unlink(missing_ok=True)
    sizes = blocks.digests()
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
        blocks.remove(digest)
    blocks.remove_unfinished()
    texts.remove_unfinished()


def _has_unread(problems: Mapping[Path, Exception]) -> bool:
    """Whether there are texts that could not be read, which is not to say that they are damaged."""
    return any(isinstance(problem, OSError) for problem in problems.values())


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
