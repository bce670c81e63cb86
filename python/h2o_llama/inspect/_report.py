"""What each layer and head kept of a document, as data, and as one HTML page that loads nothing from anywhere."""

from __future__ import annotations

import codecs
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined
from numpy.typing import NDArray

from h2o_llama._internal.atomic import replacing
from h2o_llama._internal.terminal import printable
from h2o_llama.errors import H2OError
from h2o_llama.inspect.sequence_kv import last_tiles

if TYPE_CHECKING:
    from h2o_llama import Llama

SHADES = 5


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
    """The marked positions of one KV head, int32 [k], highest score first, and their scores float32 [k].

    These are its heavy hitters. A setting without any has the extra keys that the last chunk read; the score of one is
    the share of the chunk's tiles that did.
    """

    layer: int
    head: int
    positions: NDArray[np.int32]
    scores: NDArray[np.float32]


@dataclass(frozen=True)
class MemoryReport:
    """A document and the current memory set of every layer and KV head.

    The memory sets hold positions below `memory_end`, where the last chunk begins; that chunk is read directly.
    Sinks and local window are the same for every head, so they are here once; both are empty before the first
    memory set is built. `marked` names the positions of the heads: "heavy hitters" or "extra keys".
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
    marked: str = "heavy hitters"

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


def memory_report(llm: Llama, tokens: Sequence[int], title: str) -> MemoryReport:
    """What `llm` kept of `tokens`, which are all that it has evaluated since its last reset."""
    kv = llm.kv
    heads = []
    sinks, local = range(0), range(0)
    has_heavy = llm.h2o is not None and llm.h2o.heavy_budget > 0
    for layer in kv.layers:
        indices = kv.memory_indices(layer)
        scores = kv.scores(layer) if has_heavy else None
        for head, kept in enumerate(indices):
            heavy = kv.heavy_hitters(layer, head)
            score = scores[head] if scores is not None else _shares_of_tiles(llm, layer, head)
            found = heavy if has_heavy else np.flatnonzero(score).astype(np.int32)
            ranked = found[np.argsort(-score[found], kind="stable")]
            heads.append(HeadMemory(layer, head, ranked, score[ranked]))
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
        marked="heavy hitters" if has_heavy else "extra keys",
    )


def _shares_of_tiles(llm: Llama, layer: int, head: int) -> NDArray[np.float32]:
    """The share of the last chunk's tiles that read each position as an extra key, float32 [n_tokens]."""
    kv, shares = llm.kv, np.zeros(llm.n_tokens, np.float32)
    if llm.h2o is not None and llm.h2o.lookup_budget > 0 and llm.n_tokens > 0:
        tiles = last_tiles(kv._info())
        for tile in tiles:
            with suppress(H2OError):  # it attended to everything
                shares[kv.extra_keys(layer, head, tile)] += 1 / len(tiles)
    return shares


def _text(llm: Llama, token: int) -> bytes:
    return "▨".encode() if token < 0 else llm.detokenize([token])  # a row of embeddings


def shades(heads: Sequence[HeadMemory]) -> dict[int, int]:
    """Shade 1 to `SHADES` for every marked position of a head.

    For one head by the rank of the score (the top fifth gets the darkest), for several by how many of them have it.
    """
    if len(heads) == 1:
        n = len(heads[0].positions)
        return {int(p): SHADES - rank * SHADES // n for rank, p in enumerate(heads[0].positions)}
    positions, counts = np.unique(np.concatenate([h.positions for h in heads]), return_counts=True)
    most = counts.max(initial=1)
    return {int(p): -(-int(n) * SHADES // int(most)) for p, n in zip(positions, counts, strict=True)}


def top_texts(report: MemoryReport, head: HeadMemory, n: int) -> list[tuple[str, int]]:
    """The most frequent texts of a head's marked positions, with how many tokens each of them is.

    Of equally frequent ones, that with the highest score comes first.
    """
    texts = (report.pieces[index_at(report.pieces, position)].text for position in head.positions)
    return Counter(texts).most_common(n)


@dataclass
class Run:
    """Consecutive pieces of one region (sinks, local, open or old) and chunk, all noted or none."""

    region: str
    chunk: int
    is_noted: bool
    begins_chunk: bool
    parts: list[dict[str, Any]] = field(default_factory=list)


def _runs(report: MemoryReport, notes: Sequence[range]) -> Iterator[Run]:
    """The document in order: a part is text that no head has marked, or a piece that some have."""
    static_shades = shades(report.heads)
    run: Run | None = None
    for piece in report.pieces:
        region, chunk = report.region(piece.start), piece.start // report.chunk_size
        is_noted = any(piece.start in note for note in notes)
        if run is None or (run.region, run.chunk, run.is_noted) != (region, chunk, is_noted):
            if run is not None:
                yield run
            run = Run(region, chunk, is_noted, begins_chunk=run is None or run.chunk != chunk)
        kept = [p for p in range(piece.start, piece.end) if p in static_shades]
        if kept:
            run.parts.append({"positions": kept, "shade": max(static_shades[p] for p in kept), "text": piece.text})
        elif run.parts and not run.parts[-1]["positions"]:
            run.parts[-1]["text"] += piece.text
        else:
            run.parts.append({"positions": [], "text": piece.text})
    if run is not None:
        yield run


def render_html(report: MemoryReport, facts: Sequence[tuple[str, str]] = (), notes: Sequence[range] = ()) -> str:
    """The page. `facts` are (name, value) lines for its head, `notes` are positions to draw a frame around."""
    # What the page's script needs of every head. Scores keep three digits.
    heads: list[dict[str, Any]] = [
        {
            "layer": h.layer,
            "head": h.head,
            "positions": h.positions.tolist(),
            "scores": [float(f"{s:.3g}") for s in h.scores],
        }
        for h in report.heads
    ]
    environment = Environment(
        loader=PackageLoader("h2o_llama.inspect"), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    return environment.get_template("report.html.j2").render(
        report=report,
        facts=facts,
        runs=list(_runs(report, notes)),
        script_data={"heads": heads, "shades": SHADES, "marked": report.marked},
        n_shades=SHADES,
    )


def write_html(
    path: Path, report: MemoryReport, facts: Sequence[tuple[str, str]] = (), notes: Sequence[range] = ()
) -> None:
    """Writes the page. A half one never replaces a whole one."""
    page = render_html(report, facts, notes)
    with replacing(path) as file:
        file.write(page.encode())
