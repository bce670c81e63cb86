"""The measured model and text, and the contexts that read it."""

import hashlib
import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from h2o_llama._demo.document import standard_library_text
from h2o_llama._internal import check
from h2o_llama._internal.machine import available_cpus, describe, kv_bytes_at_least, physical_memory
from h2o_llama.eval._losses import piece_tokens
from h2o_llama.eval._settings import Setting
from h2o_llama.llama import Llama
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


Row = dict[str, Any]
Progress = Callable[[int, int], object]


class Subject:
    """Weights, a text, and contexts that differ in their attention only.

    All share `weights`. The text is tokenised once as llama-perplexity does it, with the model's own tokens around it;
    `text_name` is what tables call it. `machine` is the machine, versions and number of
    threads.
    """

    def __init__(
        self,
        model: str | os.PathLike[str] | Model | Llama,
        text: bytes,
        text_name: str,
        *,
        chunk_size: int,
        n_threads: int | None,
        n_gpu_layers: int | None,
    ) -> None:
        self._common: dict[str, Any] = {"n_threads": n_threads, "n_gpu_layers": n_gpu_layers}
        self.weights = Model._of(model, n_gpu_layers=n_gpu_layers)
        self.text_name = text_name
        self.sha256 = hashlib.sha256(text).hexdigest()
        self._tokens: NDArray[np.int32] = np.array(self.weights.tokenize(text), dtype=np.int32)
        bos = self.weights.token_bos
        self._bos = bos if self.weights.tokenize(b"")[:1] == [bos] else None
        self.chunk_size = chunk_size
        self.fingerprint = self.weights.fingerprint
        self.machine = describe() | {"threads": available_cpus() if n_threads is None else n_threads}

    def close(self) -> None:
        """Free the weights."""
        self.weights.close()

    def windows(self, size: int, most: int) -> NDArray[np.int32]:
        """Windows that are evenly spread over the text and do not overlap, int32 [n, size], at most `most`.

        The first is the text's beginning, the last, if there are several, its end. A BOS, if the model begins texts so,
        replaces their first token.

        Raises ValueError if the text has none, or `most` is bad.
        """
        n = min(check.integer("eval", "windows", most, 1), len(self._tokens) // size)
        if n == 0:
            raise ValueError(
                f"[eval] the text has {len(self._tokens):,} tokens, but a window needs {size:,}: give a longer text or "
                "a smaller length"
            )
        starts = np.linspace(0, len(self._tokens) - size, n).astype(np.int64)
        windows: NDArray[np.int32] = self._tokens[starts[:, None] + np.arange(size)]
        if self._bos is not None:
            windows[:, 0] = self._bos
        return windows

    def open(self, setting: Setting, n_ctx: int) -> Llama:
        """A context for `n_ctx` tokens."""
        context = {"n_ctx": n_ctx, "n_batch": max(4096, self.chunk_size), "n_ubatch": self.chunk_size, **self._common}
        h2o = None if setting.h2o is None else setting.h2o.in_chunks_of(self.chunk_size)
        return Llama(self.weights, h2o=h2o, **context)

    def rounds(self, settings: Sequence[Setting], n_ctx: int) -> list[Sequence[Setting]]:
        """The settings, as many at a time as fit into half of the machine's memory together with dense attention."""
        core = self.weights._handle
        # Logits are in llama.cpp's buffers for a chunk and here for a piece.
        logits = 4 * core.n_vocab * (self.chunk_size + piece_tokens(core.n_vocab))
        has_index = any(s.h2o is not None and s.h2o.has_key_index for s in settings)
        each = kv_bytes_at_least(core, n_ctx, "f16", "f16", has_index) + logits
        room = (physical_memory() or 0) // 2 - core.size - each
        size = max(1, room // each)
        return [settings[i : i + size] for i in range(0, len(settings), size)]
