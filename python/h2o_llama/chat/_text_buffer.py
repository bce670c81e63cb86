"""From the bytes of tokens to text that is certain."""

from __future__ import annotations

import codecs
from collections.abc import Sequence


class TextBuffer:
    """Turns the bytes of tokens into text. Keeps back what may be the beginning of a character or a stop string."""

    def __init__(self, stop: Sequence[str]) -> None:
        self._stop = stop
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._held = ""
        self.stopped = False

    @property
    def n_held(self) -> int:
        """Characters that are kept back."""
        return len(self._held)

    def push(self, piece: bytes) -> str:
        """The text that is certain now. After a stop string `stopped` is set and no more text may be pushed."""
        return self._release(self._decoder.decode(piece))

    def finish(self) -> str:
        """The text that was kept back until the end; a broken character becomes U+FFFD."""
        text = self._release(self._decoder.decode(b"", final=True)) + self._held
        self._held = ""
        return text

    def _release(self, new: str) -> str:
        text = self._held + new
        # Of stop strings that overlap, the one that is complete first: so tokens do not matter.
        found = [(i + len(stop), i) for stop in self._stop if (i := text.find(stop)) >= 0]
        if found:
            self.stopped = True
            self._held = ""
            return text[: min(found)[1]]
        n_held = max((_overlap(text, stop) for stop in self._stop), default=0)
        n_certain = len(text) - n_held
        self._held = text[n_certain:]
        return text[:n_certain]


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` that is a beginning of `stop`."""
    return next((n for n in range(min(len(text), len(stop)), 0, -1) if text.endswith(stop[:n])), 0)
