"""What each layer and head kept of a document, as data, and as one HTML page that loads nothing from anywhere."""

from __future__ import annotations

import codecs
import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
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
_NOWHERE = np.iinfo(np.int32).max

# A cell per bin, memory set and head goes into the page: a model with many heads gets fewer bins.
_MAX_BINS = 96
_MAX_CELLS = 2_000_000


@dataclass(frozen=True)
class MemoryHistory:
    """The heavy hitters of all memory sets so far. Sinks and local windows, the same for every head, are left out.

    `heads` are (layer, KV head), in the order of the rows of `heavy`, int32 [n_sets, n_heads, k]: positions, ascending,
    padded at the end with -1. Set c was built after chunk c, which ends at (c + 1) * S.
    """

    heads: tuple[tuple[int, int], ...]
    heavy: NDArray[np.int32]
    chunk_size: int
    local_window: int
    sink_tokens: int

    def since(self, row: int, positions: NDArray[np.int32]) -> list[int]:
        """The first memory set of a head with each of these positions, which are heavy hitters of one."""
        first: list[int] = np.array([np.isin(positions, kept) for kept in self.heavy[:, row]]).argmax(axis=0).tolist()
        return first


def memory_history(llm: Llama) -> MemoryHistory:
    """What `llm`, opened with keep_history=True, kept after every chunk. Raises H2OError if it did not record."""
    if llm.h2o is None:
        raise H2OError("[memory_history] H2O is off: pass h2o=H2OConfig() and keep_history=True to Llama")
    kv, h2o = llm.kv, llm.h2o
    layers = kv.layers
    heads = tuple((layer, head) for layer in layers for head in range(len(kv.memory_indices(layer))))
    sets = kv.history
    indices = np.empty((len(sets), len(heads), h2o.memory_size), np.int32)
    for row, memory in zip(indices, sets, strict=True):
        np.concatenate([memory[layer] for layer in layers], out=row)

    local_start = (np.arange(len(sets))[:, None, None] + 1) * kv.chunk_size - h2o.local_window
    is_heavy = (indices >= h2o.sink_tokens) & (indices < local_start)
    heavy = np.sort(np.where(is_heavy, indices, _NOWHERE), axis=-1)[..., : is_heavy.sum(axis=-1).max(initial=0)]
    return MemoryHistory(
        heads=heads,
        heavy=np.where(heavy == _NOWHERE, -1, heavy),
        chunk_size=kv.chunk_size,
        local_window=h2o.local_window,
        sink_tokens=h2o.sink_tokens,
    )


@dataclass(frozen=True)
class Bins:
    """Heavy hitters of each set and head counted by where in the document they are, int64 [n, n_heads, n_bins].

    `sets`, int64 [n], were counted: all, or evenly spaced ones and the last. Bin b holds the positions edges[b] to
    edges[b + 1] - 1.
    """

    sets: NDArray[np.int64]
    edges: NDArray[np.int64]
    counts: NDArray[np.int64]


def count_in_bins(history: MemoryHistory, n_max: int) -> Bins:
    """Count in at most about `n_max` bins and sets: parts of a chunk, or several chunks if there are more than that."""
    n, size = len(history.heavy), history.chunk_size
    chunks_per_bin = max(1, -(-n // n_max))
    bins_per_chunk = max(1, min(size, n_max // n)) if chunks_per_bin == 1 and n else 1
    sets = np.arange(n - 1, -1, -chunks_per_bin)[::-1]
    n_bins = -(-n * bins_per_chunk // chunks_per_bin)
    # Bin of a position: position * bins_per_chunk // (size * chunks_per_bin); an edge is the first position of its bin.
    edges = -(-np.arange(n_bins + 1) * size * chunks_per_bin // bins_per_chunk)
    counts = np.zeros((len(sets), len(history.heads), n_bins), np.int64)
    kept = history.heavy[sets]
    i, row, slot = np.nonzero(kept >= 0)
    bins = kept[i, row, slot].astype(np.int64) * bins_per_chunk // (size * chunks_per_bin)
    np.add.at(counts, (i, row, bins), 1)
    return Bins(sets, np.minimum(edges, n * size), counts)


@dataclass(frozen=True)
class Membership:
    """A column per memory set, a row per bin of positions up to `n_positions`, with evenly spaced `ticks`.

    `bands` are ("sinks" or "local", column, start, stop) of the positions that are always kept, `cells` (column, start,
    stop, shade) of every bin, by the mean over all heads. The strongest shade ends at the share `strongest` of a bin's
    positions, every weaker one at half the share of the next; shade 0 is for bins without heavy hitters. `data` is for
    the page's script, to draw single heads.
    """

    n_positions: int
    ticks: list[int]
    columns: list[int]
    bands: list[tuple[str, int, int, int]]
    cells: list[tuple[int, int, int, int]]
    strongest: float
    data: dict[str, Any]


def membership(history: MemoryHistory) -> Membership:
    """The picture of a history with at least one heavy hitter."""
    bins = count_in_bins(history, max(1, min(_MAX_BINS, int(math.sqrt(_MAX_CELLS / len(history.heads))))))
    sets, edges = bins.sets.tolist(), bins.edges.tolist()
    ends = [(c + 1) * history.chunk_size for c in sets]
    share = bins.counts.mean(axis=1) / np.diff(bins.edges)
    strongest = float(share.max())
    shade = _shade(share / strongest)
    bands = []
    for column, end in enumerate(ends):
        bands.append(("local", column, max(0, end - history.local_window), end))
        bands.append(("sinks", column, 0, min(history.sink_tokens, end)))
    return Membership(
        n_positions=ends[-1],
        ticks=[ends[-1] * i // 4 for i in range(5)],
        columns=sets,
        bands=[band for band in bands if band[2] < band[3]],
        cells=[
            (column, start, min(stop, end), int(shade[column, b]))
            for column, end in enumerate(ends)
            for b, (start, stop) in enumerate(pairwise(edges))
            if start < end
        ],
        strongest=strongest,
        data={
            "sets": sets,
            "edges": edges,
            # Zeros at the end are left out.
            "counts": [[np.trim_zeros(c, "b").tolist() for c in head] for head in bins.counts.swapaxes(0, 1)],
        },
    )


def _shade(relative: NDArray[np.float64]) -> NDArray[np.int64]:
    """SHADES above 1/2, one less above 1/4, and so on; 0 only for 0."""
    is_some = relative > 0
    halvings = np.floor(-np.log2(relative, where=is_some, out=np.zeros_like(relative)))
    return np.where(is_some, np.maximum(1, SHADES - halvings), 0).astype(np.int64)


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
    memory set is built. `marked` names the positions of the heads: "heavy hitters" or "extra keys". `history`, with the
    same heads in the same order, is there if it was recorded.
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


def memory_report(llm: Llama, tokens: Sequence[int], title: str, history: MemoryHistory | None = None) -> MemoryReport:
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
        history=history,
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
    """The page. `facts` are (name, value) lines for its head, `notes` are positions to draw a frame around.

    It shows how the memory sets changed if the report has a history.
    """
    history = None if report.history is None or report.history.heavy.size == 0 else report.history
    picture = None if history is None else membership(history)
    # What the page's script needs of every head. Scores keep three digits.
    heads: list[dict[str, Any]] = [
        {
            "layer": h.layer,
            "head": h.head,
            "positions": h.positions.tolist(),
            "scores": [float(f"{s:.3g}") for s in h.scores],
            **({} if history is None else {"since": history.since(row, h.positions)}),
        }
        for row, h in enumerate(report.heads)
    ]
    environment = Environment(
        loader=PackageLoader("h2o_llama.inspect"), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    return environment.get_template("report.html.j2").render(
        report=report,
        facts=facts,
        runs=list(_runs(report, notes)),
        script_data={
            "heads": heads,
            "membership": None if picture is None else picture.data,
            "shades": SHADES,
            "marked": report.marked,
        },
        membership=picture,
        n_shades=SHADES,
    )


def write_html(
    path: Path, report: MemoryReport, facts: Sequence[tuple[str, str]] = (), notes: Sequence[range] = ()
) -> None:
    """Writes the page. A half one never replaces a whole one."""
    page = render_html(report, facts, notes)
    with replacing(path) as file:
        file.write(page.encode())
