"""The text that is measured, as tokens, and the windows that it is cut into."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from h2o_llama._demo.document import standard_library_text
from h2o_llama._internal import check
from h2o_llama.model import Model

# Their sources are longer than a piece in every supported Python.
_MODULES = """
argparse difflib doctest inspect mailbox optparse pickle pydoc shutil smtplib socket statistics subprocess tarfile
threading traceback
"""
_PIECE_BYTES = 32_768


def default_text() -> bytes:
    """The beginnings of some modules of this Python's standard library, 512 KiB of source.

    Raises OSError if this interpreter carries no source files.
    """
    return b"".join(standard_library_text(_PIECE_BYTES, module) for module in _MODULES.split())


def halves(text: bytes) -> tuple[bytes, bytes]:
    """The half on which settings may be chosen, and the one that is kept back, cut at the end of a paragraph."""
    middle = text.find(b"\n\n", len(text) // 2)
    middle = len(text) // 2 if middle < 0 else middle
    return text[:middle], text[middle:]


class Text:
    """A text, tokenised once as llama-perplexity does it: `tokens`, int32 [n], and the SHA-256 of its bytes.

    `name` is what tables call it. `tokens` include the model's own ones around a text.
    """

    def __init__(self, model: Model, text: bytes, name: str) -> None:
        self.name = name
        self.tokens: NDArray[np.int32] = np.array(model.tokenize(text), dtype=np.int32)
        self.sha256 = hashlib.sha256(text).hexdigest()
        self._bos = model.token_bos if model.tokenize(b"")[:1] == [model.token_bos] else None

    def n_windows(self, size: int, most: int) -> int:
        """How many windows of `size` tokens the text has, at most `most`, which is at least 1.

        Raises ValueError if it has none, or `most` is bad.
        """
        most = check.integer("eval", "windows", most, 1)
        n = len(self.tokens) // size
        if n == 0:
            raise ValueError(
                f"[eval] the text has {len(self.tokens):,} tokens, but a window needs {size:,}: give a longer text or "
                "a smaller length"
            )
        return min(n, most)

    def identity(self, size: int, most: int) -> dict[str, Any]:
        """Values that identify these windows by text and number."""
        return {"text_sha256": self.sha256, "windows": self.n_windows(size, most)}

    def windows(self, size: int, most: int) -> NDArray[np.int32]:
        """Windows that are evenly spread over the text and do not overlap, int32 [n, size].

        The first is the text's beginning, the last, if there are several, its end. A BOS, if the model begins texts so,
        replaces their first token. Parameters and errors as in `n_windows`, which is n.
        """
        n = self.n_windows(size, most)
        starts = np.linspace(0, len(self.tokens) - size, n).astype(np.int64)
        windows: NDArray[np.int32] = self.tokens[starts[:, None] + np.arange(size)]
        if self._bos is not None:
            windows[:, 0] = self._bos
        return windows
