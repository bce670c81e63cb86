"""Tables in Markdown."""

from collections.abc import Sequence
from dataclasses import dataclass

MB = 1e6


@dataclass(frozen=True)
class Table:
    """A title, the columns' names after the first column (which is text), lines of cells, and what explains them."""

    title: str
    columns: Sequence[str]
    lines: Sequence[Sequence[str]]
    note: str = ""

    def markdown(self) -> str:
        lines = [[self.title, *self.columns], ["---", *("--:" for _ in self.columns)], *self.lines]
        table = "\n".join("| " + " | ".join(cells) + " |" for cells in lines)
        return f"{table}\n\n{self.note}" if self.note else table
