"""llama.cpp's sampler chain."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypedDict

from h2o_llama import _check, _core

_OWNER = "Llama.generate"
_FLOAT32_MAX = 3.4e38


class SamplingOptions(TypedDict, total=False):
    """Keyword arguments of `Sampling`."""

    temperature: float
    top_k: int
    top_p: float
    min_p: float
    repeat_penalty: float
    frequency_penalty: float
    presence_penalty: float
    seed: int | None


@dataclass(frozen=True)
class Sampling:
    """How the next token is drawn from the logits. Penalties come first, then top-k, top-p, min-p and temperature.

    Parameters
    ----------
    temperature : float, default 0.8
        Logits are divided by it. 0 is greedy: the most probable token, always.
    top_k : int, default 40
        Draw among the k most probable tokens only; 0 is off.
    top_p : float, default 0.95
        Draw among the fewest tokens whose probabilities add up to p; 1 is off.
    min_p : float, default 0.05
        Drop tokens less probable than min_p times the most probable one; 0 is off.
    repeat_penalty : float, default 1.0
        Divide positive logits of tokens seen in the last 64 by it (multiply negative ones); 1 is off.
    frequency_penalty, presence_penalty : float, default 0.0
        Subtract this from the logit of a token seen in the last 64: once per occurrence, or once; 0 is off.
    seed : int or None, default None
        Seed of the draw, 0 to 2**32 - 2; None draws differently every time.

    Raises
    ------
    ValueError
        If a value has the wrong type or is out of range.
    """

    temperature: float = 0.8
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.05
    repeat_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    seed: int | None = None

    def __post_init__(self) -> None:
        _check.real(_OWNER, "temperature", self.temperature, 0, _FLOAT32_MAX)
        _check.integer(_OWNER, "top_k", self.top_k, 0)
        _check.real(_OWNER, "top_p", self.top_p, 0, 1)
        _check.real(_OWNER, "min_p", self.min_p, 0, 1)
        _check.real(_OWNER, "frequency_penalty", self.frequency_penalty, -_FLOAT32_MAX, _FLOAT32_MAX)
        _check.real(_OWNER, "presence_penalty", self.presence_penalty, -_FLOAT32_MAX, _FLOAT32_MAX)
        if _check.real(_OWNER, "repeat_penalty", self.repeat_penalty, 0, _FLOAT32_MAX) == 0:
            raise _check.bad_argument(_OWNER, "repeat_penalty", "greater than 0", self.repeat_penalty)
        check_seed(_OWNER, self.seed)

    def make_sampler(self, n_vocab: int) -> _core.Sampler:
        """A new chain: penalties and the random state start afresh."""
        return _core.Sampler(
            n_vocab=n_vocab,
            temperature=float(self.temperature),
            top_k=int(self.top_k),
            top_p=float(self.top_p),
            min_p=float(self.min_p),
            repeat_penalty=float(self.repeat_penalty),
            frequency_penalty=float(self.frequency_penalty),
            presence_penalty=float(self.presence_penalty),
            seed=_core.RANDOM_SEED if self.seed is None else int(self.seed),
        )


def check_seed(owner: str, seed: int | None) -> int | None:
    """The largest uint32 is llama.cpp's "random"."""
    return None if seed is None else _check.integer(owner, "seed", seed, 0, _core.RANDOM_SEED - 1)
