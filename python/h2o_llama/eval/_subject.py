"""The measured model and text, the contexts that read it, and the interface of a task."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import Any, Protocol

from h2o_llama._internal.cpus import available_cpus
from h2o_llama._internal.machine import describe
from h2o_llama._internal.memory import kv_bytes_at_least, physical_memory
from h2o_llama.eval._lockstep import piece_tokens
from h2o_llama.eval._settings import Setting
from h2o_llama.eval._text import Text
from h2o_llama.llama import Llama
from h2o_llama.model import Model

Row = dict[str, Any]
Progress = Callable[[int, int], object]


class Subject:
    """Weights, a text, and contexts that differ in their attention only.

    All share `weights`. Everything that is drawn is drawn by `seed`. `machine`
    is the machine, versions and number of threads.
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
        seed: int,
    ) -> None:
        self._common: dict[str, Any] = {"n_threads": n_threads, "n_gpu_layers": n_gpu_layers}
        self.weights = Model._of(model, n_gpu_layers=n_gpu_layers)
        self.text = Text(self.weights, text, text_name)
        self.chunk_size = chunk_size
        self.seed = seed
        self.fingerprint = self.weights.fingerprint
        self.machine = describe() | {"threads": available_cpus() if n_threads is None else n_threads}

    def close(self) -> None:
        """Free the weights."""
        self.weights.close()

    def open(self, setting: Setting, n_ctx: int) -> Llama:
        """A context for `n_ctx` tokens."""
        context = {"n_ctx": n_ctx, "n_batch": max(4096, self.chunk_size), "n_ubatch": self.chunk_size, **self._common}
        h2o = None if setting.h2o is None else setting.h2o.in_chunks_of(self.chunk_size)
        return Llama(self.weights, h2o=h2o, **context)

    def rounds(self, settings: Sequence[Setting], n_ctx: int, contexts_each: int = 1) -> list[Sequence[Setting]]:
        """The settings, as many at a time as fit into half of the machine's memory together with dense attention."""
        core = self.weights._handle
        # Logits are in llama.cpp's buffers for a chunk and here for a piece.
        logits = 4 * core.n_vocab * (self.chunk_size + piece_tokens(core.n_vocab))
        has_index = any(s.h2o is not None and s.h2o.has_key_index for s in settings)
        each = kv_bytes_at_least(core, n_ctx, "f16", "f16", has_index) + logits
        room = (physical_memory() or 0) // 2 - core.size - each
        size = max(1, room // (each * contexts_each))
        return [settings[i : i + size] for i in range(0, len(settings), size)]


class Task(Protocol):
    """One kind of measurement."""

    @property
    def name(self) -> str:
        """ "task" in the rows."""

    @property
    def contexts_each(self) -> int:
        """How many contexts are open for a setting."""

    def variants(self, subject: Subject, n_tokens: int) -> list[Row]:
        """Values that tell a setting's rows of this length apart, and from rows of other options. At least one.

        Raises
        ------
        ValueError
            If the task cannot be done with this text and length. Nothing has been computed then.
        """

    def measure(
        self, subject: Subject, settings: Sequence[Setting], n_tokens: int, progress: Progress
    ) -> Mapping[str, Sequence[Row]]:
        """Results by the settings' names, for each variant."""


def answer(llm: Llama, tokens: list[int], n_generate: int, dense_tail: int) -> bytes:
    """Append a question to the sequence and say the most probable n_generate tokens, fewer if the model ends its text.

    The last `dense_tail` tokens of the question attend to everything kept; without H2O every token does.
    """
    llm.eval(tokens, dense_tail=dense_tail)
    return llm.detokenize(list(islice(llm.generate([], temperature=0), n_generate)))
