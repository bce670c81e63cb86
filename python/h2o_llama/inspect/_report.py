"""What each layer and head kept of a document, as data, and as one HTML page that loads nothing from anywhere."""

import codecs
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from h2o_llama._internal.atomic import replacing
from h2o_llama._internal.terminal import printable
from h2o_llama._prompt import Tokens
from h2o_llama.inspect.kv import SequenceKV
from h2o_llama.sequence._state import HasState

HEAVY, READ_MOST = "heavy hitters", "tokens read most"
SPREAD = "The question has read several passages: look at more than the first."
_LONGEST = 64
"""Tokens of a passage."""

_PAGE_LINE = re.compile(r"\[((?:page|sheet) [^\]\n]*)\]")
_SHORT = "".join(rf"(?<!\b{word})" for word in ("Mr", "Ms", "Mrs", "Dr", "St", "No", "Nr", "Art", "Sec", "vs", "Prof"))
_SENTENCE_END = re.compile(rf"(?<!\s\d)(?<!\s\d\d){_SHORT}[.!?;][\"')\]]*\s+$|\t.*\n$")
"""Not after the number of a clause, or a word that is cut short. The row of a table ends with its line."""


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


@dataclass(frozen=True)
class HeadMemory:
    """The marked positions of one KV head, int32 [k], highest score first, and their scores float32 [k].

    These are its heavy hitters. A setting without any has the tokens that the question read most, and its weights.
    """

    layer: int
    head: int
    positions: NDArray[np.int32]
    scores: NDArray[np.float32]


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
    memory_end: int
    sinks: range
    local: range
    heads: tuple[HeadMemory, ...]
    marked: str = HEAVY

    def select(self, layer: int | None = None, head: int | None = None) -> list[HeadMemory]:
        """A layer's heads, a head of every layer, a single head, or all. Raises ValueError if there is none."""
        chosen = [h for h in self.heads if layer in (None, h.layer) and head in (None, h.head)]
        if not chosen:
            layers = sorted({h.layer for h in self.heads})
            n_heads = max(h.head for h in self.heads) + 1
            raise ValueError(f"no such head: layers are {layers[0]} to {layers[-1]}, KV heads are 0 to {n_heads - 1}")
        return chosen


def n_marked(n_tokens: int) -> int:
    """How many of the tokens that a question has read are marked."""
    return max(8, n_tokens // 100)


def memory_report(
    sequence: HasState,
    tokens: Tokens,
    title: str,
    document: range | None = None,
    usual: Sequence[NDArray[np.float32]] | None = None,
) -> MemoryReport:
    """What a sequence kept, or read, of `tokens`, which are all that it has evaluated since its last reset.

    With heavy hitters and no question it is the memory sets. Else it is what the tokens after `document` attended to,
    which the last `eval` has kept (keep_attention=True), but for the tokens before it, beyond twice the
    `usual` weights: another question's, for each layer and head.
    """
    state = sequence._state
    kv, h2o, detokenize = SequenceKV(state), state.engine.params.h2o, state.engine.model.detokenize
    assert h2o is not None  # `kv` works with H2O only
    has_heavy = h2o.heavy_budget > 0 and usual is None
    if has_heavy or document is None:
        document = range(max(0, kv.chunk_index - 1) * kv.chunk_size)
    end = document.stop
    sinks = range(min(max(int(h2o.sink_tokens), document.start), end))
    local = range(max(len(sinks), end - (h2o.local_window if usual is None else 0)), end)
    heads: list[HeadMemory] = []
    for layer in kv.layers:
        scores = kv.scores(layer) if has_heavy else None
        for head in range(len(kv.memory_indices(layer))):
            if scores is not None:
                found, score = kv.heavy_hitters(layer, head), scores[head]
            else:
                score = kv.attention(layer, head)[:end]
                if usual is not None:  # both as shares: questions differ in length
                    part = usual[len(heads)][:end] / (usual[len(heads)][:end].sum() or 1.0)
                    score = np.maximum(score - 2 * score.sum() * part, 0)
                found = np.arange(len(sinks), local.start, dtype=np.int32)
            ranked = found[np.argsort(-score[found], kind="stable")][: None if has_heavy else n_marked(end)]
            heads.append(HeadMemory(layer, head, ranked, score[ranked]))
    return MemoryReport(
        title=title,
        # A negative token is a row of embeddings.
        pieces=tuple(split_pieces(["▨".encode() if t < 0 else detokenize([int(t)]) for t in tokens])),
        n_tokens=len(tokens),
        chunk_size=kv.chunk_size,
        memory_end=end,
        sinks=sinks,
        local=local,
        heads=tuple(heads),
        marked=HEAVY if has_heavy else READ_MOST,
    )


@dataclass(frozen=True)
class Passage:
    """A sentence or a line of the text, its share of the weight of all marked tokens, and its strongest token.

    `page` is the last line like "[page 3]" before its end.
    """

    start: int
    end: int
    share: float
    text: str
    strongest: int
    page: str


def _weights(report: MemoryReport, heads: Sequence[HeadMemory]) -> NDArray[np.float64]:
    """Of each token, float64 [n_tokens]: how much of it was read, or how many of several heads keep it."""
    weights = np.zeros(report.n_tokens)
    for h in heads:
        weights[h.positions] += 1 if report.marked == HEAVY and len(heads) > 1 else h.scores
    return weights


def passages(report: MemoryReport, heads: Sequence[HeadMemory], n: int = 6) -> list[Passage]:
    """The n passages that were read most, or that most heads keep, the strongest first."""
    weights = _weights(report, heads)
    starts, texts = [0], [""]
    end = Piece(report.n_tokens, report.n_tokens, "\n")
    for piece, following in pairwise([*report.pieces, end]):
        texts[-1] += piece.text
        ends = any(_SENTENCE_END.search(text) for text in (texts[-1], texts[-1] + following.text[:1]))
        ends |= report.marked == READ_MOST and piece.end == report.memory_end  # then the question begins
        if ends or "\n\n" in texts[-1] or piece.end - starts[-1] >= _LONGEST or following is end:
            starts.append(piece.end)
            texts.append("")
    pages = [""]
    for text in texts:
        pages.append(next(reversed(_PAGE_LINE.findall(text)), pages[-1]))
    shares = np.add.reduceat(weights, starts[:-1]) / (weights.sum() or 1.0)
    return [
        Passage(start, end, float(shares[i]), texts[i], start + int(weights[start:end].argmax()), pages[i + 1])
        for i in np.argsort(-shares, kind="stable")[:n]
        if shares[i] > 0
        for start, end in [(starts[i], starts[i + 1])]
    ]


def stands_out(report: MemoryReport, found: Sequence[Passage]) -> bool:
    """Whether a question has read the first most by far: half of all, or a tenth and twice as much as the next."""
    first, second = [*(passage.share for passage in found), 0.0, 0.0][:2]
    return report.marked == HEAVY or first > 0.5 or first >= max(0.1, 2 * second)


def _strengths(report: MemoryReport, heads: Sequence[HeadMemory]) -> dict[int, int]:
    """Of the marked tokens, in per cent of the strongest: roots of their weights, as most are far below it."""
    weights = _weights(report, heads)
    positions = np.unique(np.concatenate([h.positions for h in heads]))
    return {p: round(100 * math.sqrt(weights[p] / (weights.max() or 1.0))) for p in positions.tolist()}


def _document(report: MemoryReport, heads: Sequence[HeadMemory], anchors: set[int]) -> str:
    """The text in order, with marked pieces, and targets of links. White space counts: no line ends between tags.

    A title tells which heads have a token, those with the highest scores first.
    """
    strengths = _strengths(report, heads)
    having: dict[int, list[tuple[float, str]]] = {p: [] for p in strengths}
    for h in heads:
        for p, score in zip(h.positions.tolist(), h.scores.tolist(), strict=True):
            having[p].append((-score, f"layer {h.layer} head {h.head}: {score:.3g}"))
    what = "heavy hitter of" if report.marked == HEAVY else "read most by"
    html = ""
    for piece in report.pieces:
        positions = range(piece.start, piece.end)
        titles = [
            f"Position {p:,}: {what} {len(having[p])} of {len(heads)} heads: "
            + ", ".join(name for _, name in sorted(having[p])[:6])
            for p in positions
            if p in strengths
        ]
        about = "".join(f' id="p{p}"' for p in positions if p in anchors)
        if titles:
            strength, title = max(strengths.get(p, 0) for p in positions), escape("\n".join(titles))
            about += f' style="--weight: {strength}%" title="{title}"' + " data-newline" * ("\n" in piece.text)
        html += f"<mark{about}>{escape(piece.text)}</mark>" if about else escape(piece.text)
    return html


def render_html(
    report: MemoryReport,
    facts: Sequence[tuple[str, str]] = (),
    layer: int | None = None,
    head: int | None = None,
) -> str:
    """The page of a layer and a head, or of all. `facts` are (name, value) lines for its head."""
    heads = report.select(layer, head)
    found = passages(report, heads)
    chosen = [f"{name} {i}" for name, i in (("layer", layer), ("KV head", head)) if i is not None]
    title = f"{'Kept' if report.marked == HEAVY else 'Read'} tokens of {report.title}"
    facts = [
        ("Tokens", f"{report.n_tokens:,} in chunks of {report.chunk_size:,}"),
        ("KV heads", f"{len(heads)}, of {' and '.join(chosen)}" if chosen else f"all {len(heads)}"),
        *facts,
    ]
    return _PAGE.format(
        title=escape(title),
        style=(Path(__file__).parent / "report.css").read_text(encoding="utf-8"),
        facts="\n".join(f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in facts),
        about=_about(report),
        doubt="" if stands_out(report, found) else f"<p>{SPREAD}</p>",
        passages="\n".join(
            f'<li>{100 * each.share:.1f} % <a href="#p{each.strongest}">{escape(each.text)}</a></li>' for each in found
        ),
        marked=report.marked,
        document=_document(report, heads, {passage.strongest for passage in found}),
    )


_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
{style}</style>
</head>
<body>
<main>
<h1>{title}</h1>
<dl>
{facts}
</dl>
<p>{about}</p>
{doubt}
<ol>
{passages}
</ol>
<p class="legend"><span class="shades" aria-hidden="true"></span> {marked}; point at one to see its numbers.</p>
<div id="document">{document}</div>
</main>
</body>
</html>
"""


def _about(report: MemoryReport) -> str:
    """What the colours mean."""
    if report.marked == HEAVY:
        sinks = f"the first {len(report.sinks)} tokens of the text (sinks), " if report.sinks else ""
        return (
            "H2O reads a text chunk by chunk. A chunk reads itself and, of everything before it, a memory set: "
            f"{sinks}the last {len(report.local)} before the chunk (local window) and the heavy hitters, the "
            "highest-ranking other tokens. Every KV head of every layer has its own. The last chunk begins at token "
            f"{report.memory_end:,}."
        )
    beyond = "" if report.local else ", beyond twice what a question without content reads"
    local = " and those just before the question, which every text reads most," if report.local else ""
    return (
        f"The last {report.n_tokens - report.memory_end:,} tokens, the question, read everything before them. Colour "
        f"is how much: the sum of their attention weights{beyond}. The strongest tokens are marked. The first "
        f"tokens{local} are left out."
    )


def write_html(path: Path, report: MemoryReport, *shown: Any) -> None:
    """Writes `render_html(report, *shown)`. A half page never replaces a whole one."""
    page = render_html(report, *shown)
    with replacing(path) as file:
        file.write(page.encode())
