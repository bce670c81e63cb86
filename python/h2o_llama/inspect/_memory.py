"""Which tokens of a document each layer and head kept: plain data, from which the reports are drawn."""

from __future__ import annotations

import codecs
from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from h2o_llama._internal.terminal import printable
from h2o_llama.inspect._history import SHADES, MemoryHistory

if TYPE_CHECKING:
    from h2o_llama import Llama


@dataclass(frozen=True)
class Piece:
    """Text of the tokens at positions [start, end): byte tokens may hold a part of a character, and share a piece."""

    start: int
    end: int
    text: str


def split_pieces(tokens: Sequence[bytes]) -> list[Piece]:
    """The shortest pieces whose ends are character boundaries; bytes that are not UTF-8 become U+FFFD."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    pieces = []
    start, text = 0, ""
    for position, token in enumerate(tokens):
        is_last = position == len(tokens) - 1
        text += decoder.decode(token, final=is_last)
        inside_character = bool(decoder.getstate()[0])
        if is_last or not inside_character:
            pieces.append(Piece(start, position + 1, printable(text)))
            start, text = position + 1, ""
    return pieces


def index_at(pieces: Sequence[Piece], position: int) -> int:
    """Which of the pieces has a position."""
    return bisect_right(pieces, position, key=lambda piece: piece.start) - 1


def visible(text: str) -> str:
    """Text for a table cell: white space becomes visible."""
    return text.replace("\n", "⏎").replace("\t", "⇥").replace(" ", "␣")


@dataclass(frozen=True)
class HeadMemory:
    """The heavy hitters of one KV head: positions int32 [k], highest score first, and their scores float32 [k]."""

    layer: int
    head: int
    heavy: NDArray[np.int32]
    scores: NDArray[np.float32]


@dataclass(frozen=True)
class MemoryReport:
    """A document and the current memory set of every layer and KV head.

    The memory sets hold positions below `memory_end`, where the last chunk begins; that chunk is read directly.
    Sinks and local window are the same for every head, so they are here once; both are empty before the first
    memory set is built. `history`, with the same heads in the same order, is there if it was recorded.
    """

    title: str
    pieces: tuple[Piece, ...]
    n_tokens: int
    chunk_size: int
    memory_size: int
    memory_end: int
    sinks: range
    local: range
    heads: tuple[HeadMemory, ...]
    history: MemoryHistory | None = None

    def select(self, layer: int | None = None, head: int | None = None) -> list[HeadMemory]:
        """A layer's heads, a head of every layer, a single head, or all. Raises ValueError if there is none."""
        chosen = [h for h in self.heads if layer in (None, h.layer) and head in (None, h.head)]
        if not chosen:
            layers = sorted({h.layer for h in self.heads})
            n_heads = max(h.head for h in self.heads) + 1
            raise ValueError(f"no such head: layers are {layers[0]} to {layers[-1]}, KV heads are 0 to {n_heads - 1}")
        return chosen

    def region(self, position: int) -> str:
        """Why a position may be attended to, apart from being a heavy hitter; "old" if it may not."""
        if position >= self.memory_end:
            return "open"
        if position in self.local:
            return "local"
        return "sinks" if position in self.sinks else "old"


def memory_report(llm: Llama, tokens: Sequence[int], title: str, history: MemoryHistory | None = None) -> MemoryReport:
    """What `llm` kept of `tokens`, which are all that it has evaluated since its last reset."""
    kv = llm.kv
    heads = []
    sinks, local = range(0), range(0)
    has_heavy = llm.h2o is not None and llm.h2o.heavy_budget > 0
    for layer in kv.layers:
        indices = kv.memory_indices(layer)
        scores = kv.scores(layer) if has_heavy else np.zeros((len(indices), len(tokens)), np.float32)
        for head, kept in enumerate(indices):
            heavy = kv.heavy_hitters(layer, head)
            ranked = heavy[np.argsort(-scores[head][heavy], kind="stable")]
            heads.append(HeadMemory(layer, head, ranked, scores[head][ranked]))
            window = kv.local_window_of(layer, head)
            sinks = range(int((kept >= 0).sum()) - len(window) - len(heavy))
            local = range(int(window[0]), int(window[-1]) + 1) if len(window) else range(0)
    return MemoryReport(
        title=title,
        pieces=tuple(split_pieces([_text(llm, t) for t in tokens])),
        n_tokens=len(tokens),
        chunk_size=kv.chunk_size,
        memory_size=kv.memory_size,
        memory_end=max(0, kv.chunk_index - 1) * kv.chunk_size,
        sinks=sinks,
        local=local,
        heads=tuple(heads),
        history=history,
    )


def _text(llm: Llama, token: int) -> bytes:
    return "▨".encode() if token < 0 else llm.detokenize([token])  # a row of embeddings


def shades(heads: Sequence[HeadMemory]) -> dict[int, int]:
    """Shade 1 to `SHADES` for every position that a head keeps as heavy hitter.

    For one head by the rank of the score (the top fifth gets the darkest), for several by how many of them keep it.
    """
    if len(heads) == 1:
        n = len(heads[0].heavy)
        return {int(p): SHADES - rank * SHADES // n for rank, p in enumerate(heads[0].heavy)}
    positions, counts = np.unique(np.concatenate([h.heavy for h in heads]), return_counts=True)
    most = counts.max(initial=1)
    return {int(p): -(-int(n) * SHADES // int(most)) for p, n in zip(positions, counts, strict=True)}


def top_texts(report: MemoryReport, head: HeadMemory, n: int) -> list[tuple[str, int]]:
    """The most frequent texts of a head's heavy hitters, with how many tokens each of them is.

    Of equally frequent ones, that with the highest score comes first.
    """
    texts = (report.pieces[index_at(report.pieces, position)].text for position in head.heavy)
    return Counter(texts).most_common(n)
