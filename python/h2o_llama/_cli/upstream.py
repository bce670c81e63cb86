"""A configuration as options of llama.cpp's programs."""

from __future__ import annotations

from h2o_llama import H2OConfig
from h2o_llama.config import OPTIONS


def upstream_options(h2o: H2OConfig) -> list[str]:
    """Every choice as an option: the programs' defaults are others."""
    return [word for name, text in h2o.as_text().items() if text for word in (f"--h2o-{OPTIONS[name].flag}", text)]
