"""Settings whose memory sets are chosen by a rule that knows more than H2O, or nothing, to judge H2O by."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from h2o_llama import H2OConfig, Model
from h2o_llama.eval import Setting, window
from reference_llama import Memory, ReferenceLlama

KINDS = ("random", "window", "upper-bound")


@dataclass(frozen=True)
class Reference(Setting):
    """Memory is "random": H at random out of the last memory set and the chunk; or "upper_bound": the H positions
    before the local window that the next chunk's queries give most to, under dense attention.
    """

    @property
    def n_more_contexts(self) -> int:
        """The rule of the upper bound reads the text by itself."""
        return int(self.memory == "upper_bound")

    def open(self, model: Model, h2o: H2OConfig | None, seed: int, **context: Any) -> ReferenceLlama:
        """A context with these memory sets."""
        assert h2o is not None
        return ReferenceLlama(model, h2o, self.memory, seed, **context)


def references(setting: Setting, kinds: Sequence[str], chunk_size: int) -> list[Setting]:
    """Settings with the same M + B, all of it chosen for a whole chunk, to judge another by.

    Raises ValueError if a kind is unknown, the setting is dense or has a keep_ratio, or the window would be longer than
    a chunk.
    """
    if setting.h2o is None or setting.h2o.keep_ratio is not None:
        raise ValueError(f"a reference needs a setting with H2O and memory sets of one size, got {setting.name!r}")
    whole = replace(setting.h2o, heavy_budget=setting.h2o.heavy_budget + setting.h2o.lookup_budget, lookup_budget=0)
    return [_reference(setting, whole, kind, chunk_size) for kind in dict.fromkeys(kinds)]


def _reference(setting: Setting, h2o: H2OConfig, kind: str, chunk_size: int) -> Setting:
    if kind == "window":
        return window(setting, chunk_size)
    memories: dict[str, Memory] = {"random": "random", "upper-bound": "upper_bound"}
    if kind not in memories:
        raise ValueError(f"a reference must be one of {', '.join(KINDS)}, got {kind!r}")
    return Reference.of(h2o, memories[kind])
