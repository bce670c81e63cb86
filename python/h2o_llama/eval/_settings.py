"""The measured configurations of H2O."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from typing_extensions import Self

from h2o_llama.config import H2OConfig

_OWNER = "eval"

# Attention sinks of a window, as in StreamingLLM (Xiao et al. 2024, arXiv:2309.17453).
_WINDOW_SINKS = 4


@dataclass(frozen=True)
class Setting:
    """One way to compute attention, and what tables and rows call it. Without `h2o` it is dense."""

    name: str
    h2o: H2OConfig | None

    @classmethod
    def of(cls, h2o: H2OConfig) -> Self:
        """With the name that a command line takes: the preset, then options that differ from it.

        Such as "balanced decode=memory". The size of chunks, the same for all, is left out. Where H2O chooses nothing,
        `h2o` gets the default scorer, so that equal measurements are equal settings.
        """
        if h2o.heavy_budget == 0:
            h2o = replace(h2o, scorer=H2OConfig.scorer)
        plain = H2OConfig(preset=h2o.preset, chunk_size=h2o.chunk_size, evict=h2o.evict, cold_store=h2o.cold_store)
        expected = plain.as_text()
        changed = [f"{name}={text}" for name, text in h2o.as_text().items() if text != expected.get(name)]
        kept = [] if not h2o.evict else ["evict" if h2o.cold_store is None else "evict to a cold store"]
        return cls(" ".join([h2o.preset, *kept, *changed]), h2o)


DENSE = Setting("dense", None)


def sweep(*, chunk_size: int = H2OConfig.chunk_size, **values: Sequence[Any]) -> list[Setting]:
    """The settings of all combinations of values of parameters, the last one changing fastest.

    A name is a parameter of `H2OConfig` or a key of `research`.

    Raises ValueError if a value is out of range, or a parameter has none.
    """
    settings = [
        Setting.of(H2OConfig.from_dict({**dict(zip(values, chosen, strict=True)), "chunk_size": chunk_size}))
        for chosen in product(*values.values())
    ]
    if not settings:
        raise ValueError(f"[{_OWNER}] there is no setting: give at least one value for each part of the sweep")
    return list(dict.fromkeys(settings))


def window(setting: Setting) -> Setting:
    """A window with the same M + B to judge another setting by, at most a chunk.

    The first tokens of the sequence, at most 4, and the last before the chunk.

    Raises ValueError if the setting is dense or has a keep_ratio.
    """
    h2o = setting.h2o
    if h2o is None or h2o.keep_ratio is not None:
        raise ValueError(f"[{_OWNER}] a window needs a setting with H2O and no keep_ratio, got {setting.name!r}")
    size = h2o.memory_size + h2o.lookup_budget
    sinks = min(_WINDOW_SINKS, size - 1)
    local = min(size - sinks, h2o.chunk_size)
    same = Setting.of(replace(h2o, sink_tokens=sinks, local_window=local, heavy_budget=0, lookup_budget=0))
    return Setting(f"window of {sinks + local:,}", same.h2o)
