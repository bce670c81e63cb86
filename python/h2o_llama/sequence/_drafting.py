"""How long a draft may be."""

from __future__ import annotations

# Time, in units of what a token takes without drafts: a draft of k tokens takes 1 + k / 2, about what CPUs need.
_PER_DRAFT = 1.0
_PER_DRAFTED_TOKEN = 0.5

_FIRST_BUDGET = 5.0
_LARGEST_BUDGET = 16.0
_EARNED_PER_TOKEN = 0.02

_SHORTEST = 4
"""Drafts of fewer tokens cost more than they save."""


class DraftLength:
    """How many tokens to draft next, by the success of earlier drafts: at most `longest`; 0 turns drafts off.

    Drafts are paid from a budget of time: a little is earned by every generated token, and what a draft saves is earned
    too. So drafts that are right get longer, drafts that are wrong get shorter and then rare, and all that can ever be
    lost is the first budget and 2 % of the time.
    """

    def __init__(self, longest: int) -> None:
        self._longest = longest
        self._budget = _FIRST_BUDGET

    @property
    def limits(self) -> tuple[int, int]:
        """The fewest and the most tokens of the next draft. If not even the fewest can be paid, the most is 0."""
        shortest = min(_SHORTEST, self._longest)
        affordable = int((self._budget - _PER_DRAFT) / _PER_DRAFTED_TOKEN)
        return shortest, min(self._longest, affordable) if affordable >= shortest else 0

    def report(self, n_drafted: int, n_accepted: int) -> None:
        """Count a call: the tokens drafted after the first, and how many were accepted."""
        self._budget += n_accepted + _EARNED_PER_TOKEN * (1 + n_accepted)
        if n_drafted > 0:
            self._budget -= _PER_DRAFT + _PER_DRAFTED_TOKEN * n_drafted
        self._budget = min(self._budget, _LARGEST_BUDGET)
