"""A configuration as options of llama.cpp's programs."""

from __future__ import annotations

from typing import cast

from h2o_llama import H2OConfig


def upstream_options(h2o: H2OConfig) -> list[str]:
    """Every choice as an option: the programs' defaults are others. The chunk size is their --ubatch-size."""
    values = {
        "local": h2o.local_window,
        "heavy": h2o.heavy_budget,
        "sinks": h2o.sink_tokens,
        "scorer": h2o.scorer,
        "block": h2o.block_tokens,
        "ema": h2o.ema_alpha,
        "heads": "shared" if h2o.shared_heads else "own",
        "keep": h2o.keep_ratio or 0,
        "schedule": h2o.schedule,
        "lookup": h2o.lookup_budget,
        "tile": h2o.tile,
        "retrieval": h2o.retrieval,
        "decode": h2o.decode,
        "evict": "on" if h2o.evict else "off",
    }
    if layers := cast(tuple[int, ...], h2o.dense_layers):
        values["dense"] = ",".join(map(str, layers))
    if h2o.cold_store is not None:
        values["cold-store"] = str(h2o.cold_store)
    return [word for name, value in values.items() for word in (f"--h2o-{name}", str(value))]
