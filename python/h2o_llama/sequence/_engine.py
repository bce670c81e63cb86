"""What the sequences of a `Llama` share: the parameters of its context, the context, and how it computes a prompt."""

import os
import weakref
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, cast

from h2o_llama import _core
from h2o_llama._internal import check, log, machine
from h2o_llama._internal.lock import Lock
from h2o_llama._internal.terminal import warn
from h2o_llama._prompt import Prompt
from h2o_llama.config import OPTIONS, H2OConfig, uses_gpu
from h2o_llama.errors import BusyError, H2OError
from h2o_llama.lossless import LosslessConfig
from h2o_llama.model import Model
from h2o_llama.models._files import KV_TYPES
from h2o_llama.models.rope import RopeOptions, as_core
from h2o_llama.sequence.snapshot import SnapshotOrigin

_OWNER = "Llama"
_MAX_SEQUENCES = 256  # LLAMA_MAX_SEQ
_FOR_KV = "{} for the KV cache"

MATMUL_KERNELS = tuple(OPTIONS["products"].choices)
"""Whose kernels multiply by weights, the default first."""


def resolved_matmul_kernels(h2o: H2OConfig | None, matmul_kernels: str) -> str:
    """Whose kernels multiply by weights, "own" or "upstream"."""
    if check.choice(_OWNER, "matmul_kernels", matmul_kernels, MATMUL_KERNELS) == "auto":
        return "upstream" if h2o is None else "own"
    return matmul_kernels


@dataclass(frozen=True)
class ContextParams:
    """The arguments of `Llama` that make its context, checked; see there.

    Raises ValueError if one has the wrong type or is out of range, or two do not go together.
    """

    n_ctx: int
    n_batch: int
    n_ubatch: int
    n_threads: int | None
    n_threads_batch: int | None
    n_gpu_layers: int
    type_k: str
    type_v: str
    flash_attn: str
    h2o: H2OConfig | None
    keep_history: bool
    profile: bool
    verbose: bool
    n_seq_max: int
    cold_store_compression: LosslessConfig | None
    matmul_kernels: str
    cache_reuse: int

    def __post_init__(self) -> None:
        for name, least in (("n_ctx", 0), ("n_ubatch", 1), ("n_batch", 1), ("n_gpu_layers", -1)):
            check.integer(_OWNER, name, getattr(self, name), least)
        for name in ("n_threads", "n_threads_batch"):
            if getattr(self, name) is not None:
                check.integer(_OWNER, name, getattr(self, name), 1, check.MAX_THREADS)
        for name in ("type_k", "type_v"):
            check.choice(_OWNER, name, getattr(self, name), ("auto", *KV_TYPES))
        check.choice(_OWNER, "flash_attn", self.flash_attn, ("auto", "on", "off"))
        check.choice(_OWNER, "matmul_kernels", self.matmul_kernels, MATMUL_KERNELS)
        check.flag(_OWNER, "keep_history", self.keep_history)
        check.integer(_OWNER, "cache_reuse", self.cache_reuse, 0, check.INT32_MAX)
        if check.flag(_OWNER, "profile", self.profile) and self.h2o is None:
            raise ValueError(f"[{_OWNER}] profile=True measures parts of H2O: leave it False with h2o=None")
        check.flag(_OWNER, "verbose", self.verbose)
        if KV_TYPES.get(self.type_v) and self.flash_attn == "off":
            raise ValueError(f"[{_OWNER}] type_v={self.type_v!r} needs flash attention: pass flash_attn='auto' or 'on'")
        if check.integer(_OWNER, "n_seq_max", self.n_seq_max, 1, _MAX_SEQUENCES) > self.n_batch:
            raise check.bad_argument(_OWNER, "n_batch", f"at least n_seq_max ({self.n_seq_max})", self.n_batch)
        if self.n_batch < self.n_ubatch:
            raise check.bad_argument(_OWNER, "n_batch", f"at least n_ubatch ({self.n_ubatch})", self.n_batch)
        h2o, compression = self.h2o, self.cold_store_compression
        if not (h2o is None or isinstance(h2o, H2OConfig)):
            raise check.bad_argument(_OWNER, "h2o", "an H2OConfig, 'auto' or None", h2o)
        if h2o is not None and h2o.memory_size >= h2o.chunk_size and h2o.keep_ratio is None:
            warn(
                f"[{_OWNER}] memory_size ({h2o.memory_size}) is not below chunk_size ({h2o.chunk_size}): H2O then "
                "costs more than it saves"
            )
        if not (compression is None or isinstance(compression, LosslessConfig)):
            raise check.bad_argument(_OWNER, "cold_store_compression", "a LosslessConfig or None", compression)
        if compression is not None and (h2o is None or h2o.cold_store is None):
            raise ValueError(
                f"[{_OWNER}] cold_store_compression needs a cold store: pass "
                "h2o=H2OConfig(evict=True, cold_store='memory') or a folder, or leave cold_store_compression out"
            )

    def with_types(self, model: _core.Model) -> "ContextParams":
        """With types of K and V in place of "auto".

        8 bits are as good as 16 where llama.cpp rotates keys and values, which takes whole blocks of 64 numbers.
        """
        sizes = (machine.head_size(model), machine.head_size(model, "value"))
        fits = self.h2o is not None and self.flash_attn != "off" and not uses_gpu(self.n_gpu_layers)
        is_mla = f"{model.metadata.get('general.architecture', '')}.attention.kv_lora_rank" in model.metadata
        best = "q8_0" if fits and not is_mla and model.n_swa == 0 and all(n % 64 == 0 for n in sizes) else "f16"
        type_k, type_v = (best if given == "auto" else given for given in (self.type_k, self.type_v))
        return replace(self, type_k=type_k, type_v=type_v)

    def default_n_ctx(self, model: _core.Model, n_trained: int) -> int:
        """n_ctx where it is 0: what the model was trained for, or less with a warning, if only less fits."""
        if self.n_gpu_layers != 0 or (self.h2o is not None and self.h2o.evict):
            return n_trained
        has_index, memory = self.h2o is not None and self.h2o.has_key_index, machine.physical_memory()
        needed = machine.kv_bytes_at_least(model, n_trained * int(self.n_seq_max), self.type_k, self.type_v, has_index)
        free = needed if memory is None else max(memory - model.size, 0)
        n_cells = n_trained
        if needed > free:  # at least a step: where not even that fits, `make_context` says so
            n_fitting = n_trained * free // needed // 256 * 256  # llama.cpp rounds up to these
            n_cells = min(n_trained, max(n_fitting, self._n_step))
        if n_cells < n_trained:
            warn(
                f"[{_OWNER}] n_ctx={n_trained}, what the model was trained for, needs {needed / 2**30:.1f} GiB for the "
                f"KV cache, but the weights leave {free / 2**30:.1f} GiB of memory: n_ctx is {n_cells}. "
                "Pass n_ctx, or h2o=H2OConfig(evict=True) for no limit"
            )
        return n_cells

    def make_context(self, model: _core.Model, rope: RopeOptions, n_ctx: int) -> _core.Context:
        """A context for sequences of at least n_ctx tokens."""
        n_cells, n_seq_max = n_ctx, int(self.n_seq_max)
        if n_cells * n_seq_max > check.INT32_MAX:
            raise ValueError(
                f"[{_OWNER}] n_seq_max={n_seq_max} sequences of n_ctx={n_ctx} tokens are more than "
                f"{check.INT32_MAX} tokens together: use a smaller n_ctx or n_seq_max"
            )
        if self.n_gpu_layers == 0:
            has_index = self.h2o is not None and self.h2o.has_key_index
            n_rows, name, types = n_cells, "n_ctx", (self.type_k, self.type_v)
            if self.h2o is not None and self.h2o.evict:
                n_dense = len(cast(tuple[int, ...], self.h2o.dense_layers))
                needed = machine.kv_bytes_at_least(model, n_cells * n_seq_max, *types) * n_dense // model.n_layer
                machine.check_fits(_OWNER, "n_ctx", n_cells, needed, _FOR_KV)
                n_sets = 2 if self.h2o.positions == "cache" else 1  # the keys of one as they were before they moved
                n_rows, name = n_sets * self.h2o.memory_size + self.h2o.chunk_size, "memory_size and chunk_size"
            if n_seq_max > 1:
                name = f"{n_seq_max} sequences (n_seq_max) with {name}"
            needed = machine.kv_bytes_at_least(model, n_rows * n_seq_max, *types, has_index)
            machine.check_fits(_OWNER, name, n_rows, needed, _FOR_KV)
            if self.h2o is not None and self.h2o.has_key_index:
                budget, n_tiles = self.h2o.lookup_budget, min(self._n_step, n_cells) // self.h2o.tile + 2  # two are cut
                needed = 2 * 4 * n_tiles * min(budget, n_cells) * model.n_head_kv
                machine.check_fits(_OWNER, "lookup_budget", budget, needed, "about {} for what every tile retrieves")
        dense_layers = () if self.h2o is None else cast(tuple[int, ...], self.h2o.dense_layers)
        if dense_layers and dense_layers[-1] >= model.n_layer:
            raise ValueError(
                f"[{_OWNER}] dense_layers must be layers of this model, from 0 to {model.n_layer - 1}, "
                f"got {dense_layers[-1]}"
            )
        n_threads = min(machine.available_cpus(), check.MAX_THREADS) if self.n_threads is None else self.n_threads
        return _core.Context(
            model=model,
            n_ctx=n_cells,
            n_seq_max=n_seq_max,
            n_batch=self.n_batch,
            n_ubatch=self.n_ubatch,
            n_threads=n_threads,
            n_threads_batch=self.n_threads_batch or 0,
            type_k=self.type_k,
            type_v=self.type_v,
            flash_attn=self.flash_attn,
            rope=as_core(rope),
            h2o=self._h2o_as_text(),
            record=bool(self.keep_history),
            profile=bool(self.profile),
            verbose=bool(self.verbose) or log.is_printed,
        )

    def _h2o_as_text(self) -> dict[str, str]:
        h2o = {} if self.h2o is None else self.h2o.as_text()
        compression = {} if self.cold_store_compression is None else self.cold_store_compression.as_text()
        return h2o | compression | {"products": self.matmul_kernels}

    @property
    def _n_step(self) -> int:
        """The most tokens computed at once, but in phase 1."""
        return int(self.n_ubatch) if self.h2o is None else min(int(self.n_ubatch), self.h2o.chunk_size)


Progress = Callable[[int, int], object]
ProgressOption = Progress | bool | None
"""What calls take as `progress`: True is a bar on standard error."""


def split_calls(params: ContextParams, prompt: Prompt, n_before: int) -> list[tuple[int, int]]:
    """(start, stop) of the calls into llama.cpp that a prompt takes: tokens and rows of embeddings cannot share one.

    With H2O at most n_batch tokens each, up to the end of a tile. Without H2O n_ubatch, as llama.cpp would cut them
    itself: so they can be cancelled in between.
    """
    n_max = int(params.n_ubatch if params.h2o is None else params.n_batch)
    calls: list[tuple[int, int]] = []
    first = 0
    for run in prompt.runs():
        end = first + len(run)
        while first < end:
            stop = min(first + n_max, end)
            if stop < end and params.h2o is not None:
                n_open = (n_before + stop) % params.h2o.chunk_size % params.h2o.tile
                stop -= n_open if n_open < stop - first else 0
            calls.append((first, stop))
            first = stop
    return calls


def split_at_chunks(params: ContextParams, calls: list[tuple[int, int]], n_before: int) -> list[tuple[int, int]]:
    """The calls of a prompt after n_before tokens, cut where chunks end."""
    if params.h2o is None or params.h2o.schedule != "single_pass":
        return calls
    size, n = params.h2o.chunk_size, calls[-1][1]
    edges = {0, *(stop for _, stop in calls), *range(size - n_before % size, n, size)}
    return list(pairwise(sorted(edges)))


class Engine:
    """An open model, its llama.cpp context, and the places for sequences in it.

    A sequence can hold `n_ctx` tokens. `seed` is the default of generation, `origin` what snapshots are of;
    `claim` lets one call in at a time. `library`, a `Library` or None, is where texts are taken from and given to.
    """

    def __init__(
        self,
        model: Model,
        params: ContextParams,
        n_ctx: int,
        seed: int | None,
        claim: Lock,
        library: Any = None,
    ) -> None:
        self.model = model
        self.library = library
        self.params = params
        n_learned = model._handle.n_learned_positions
        if 0 < n_learned < n_ctx:
            raise ValueError(
                f"[Llama] n_ctx={n_ctx}, but this model has learned {n_learned} positions and has no others: "
                f"use n_ctx={n_learned} or less"
            )
        self.n_ctx = n_ctx
        is_bounded = params.h2o is not None and params.h2o.has_bounded_memory
        if params.n_ctx == 0 and is_bounded:
            self.n_ctx = n_learned or check.INT32_MAX
            n_ctx = max(n_ctx, int(params.n_batch))  # a call takes no more
        self.seed = seed
        self.origin = SnapshotOrigin(
            model=os.path.basename(model.model_path),
            fingerprint=model.fingerprint,
            n_vocab=model.n_vocab,
            type_k=params.type_k,
            type_v=params.type_v,
            flash_attn=params.flash_attn,
            h2o=params.h2o,
        )
        self.claim = claim
        # when a text gets longer than what the model was trained for
        self.warns_of_length = is_bounded and params.h2o is not None and params.h2o.positions == "text"
        with machine.core_errors():
            first = params.make_context(model._handle, model._rope, n_ctx)
        if params.cache_reuse and first.move_refusal:
            raise H2OError(f"[Llama] cache_reuse={params.cache_reuse}: {first.move_refusal}. Leave cache_reuse out")
        self._places = [first, *(first.sequence(i) for i in range(1, int(params.n_seq_max)))]
        h2o = params.h2o
        if h2o is not None and (callable(h2o.scorer) or (library is not None and (not h2o.evict or h2o.cold_store))):
            for place in self._places:
                place.keep_boundaries()
        self._owners: list[weakref.ref[object] | None] = [None] * len(self._places)

    @property
    def core(self) -> _core.Model:
        """The core's model. Raises ValueError if it is closed."""
        return self.model._handle

    def place_for(self, owner: object) -> _core.Context:
        """An empty place, which the owner has until it gives it back or is garbage."""
        for i, ref in enumerate(self._owners):
            if ref is None or ref() is None:
                if ref is not None:
                    self._places[i].clear()
                self._owners[i] = weakref.ref(owner)
                return self._places[i]
        n = len(self._places)
        raise BusyError(
            f"[Llama.sequence] all n_seq_max={n} sequences are in use, that of the Llama itself among them: close one, "
            "or pass a larger n_seq_max to Llama"
        )

    def give_back(self, place: _core.Context) -> None:
        if self.model._core is not None:
            place.clear()
            self._owners[self._places.index(place)] = None

    def close(self) -> None:
        """Free the context and the model, for all sequences."""
        for place in self._places:
            place.close()
        self.model.close()
        if self.library is not None:
            self.library.flush()
