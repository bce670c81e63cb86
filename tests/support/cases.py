"""The configurations that the tests of H2O's meaning share: one for each thing that a sequence can hold."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from hypothesis import strategies as st

import h2o_llama
from h2o_llama import H2OConfig
from h2o_llama.config import SCORERS
from oracle import SCHEDULES, GGUFModel, OracleSequence
from tolerances import Tolerance, tolerance

# Scorers of single positions. Blocks want other sizes.
POSITION_SCORERS = tuple(name for name in SCORERS if name != "block_ema")


@dataclass(frozen=True)
class Case:
    """A configuration with its options of `Llama`."""

    h2o: H2OConfig
    kv_type: str = "f32"
    # "on": H2O's fused operator. "off": attention composed of ggml's operators, which rules out a quantised V. With
    # H2O_NO_FUSED_ATTENTION=1 and "on" it is composed too, and decode is upstream's flash attention: sums of V in F16.
    flash_attn: str = "on"
    cold_store_compression: h2o_llama.LosslessConfig | None = None
    n_ctx_train: int | None = None  # of the model, if it is to be another one

    def but(self, **changes: Any) -> Case:
        """The same with other values of its own fields or of `h2o`'s."""
        own = {f.name for f in fields(self)} & changes.keys()
        others = {name: value for name, value in changes.items() if name not in own}
        research = {f.name: others.pop(f.name) for f in fields(H2OConfig) if not f.init and f.name in others}
        h2o = replace(self.h2o, **others, research={**vars(self.h2o)["research"], **research})
        return replace(self, **{"h2o": h2o} | {name: changes[name] for name in own})

    def __str__(self) -> str:
        """What differs from `SMALL`, to name a case."""
        changed = [
            f"{f.name}={getattr(mine, f.name)}"
            for mine, other in ((self.h2o, SMALL.h2o), (self, SMALL))
            for f in fields(mine)
            if f.name != "h2o" and getattr(mine, f.name) != getattr(other, f.name)
        ]
        return ",".join(changed) or "small"

    __repr__ = __str__

    def oracle(self, model: GGUFModel, **kwargs: Any) -> OracleSequence:
        """A sequence of the oracle with this configuration."""
        h2o = self.h2o
        same = ["scorer", "dense_layers", "decode", "keep_ratio", "positions"]
        same += ["block_tokens", "ema_alpha", "shared_heads"]
        options: dict[str, Any] = {name: getattr(h2o, name) for name in same} | {"kv_type": self.kv_type}
        options |= {"S": h2o.chunk_size, "L": h2o.local_window, "H": h2o.heavy_budget, "A": h2o.sink_tokens}
        options |= {"B": h2o.lookup_budget, "T": h2o.tile, "n_ctx_train": self.n_ctx_train}
        return SCHEDULES[h2o.schedule](model, **options, **kwargs)

    def tolerance(self, model: GGUFModel, calls: Sequence[Sequence[int]] = ()) -> Tolerance:
        """Bounds for these calls. A call of one token is a decode step."""
        decodes = any(len(call) == 1 for call in calls)
        uses_upstreams = any(model.hparams.window) or os.environ.get("H2O_NO_FUSED_ATTENTION") == "1"
        return tolerance(
            model.activation_type,
            self.kv_type,
            n_layer=model.hparams.n_layer,
            upstreams_layers=any(model.hparams.window),
            flash_attn_decode=decodes and self.flash_attn != "off" and uses_upstreams,
        )

    @property
    def one_of_each(self) -> dict[str, Case | None]:
        """This configuration with each thing that a sequence can hold, by a name; None is dense attention."""
        return {
            "sum": self,
            "decode_memory": self.but(decode="memory"),
            "two_phase": self.but(schedule="two_phase"),
            "dense_layers": self.but(dense_layers=(1,)),
            "evict": self.but(scorer="distant", evict=True),
            "cold_store": self.but(evict=True, lookup_budget=8, cold_store="memory"),
            "key_index": self.but(lookup_budget=8, kv_type="q8_0"),
            "dense": None,
        }


S = 16
SMALL = Case(
    H2OConfig(
        chunk_size=S,
        local_window=4,
        heavy_budget=6,
        sink_tokens=1,
        scorer="sum",
        lookup_budget=0,
        research={"tile": 4, "positions": "text"},
    )
)
MEMORY = SMALL.but(decode="memory")
INDEX = MEMORY.but(lookup_budget=8)
EVICT = SMALL.but(evict=True)
COLD = EVICT.but(cold_store="memory", lookup_budget=8, scorer="distant", kv_type="f16")
BLOCKS = SMALL.but(scorer="block_ema", block_tokens=4, ema_alpha=0.7, heavy_budget=8, sink_tokens=4)
RATIO = SMALL.but(heavy_budget=40, keep_ratio=0.3)
CACHE_POSITIONS = EVICT.but(positions="cache", n_ctx_train=50)
FOLDER = tempfile.gettempdir()

KEPT = {
    "sum": SMALL,
    "distant": SMALL.but(scorer="distant", kv_type="f16"),
    "two_phase": SMALL.but(schedule="two_phase"),
    "memory": MEMORY,
    "dense layer": MEMORY.but(dense_layers=(0,)),
    # More than 16 tokens: the last 16 generated tokens keep their parts of the scores apart.
    "long chunks": MEMORY.but(chunk_size=40, scorer="distant"),
    "composed": MEMORY.but(flash_attn="off"),
    "composed, decode full": SMALL.but(flash_attn="off"),
    # In F16 upstream's cache has V the other way round.
    "composed, dense layer": MEMORY.but(flash_attn="off", dense_layers=(1,), kv_type="f16"),
    "blocks": BLOCKS,
    "blocks, two_phase": BLOCKS.but(schedule="two_phase"),
    "blocks of all heads": BLOCKS.but(shared_heads=True, decode="memory", ema_alpha=0.0),
    "blocks, ratio": BLOCKS.but(heavy_budget=40, keep_ratio=0.4),
    "ratio": RATIO.but(keep_ratio=0.35, scorer="distant"),
    "ratio, two_phase": SMALL.but(sink_tokens=0, heavy_budget=12, keep_ratio=0.5, schedule="two_phase"),
    "ratio, all heads": RATIO.but(local_window=2, sink_tokens=0, keep_ratio=0.25, shared_heads=True),
    "ratio, composed": RATIO.but(flash_attn="off"),
}
EVICTING = {
    "evict": EVICT.but(kv_type="f16"),
    "evict, distant": EVICT.but(scorer="distant"),
    "evict, q8_0": EVICT.but(kv_type="q8_0"),
    "evict, more memory than chunk": EVICT.but(local_window=9, heavy_budget=21, scorer="distant"),
    "evict, long chunks": EVICT.but(chunk_size=40, scorer="distant"),
    "evict, dense layer": EVICT.but(dense_layers=(0,), kv_type="f16"),
    "evict, blocks": BLOCKS.but(heavy_budget=12, ema_alpha=0.5, shared_heads=True, evict=True),
    "evict, composed": EVICT.but(flash_attn="off", scorer="distant"),
    "evict, composed, dense layer": EVICT.but(flash_attn="off", dense_layers=(1,)),
}
# Choices with near ties: test_h2o_oracle.py compares the oracle and the library on one layer.
INDEXED = {
    "index": INDEX,
    "index, two_phase": INDEX.but(schedule="two_phase", kv_type="q8_0"),
    # More rows for a token than the operator reads in a block, and fewer queries in a tile than there are.
    "index, many keys": INDEX.but(lookup_budget=200, tile=1),
    "cold": COLD,
    "cold, file": COLD.but(scorer="sum", kv_type="q8_0", tile=1, cold_store=FOLDER),
    "cold, dense layer": COLD.but(
        scorer="sum", kv_type="f32", dense_layers=(1,), lookup_budget=30, tile=2, cold_store=FOLDER
    ),
    "cold, ratio": COLD.but(heavy_budget=40, keep_ratio=0.3, kv_type="f32"),
}
# Nothing ranks by scores, so none are kept but with keep_history=True, and any place can be gone back to.
UNSCORED = {
    "unscored": SMALL.but(heavy_budget=0),
    "unscored, dense layer": SMALL.but(heavy_budget=0, dense_layers=(1,)),
    "unscored, two_phase": MEMORY.but(heavy_budget=0, schedule="two_phase", scorer="distant"),
    "unscored, index": INDEX.but(heavy_budget=0, tile=8, lookup_budget=16),
    "unscored, evict": EVICT.but(heavy_budget=0, kv_type="q8_0"),
    "unscored, index, cold": COLD.but(heavy_budget=0, kv_type="f32"),
}
CASES: dict[str, Case | None] = {
    **KEPT,
    **EVICTING,
    **INDEXED,
    **UNSCORED,
    "evict, positions": CACHE_POSITIONS,
    # Chunks large enough for encoded rows to be shorter.
    "cold, compressed": COLD.but(chunk_size=64, cold_store_compression=h2o_llama.LosslessConfig(n_threads=1)),
    "dense": None,
}


@st.composite
def configurations(draw: st.DrawFn, scorers: Sequence[str] = POSITION_SCORERS) -> Case:
    """Any small sizes and some beyond the text, both schedules, with and without dense layers and eviction."""
    chunk_size = draw(st.integers(1, 32))
    schedule = draw(st.sampled_from(["single_pass", "two_phase"]))
    is_single_pass = schedule == "single_pass"
    evicts = is_single_pass and draw(st.booleans())
    local_window = draw(st.one_of(st.integers(0, min(4, chunk_size)), st.just(chunk_size)))
    heavy_budget = draw(st.one_of(st.integers(0, 12), st.sampled_from([chunk_size, 1000])))
    return SMALL.but(
        chunk_size=chunk_size,
        local_window=local_window,
        heavy_budget=heavy_budget,
        sink_tokens=draw(st.one_of(st.integers(0 if local_window + heavy_budget else 1, 3), st.just(40))),
        tile=draw(st.one_of(st.integers(1, 8), st.just(chunk_size))),
        scorer=draw(st.sampled_from(scorers)),
        schedule=schedule,
        dense_layers=draw(st.sampled_from([(), (), (0,), (1,)])) if is_single_pass else (),
        evict=evicts,
        decode="memory" if evicts else draw(st.sampled_from(["full", "memory"])),
    )
