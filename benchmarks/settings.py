"""The ways to prefill a prompt that are compared."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from h2o_llama import H2OConfig, Llama

CHUNK_SIZE = 1024
DEFAULT = H2OConfig()
SIZES = (
    f"S {CHUNK_SIZE}, L {DEFAULT.local_window}, H {DEFAULT.heavy_budget}, A {DEFAULT.sink_tokens}, "
    f"B {DEFAULT.lookup_budget}"
)
N_BATCH = 4096
SHORT = 4096  # the length that single_pass is compared with at longer ones


@dataclass(frozen=True)
class Setting:
    """A way to prefill a prompt."""

    name: str
    flash_attn: str
    h2o: H2OConfig | None

    @property
    def is_dense(self) -> bool:
        return self.h2o is None

    def open(self, model: Path, n_ctx: int, n_threads: int, profile: bool = False) -> Llama:
        return Llama(
            model,
            n_ctx=n_ctx,
            n_batch=N_BATCH,
            n_ubatch=CHUNK_SIZE,
            n_threads=n_threads,
            type_k="f16",
            type_v="f16",
            flash_attn=self.flash_attn,
            h2o=self.h2o,
            profile=profile,
        )


DENSE_FLASH = Setting("dense, flash attention on", "on", None)
DENSE_PLAIN = Setting("dense, flash attention off", "off", None)
TWO_PHASE = Setting("two_phase", "auto", replace(DEFAULT, schedule="two_phase"))
SINGLE_PASS = Setting("single_pass", "auto", replace(DEFAULT, schedule="single_pass"))
DENSE = (DENSE_FLASH, DENSE_PLAIN)
SPARSE = (TWO_PHASE, SINGLE_PASS)
SETTINGS = DENSE + SPARSE
