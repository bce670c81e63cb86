"""What a benchmark measures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from h2o_llama._internal import check
from h2o_llama.bench.case import Case, Mode
from h2o_llama.config import H2OConfig
from h2o_llama.eval import Setting
from h2o_llama.sequence._params import available_cpus

_OWNER = "bench"

DENSE = tuple(
    Mode(f"dense, {products} products, flash attention {flash_attn}", flash_attn, None, products=products)
    for products in ("upstream", "own")
    for flash_attn in ("on", "off")
)
"""With llama.cpp's products they are llama.cpp; with our own they tell what of H2O's speed is not attention."""


def beside_dense(settings: Sequence[Setting]) -> list[Mode]:
    """Dense attention in every way, then H2O with these settings.

    Of settings that differ only in what generated tokens attend to, the first alone is measured by a prefill.
    """
    modes, prefills = [*DENSE], []
    for setting in settings:
        evicts = setting.h2o is not None and setting.h2o.evict
        prefill = setting.h2o if evicts else setting.h2o and replace(setting.h2o, decode="full")
        modes.append(Mode(setting.name, "auto", setting.h2o, only_generates=prefill in prefills))
        prefills.append(prefill)
    return modes


@dataclass(frozen=True)
class Plan:
    """Modes, lengths and repetitions.

    Prompts of the lengths `n_prompt` are read, and `n_gen` tokens generated after those of `depths`. Each mode has a
    name of its own; the dense ones are left out of prompts longer than `dense_max`. `chunk_size` is S. `changes` are
    arguments of `Model` that change what it computes: adapters, RoPE options.

    Raises ValueError if a value is bad, or there is nothing to measure.
    """

    modes: Sequence[Mode]
    n_prompt: Sequence[int]
    depths: Sequence[int]
    n_gen: int = 32
    repetitions: int = 3
    dense_max: int | None = None
    chunk_size: int = H2OConfig.chunk_size
    n_threads: int = field(default_factory=available_cpus)
    n_gpu_layers: int = 0
    changes: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        names = [mode.name for mode in self.modes]
        if not names or len(set(names)) < len(names):
            raise ValueError(f"[{_OWNER}] modes must be at least one, each with its own name, got {names}")
        for name in ("n_prompt", "depths"):
            for n in getattr(self, name):
                check.integer(_OWNER, name, n, 1)
        for name in ("n_gen", "repetitions", "chunk_size"):
            check.integer(_OWNER, name, getattr(self, name), 1)
        if self.dense_max is not None:
            check.integer(_OWNER, "dense_max", self.dense_max, 0)
        if not any(self.cases(n) for n in self.lengths):
            raise ValueError(f"[{_OWNER}] there is nothing to measure: give a prompt length or a depth")

    @property
    def lengths(self) -> list[int]:
        """All prompt lengths, ascending."""
        return sorted({*self.n_prompt, *self.depths})

    def cases(self, n_tokens: int) -> list[Case]:
        """What is measured at a prompt length.

        Dense attention, unless it is above `dense_max`; modes that only generate, if something is generated.
        """
        n_gen = self.n_gen if n_tokens in self.depths else 0
        return [
            Case(mode, n_tokens, n_gen, self.chunk_size, self.n_threads, self.n_gpu_layers)
            for mode in self.modes
            if not mode.is_dense or self.dense_max is None or n_tokens <= self.dense_max
            if n_gen > 0 or not mode.only_generates
        ]
