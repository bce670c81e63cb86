"""A figure, its bound, and whether the bound is met."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Goal:
    """A figure and its bound.

    Attributes
    ----------
    name : str
    bound : float
        The least that `measured` should be, or with `at_most` the most.
    measured : float or None
        None if the run did not measure it.
    digits, unit
        How figures are printed.
    stretch : float or None
        A bound beyond the goal.
    """

    name: str
    bound: float
    measured: float | None
    at_most: bool = False
    digits: int = 2
    unit: str = ""
    stretch: float | None = None

    def show(self, value: float) -> str:
        return f"{value:,.{self.digits}f}{self.unit}"

    @property
    def bound_text(self) -> str:
        text = f"{'≤' if self.at_most else '≥'} {self.show(self.bound)}"
        return text if self.stretch is None else f"{text} ({self.show(self.stretch)})"

    @property
    def measured_text(self) -> str:
        return "–" if self.measured is None else self.show(self.measured)

    @property
    def met(self) -> bool | None:
        return None if self.measured is None else self._meets(self.measured, self.bound)

    @property
    def verdict(self) -> str:
        """Met or missed, and by how much of the bound."""
        if self.measured is None:
            return "not measured"
        text = f"{'met' if self.met else 'missed'} by {abs(self.measured / self.bound - 1):.1%}"
        if self.stretch is not None and self._meets(self.measured, self.stretch):
            text += ", stretch too"
        return text

    def _meets(self, measured: float, bound: float) -> bool:
        return measured <= bound if self.at_most else measured >= bound
