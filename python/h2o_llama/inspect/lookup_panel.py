"""What the HTML page shows of lookups: tables, and for its script what every tile looked up."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from h2o_llama.inspect.lookups import Lookups, most_wanted
from h2o_llama.inspect.memory import MemoryReport
from h2o_llama.inspect.snippets import Snippet, snippet

# The page holds so many looked-up positions at most, those of the last tiles: a few bytes for each.
MAX_POSITIONS = 100_000
_MOST_WANTED = 12


@dataclass(frozen=True)
class LookupPanel:
    """What was looked up, at least one position.

    `tiles` are those that the page can show: all, or as many of the last as there is room for; it begins with `chosen`,
    the last whole one, if it is among them. `most_wanted` are positions, by how many tiles they were looked up, and
    their text.

    `data` is what the page's script needs. Its "tiles" have, for each of them, a list of [query - first position of the
    tile, position, position, …]; "lengths" are those of the tokens' texts in UTF-16 units, as JavaScript counts. A
    character of several tokens belongs to the first of them.
    """

    lookups: Lookups
    tiles: range
    chosen: int
    most_wanted: list[tuple[int, int, Snippet]]
    data: dict[str, Any]


def lookup_panel(report: MemoryReport) -> LookupPanel | None:
    """The panel of a report; None if nothing was looked up."""
    lookups = report.lookups
    if lookups is None or len(lookups.positions) == 0:
        return None
    shown = _last_tiles(lookups)
    size = lookups.tile_size
    lengths = []
    for piece in report.pieces:
        lengths += [len(piece.text.encode("utf-16-le")) // 2] + [0] * (piece.end - piece.start - 1)
    return LookupPanel(
        lookups=lookups,
        tiles=shown,
        chosen=max(shown.start, report.n_tokens // size - 1),
        most_wanted=[
            (position, n_tiles, snippet(report, range(position, position + 1), 50, 40))
            for position, n_tiles in most_wanted(lookups, _MOST_WANTED)
        ],
        data={
            "size": size,
            "first": shown.start,
            "tiles": [[[q - tile * size, *positions] for q, positions in lookups.of_tile(tile)] for tile in shown],
            "lengths": lengths,
        },
    )


def _last_tiles(lookups: Lookups) -> range:
    """All tiles if they fit into the page, else the last; at least one."""
    n_more = len(lookups.positions) - MAX_POSITIONS
    if n_more <= 0:
        return lookups.tiles
    # The tile of the last position that is left out is left out with it.
    first = int(lookups.queries[n_more - 1]) // lookups.tile_size + 1
    return range(min(first, lookups.tiles[-1]), lookups.tiles.stop)
