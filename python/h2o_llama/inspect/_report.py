"""What each layer and head kept of a document, as data, and as one HTML page that loads nothing from anywhere."""

from __future__ import annotations

import codecs
import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined
from numpy.typing import NDArray

from h2o_llama._internal.atomic import replacing
from h2o_llama._internal.terminal import printable
from h2o_llama.sequence._prompt import Tokens

if TYPE_CHECKING:
    from h2o_llama import Llama

SHADES = 5
HEAVY, READ_MOST = "heavy hitters", "tokens read most"
_STRONGEST = 0.05
_LONGEST = 64
"""Tokens of a passage."""


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

    These are its heavy hitters. A setting without any has the tokens that the question read most, and its weights.
    """

    layer: int
    head: int
    positions: NDArray[np.int32]
    scores: NDArray[np.float32]

    def first(self, n: int) -> HeadMemory:
        """With the first n positions."""
        return replace(self, positions=self.positions[:n], scores=self.scores[:n])


@dataclass(frozen=True)
class MemoryReport:
    """A document and the current memory set of every layer and KV head.

    The memory sets hold positions below `memory_end`, where the last chunk begins; that chunk is read directly. With
    READ_MOST it is where the question begins. Sinks and local window are the same for every head, so they are here
    once. `marked` names the positions of the heads: HEAVY or READ_MOST.
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
    marked: str = HEAVY

    @property
    def n_marked(self) -> int:
        """How many of the read tokens are marked."""
        return max(1, int(_STRONGEST * self.memory_end))

    def strongest(self) -> MemoryReport:
        """With that many positions of each head."""
        n = self.n_marked
        return replace(self, heads=tuple(h.first(n) for h in self.heads))

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


def memory_report(llm: Llama, tokens: Tokens, title: str, document: range | None = None) -> MemoryReport:
    """What `llm` kept, or read, of `tokens`, which are all that it has evaluated since its last reset.

    With heavy hitters it is the memory sets. Without, it is what the tokens after `document` attended to, which the
    last `eval` has kept (keep_attention=True), but for the tokens before it.
    """
    kv, h2o = llm.kv, llm.h2o
    assert h2o is not None  # `kv` works with H2O only
    has_heavy = h2o.heavy_budget > 0
    if has_heavy or document is None:
        document = range(max(0, kv.chunk_index - 1) * kv.chunk_size)
    end = document.stop
    sinks = range(min(max(int(h2o.sink_tokens), document.start), end))
    local = range(max(len(sinks), end - h2o.local_window), end)
    heads = []
    for layer in kv.layers:
        scores = kv.scores(layer) if has_heavy else None
        for head in range(len(kv.memory_indices(layer))):
            if scores is not None:
                found, score = kv.heavy_hitters(layer, head), scores[head]
            else:
                score = kv.attention(layer, head)
                found = np.arange(len(sinks), local.start, dtype=np.int32)
            ranked = found[np.argsort(-score[found], kind="stable")]
            heads.append(HeadMemory(layer, head, ranked, score[ranked]))
    report = MemoryReport(
        title=title,
        pieces=tuple(split_pieces([_text(llm, int(t)) for t in tokens])),
        n_tokens=len(tokens),
        chunk_size=kv.chunk_size,
        memory_size=kv.memory_size,
        memory_end=end,
        sinks=sinks,
        local=local,
        heads=tuple(heads),
        marked=HEAVY if has_heavy else READ_MOST,
    )
    return report if has_heavy else report.strongest()


def _text(llm: Llama, token: int) -> bytes:
    return "▨".encode() if token < 0 else llm.detokenize([token])  # a row of embeddings


def weights_of(report: MemoryReport, heads: Sequence[HeadMemory]) -> tuple[NDArray[np.int32], NDArray[np.float64]]:
    """The marked positions, ascending, and their weights: summed over heads, or the number of heads."""
    if not heads:
        return np.empty(0, np.int32), np.empty(0)
    positions, places = np.unique(np.concatenate([h.positions for h in heads]), return_inverse=True)
    weights = np.concatenate([h.scores for h in heads]).astype(np.float64)
    counts = None if report.marked == HEAVY and len(heads) > 1 else weights
    return positions, np.bincount(places, counts, len(positions)).astype(np.float64)


def shades(report: MemoryReport, heads: Sequence[HeadMemory]) -> dict[int, int]:
    """Shade 1 to `SHADES` of marked positions: by the rank of their weight, or by how many heads keep them.

    The strongest 5 % of read tokens are marked.
    """
    positions, weights = weights_of(report, heads)
    if report.marked == HEAVY and len(heads) > 1:
        most = weights.max(initial=1)
        return {int(p): -(-int(n) * SHADES // int(most)) for p, n in zip(positions, weights, strict=True)}
    n = len(positions) if report.marked == HEAVY else report.n_marked
    strongest = positions[np.argsort(-weights, kind="stable")][:n]
    return {int(p): SHADES - rank * SHADES // len(strongest) for rank, p in enumerate(strongest)}


@dataclass(frozen=True)
class Passage:
    """A sentence or a line of the text, and its share of the weight of all marked tokens."""

    start: int
    end: int
    share: float
    text: str


def passages(report: MemoryReport, heads: Sequence[HeadMemory], n: int) -> list[Passage]:
    """The n passages that were read most, the strongest first."""
    weights = np.zeros(report.n_tokens)
    positions, marked = weights_of(report, heads)
    weights[positions] = marked
    total = weights.sum() or 1.0
    cuts, text = [0], ""
    end = Piece(report.n_tokens, report.n_tokens, "\n")
    for piece, following in pairwise([*report.pieces, end]):
        text += piece.text
        ends = re.search(r"[.!?;][\"')\]]*$", text) and following.text[:1].isspace()
        if ends or "\n\n" in text or piece.end - cuts[-1] >= _LONGEST or following is end:
            cuts.append(piece.end)
            text = ""
    shares = np.add.reduceat(weights, cuts[:-1]) / total
    found = []
    for i in np.argsort(-shares, kind="stable")[:n].tolist():
        if shares[i] > 0:
            parts = report.pieces[index_at(report.pieces, cuts[i]) : index_at(report.pieces, cuts[i + 1] - 1) + 1]
            found.append(Passage(cuts[i], cuts[i + 1], float(shares[i]), "".join(part.text for part in parts)))
    return found


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
    static_shades = shades(report, report.heads)
    of_some_head = {int(p) for head in report.heads for p in head.positions}
    run: Run | None = None
    for piece in report.pieces:
        region, chunk = report.region(piece.start), piece.start // report.chunk_size
        is_noted = any(piece.start in note for note in notes)
        if run is None or (run.region, run.chunk, run.is_noted) != (region, chunk, is_noted):
            if run is not None:
                yield run
            run = Run(region, chunk, is_noted, begins_chunk=run is None or run.chunk != chunk)
        kept = [p for p in range(piece.start, piece.end) if p in of_some_head]
        if kept:
            shade = max(static_shades.get(p, 0) for p in kept)
            run.parts.append({"positions": kept, "shade": shade, "text": piece.text})
        elif run.parts and not run.parts[-1]["positions"]:
            run.parts[-1]["text"] += piece.text
        else:
            run.parts.append({"positions": [], "text": piece.text})
    if run is not None:
        yield run


def render_html(
    report: MemoryReport,
    facts: Sequence[tuple[str, str]] = (),
    notes: Sequence[range] = (),
    layer: int | None = None,
    head: int | None = None,
) -> str:
    """The page, which opens at a layer and a head, or all.

    `facts` are (name, value) lines for its head, `notes` are positions to draw a frame around.
    """
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
        script_data={"heads": heads, "shades": SHADES, "most": 0 if report.marked == HEAVY else report.n_marked},
        chosen_layer=layer,
        chosen_head=head,
        heavy=report.marked == HEAVY,
        n_shades=SHADES,
    )


def write_html(path: Path, report: MemoryReport, *shown: Any) -> None:
    """Writes `render_html(report, *shown)`. A half page never replaces a whole one."""
    page = render_html(report, *shown)
    with replacing(path) as file:
        file.write(page.encode())
