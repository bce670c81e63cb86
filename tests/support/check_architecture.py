"""What must hold for a model of any architecture."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from compare import relative_error
from h2o_llama import H2OConfig, Llama, Model
from inputs import random_tokens
from tolerances import against_dense

S, N, N_GENERATED = 32, 200, 8
OPEN: dict[str, Any] = {"n_ctx": 256, "n_batch": 256, "n_threads": 1, "type_k": "f32", "type_v": "f32"}
WHOLE, PIECES, TOKENS = (N,), (7, 57, 1, 64, 71), (*(1,) * (2 * S + 5), N - 2 * S - 5)
BOUNDARY, MIDDLE = 4 * S, 152  # on the grid of tiles

DEFAULTS = H2OConfig(chunk_size=S, research={"tile": 8})
EVERYTHING = replace(DEFAULTS, heavy_budget=OPEN["n_ctx"])
EVICT = replace(DEFAULTS, evict=True)
KEPT = replace(EVICT, evict=False, decode="memory", heavy_budget=int(EVICT.heavy_budget), lookup_budget=0)
# What not every model allows.
MAY_BE_REFUSED = {
    "two_phase": "computes each token twice",
    "index": "lookup by the index of keys needs",
    "positions": "plain RoPE",
}


def generate(generator: Path, folder: Path, *options: str) -> list[Path]:
    """With the generator's own deviation, 0.1, attention would be so flat that little of it showed in the logits."""
    command = [generator, "-s", "1", "-d", "0.2", "-o", folder, *options]
    subprocess.run(command, check=True, capture_output=True)
    return sorted(folder.glob("*.gguf"))


def read(llm: Llama, text: Sequence[int], sizes: Sequence[int] = WHOLE) -> Any:
    """Logits of all tokens: N of a prompt, in calls of these sizes, then generated ones."""
    llm.reset()
    rows = []
    for begin, end in pairwise([0, *np.cumsum(sizes).tolist()]):
        llm.eval(text[begin:end], logits="all")
        rows.append(llm.logits)
    for token in text[N:]:
        llm.eval([token], decode=True)
        rows.append(llm.logits)
    logits = np.concatenate(rows)
    if not np.isfinite(logits).all():
        raise AssertionError("not all logits are finite")
    return logits


@dataclass
class Checks:
    """`model` has dense attention, and `changes`. Each method is a check: it compares, and yields what by how much."""

    model: Llama
    changes: dict[str, Any] = field(default_factory=dict)
    errors: dict[str, float] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.text = random_tokens(N + N_GENERATED, self.model.n_vocab)
        self.dense = read(self.model, self.text)
        self.errors["dense, token by token"] = relative_error(read(self.model, self.text, (1,) * N), self.dense)
        self.bound = self.bound_with_flash = against_dense(self.errors["dense, token by token"])
        if self.has_other_layers():
            with self.open(None, flash_attn="on") as llm:
                self.errors["dense, flash attention"] = relative_error(read(llm, self.text), self.dense)
            self.bound_with_flash = against_dense(self.errors["dense, flash attention"])

    def has_other_layers(self) -> bool:
        """Whether some are upstream's, whose flash attention rounds to F16."""
        architecture = self.model.metadata["general.architecture"]
        with self.open(DEFAULTS) as llm:
            return len(llm.kv.layers) < int(self.model.metadata[f"{architecture}.block_count"])

    def open(self, h2o: H2OConfig | None, **kwargs: Any) -> Llama:
        return Llama(self.model, h2o=h2o, **OPEN | kwargs)

    def run(self) -> None:
        checks: dict[str, Callable[[], Iterator[tuple[str, float]]]] = {
            "defaults": partial(self.check_sparse, DEFAULTS),
            "two_phase": partial(self.check_sparse, replace(DEFAULTS, schedule="two_phase")),
            "index": partial(self.check_sparse, replace(DEFAULTS, lookup_budget=int(DEFAULTS.lookup_budget))),
            "everything in memory": partial(self.check_everything, "memory", "auto"),
            "everything in memory, composed": partial(self.check_everything, "memory", "off"),
            "everything in memory, decode=full": partial(self.check_everything, "full", "auto"),
            "evict": self.check_evict,
            "positions": self.check_positions,
            "past": partial(self.check_past, DEFAULTS),
            "past, evict": partial(self.check_past, EVICT),
        }
        for name, check in checks.items():
            try:
                for what, error in check():
                    key = f"{name}: {what}"
                    self.errors[key] = max(error, self.errors.get(key, 0.0))
                    bound = self.bound if "composed" in name else self.bound_with_flash
                    if not error <= bound:  # or NaN
                        self.failed[key] = f"relative error {error:.1e} > {bound:.1e}"
            except Exception as error:
                if name in MAY_BE_REFUSED and MAY_BE_REFUSED[name] in str(error):
                    continue
                self.failed[name] = f"{type(error).__name__}: {error}"

    def check_sparse(self, h2o: H2OConfig) -> Iterator[tuple[str, float]]:
        """Property P1; finite logits; and leaving tokens out matters, or the other checks would prove nothing."""
        with self.open(h2o) as llm:
            logits = read(llm, self.text)
        yield "the first chunk", relative_error(logits[:S], self.dense[:S])
        effect = relative_error(logits, self.dense)
        if effect < 10 * self.bound:
            raise AssertionError(f"as dense attention but for {effect:.1e}: this model hardly attends")

    def check_everything(self, decode: Any, flash_attn: str) -> Iterator[tuple[str, float]]:
        """Property P2."""
        with self.open(replace(EVERYTHING, decode=decode), flash_attn=flash_attn) as llm:
            for name, sizes in {"whole": WHOLE, "in pieces": PIECES, "token by token, then the rest": TOKENS}.items():
                yield name, relative_error(read(llm, self.text, sizes), self.dense)

    def check_evict(self) -> Iterator[tuple[str, float]]:
        with self.open(EVICT) as evicted, self.open(KEPT) as kept:
            yield "as kept", relative_error(read(evicted, self.text), read(kept, self.text))

    def check_positions(self) -> Iterator[tuple[str, float]]:
        """Keys of the first layer know one token each. They have moved to where a text would have them.

        They are at most `far` before the chunk. With windows the chunk keeps its place in the text.
        """
        tokens, start = self.text[:MIDDLE], MIDDLE // S * S
        far = EVICT.memory_size
        trained = {f"{self.model.metadata['general.architecture']}.context_length": far + S}
        if self.model.model._handle.n_learned_positions > 0:
            return  # learned for as many positions as there are
        with Model(self.model.model_path, kv_overrides=trained, **self.changes) as model:
            with Llama(model, h2o=EVICT.with_research(positions="cache"), **OPEN) as llm:
                llm.eval(tokens)
                if llm.kv.layers[0] > 0:
                    return
                kept = llm.kv.memory_indices(0)[0]
                keys = llm.kv.keys(0)[0, kept]
            errors = []
            with Llama(model, h2o=EVERYTHING, **OPEN) as llm:
                for first in (0, start - far):
                    moved = []
                    for position in kept:
                        place = first + max(position - (start - far), 0)
                        llm.reset()
                        llm.eval([*tokens[:place], tokens[position]])
                        moved.append(llm.kv.keys(0)[0, place])
                    errors.append(relative_error(keys, np.array(moved)))
            yield "keys", min(errors)

    def check_past(self, h2o: H2OConfig) -> Iterator[tuple[str, float]]:
        """Reading on after going back, in a fork and from a snapshot. In any order: test_h2o_past.py."""
        with self.open(h2o, n_seq_max=2, keep_history=True) as llm:
            expected = read(llm, self.text)
            llm.reset()
            llm.eval(self.text[:MIDDLE])
            fork, snapshot = llm.fork(), llm.snapshot()
            llm.rewind(BOUNDARY)
            for name, sequence, begin in (("rewind", llm, BOUNDARY), ("fork", fork, MIDDLE), ("restore", llm, MIDDLE)):
                if name == "restore":
                    llm.restore(snapshot)
                sequence.eval(self.text[begin:N], logits="all")
                yield name, relative_error(sequence.logits, expected[begin:N])
