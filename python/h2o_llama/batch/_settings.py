"""What the answers of a batch depend on, besides model, documents and questions."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any, Literal

from h2o_llama._internal import check
from h2o_llama.chat._generation import MAX_TOKENS
from h2o_llama.config import H2OConfig
from h2o_llama.sampling import Sampling

_OWNER = "batch"


@dataclass(frozen=True)
class BatchSettings:
    """How documents are read and questions answered.

    Parameters
    ----------
    h2o : H2OConfig, "auto", "fast", "balanced", "faithful" or None, default "auto"
        As in `Llama`. A model that H2O cannot work with needs None, dense attention.
    max_tokens : int, default 512
        The most tokens of an answer.
    temperature : float, default 0.0
        0 always takes the most probable token.
    seed : int, default 0
        With a temperature. Documents, and questions that are asked together, are drawn by seeds made from this one.

    Raises
    ------
    ValueError
        If a value is bad.
    """

    h2o: H2OConfig | Literal["auto", "fast", "balanced", "faithful"] | None = "auto"
    max_tokens: int = MAX_TOKENS
    temperature: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        check.integer(_OWNER, "max_tokens", self.max_tokens, 1)
        check.integer(_OWNER, "seed", self.seed, 0)
        Sampling(temperature=self.temperature)
        if isinstance(self.h2o, str):
            object.__setattr__(self, "h2o", H2OConfig.named(_OWNER, self.h2o))
        elif not (self.h2o is None or isinstance(self.h2o, H2OConfig)):
            raise check.bad_argument(_OWNER, "h2o", "an H2OConfig, 'auto' or None", self.h2o)

    @property
    def config(self) -> H2OConfig | None:
        """`h2o`, with a name resolved."""
        assert not isinstance(self.h2o, str)
        return self.h2o

    def to_json(self) -> dict[str, Any]:
        """As an answer tells them. Where a cold store is does not matter, only whether there is one."""
        values = asdict(self)
        if self.config is not None and self.config.cold_store is not None:
            values["h2o"]["cold_store"] = "memory"
        as_read: dict[str, Any] = json.loads(json.dumps(values))  # without tuples
        return as_read
