"""What a task must tell, so that `evaluate` can run it and find its rows again."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from h2o_llama.eval._settings import Setting
from h2o_llama.eval._subject import Subject

Row = dict[str, Any]
Progress = Callable[[int, int], object]


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
