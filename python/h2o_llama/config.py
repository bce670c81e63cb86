"""Configuration of H2O."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from h2o_llama import _check, _core

_OWNER = "H2OConfig"

SCORERS = tuple(_core.scorer_names())
"""How heavy hitters can be chosen, the default first."""

_MAX_LAYERS = 512  # LLAMA_H2O_MAX_LAYERS

_DEFAULT_CHUNK = 1024
"""Tokens of a chunk that the default sizes are for."""

# What is not given depends on whether anything is evicted.
_CHOSEN: Any = None
_KEEPING = {"heavy_budget": 320, "lookup_budget": 128, "decode": "full"}
_EVICTING = {"heavy_budget": 448, "lookup_budget": 0, "decode": "memory"}
_STORING = {**_KEEPING, "decode": "memory"}


@dataclass(frozen=True)
class H2OConfig:
    """What the memory sets hold and how a prompt is computed.

    A prompt is cut into chunks of S tokens (S is `Llama`'s `n_ubatch`). A chunk attends to itself and to a memory set
    of M = `sink_tokens` + `local_window` + `heavy_budget` tokens before it, chosen per layer and KV head.

    Parameters
    ----------
    local_window : int, default 60
        L: the last L positions of a chunk are always in its memory set. At most S.
    heavy_budget : int, default 320
        H: how many heavy hitters (the highest-ranking of the other positions) a memory set holds. With `evict`
        and no cold store the default is 448, as there is no lookup. With `keep_ratio` the most that it may hold, by
        default what the ratio comes to in a text of n_ctx tokens.
    sink_tokens : int, default 4
        A: the first A positions of the sequence are always kept. L + H + A must be at least 1.
    scorer : str, default "distant"
        How positions are ranked; w(q, p) is the softmax weight of query q on position p, summed over the query heads
        of the KV head, and the sums are over queries that saw p.

        - "distant": the mean of w over the queries at least L positions after p.
        - "sum": the sum of w (H2O).
        - "block_ema": whole blocks of `block_tokens` positions, by the sum of their scores; a score is the moving
          average, over the chunks, of the mean of w: `ema_alpha` * what it was + (1 - `ema_alpha`) * the mean over the
          chunk's queries and query heads. S must be a multiple of `block_tokens`; L, H and A are rounded up to one.
    block_tokens, ema_alpha : int, float, default 16, 0.5
        For "block_ema", see there.
    shared_heads : bool, default False
        All KV heads of a layer keep the same positions, by the mean of their scores.
    keep_ratio : float, optional
        A memory set holds this part of the text before it, rounded up (to whole blocks with "block_ema"), so it grows
        with the text; but at least sinks and local window, and at most M. To keep one position of r, 1 / r.
    schedule : {"single_pass", "two_phase"}
        - "single_pass": every chunk goes through the model once; one softmax over its memory set and itself.
        - "two_phase": attention within all chunks first, attention to the memory sets in a second pass.
    decode : {"full", "memory"}
        Default "full", with `evict` "memory".

        - "full": generated tokens attend to everything before them, at a cost that grows with the text.
        - "memory": they attend to what a token of a prompt does: the memory sets, their chunk, lookups of their own. A
          token then costs the same at any depth, but for what it takes to read an index of keys. They are scored as a
          prompt's are.
    evict : bool, default False
        Drop K and V of what no memory set holds, when its chunk is closed: the cache has room for M + S positions, and
        the text may have any length. What was dropped cannot be attended to, but for what lookup brings back from a
        cold store. Needs "single_pass" and decode="memory", which are its defaults then, and either lookup_budget=0 or
        a cold store.
    cold_store : str, path or None, default None
        Where evicted K and V go: "memory" of the host, or a folder, in which they are in a temporary file that is gone
        with the process. They are brought back when a query looks them up. They take as many bytes as without `evict`.
        None: they are gone.
    lookup_budget : int, default 128
        B: how many further positions a query attends to, found as `retrieval` says. 0 is none, and the default with
        `evict` and no cold store.
    retrieval : {"ngrams", "index"}
        - "ngrams": by the text, around earlier occurrences of a token, a pair, a triple; the same for all layers and
          heads. They are the newest that a query and those before it have asked for, so each stays until B newer ones
          have come.
        - "index": by the keys, of which a copy in 4 bits is kept. Every query chooses for itself, in each layer and KV
          head, the B positions before its chunk whose keys fit best and that are not in the memory set. Less is lost,
          at a cost that grows with the text, slowly. Needs attention as one operator (layers on the CPU, flash
          attention not off) and heads whose size is a multiple of 32.
    tile : int, default 4
        T, with "ngrams": a query adds ceil(B/T) positions at most. With a smaller T they are more, and stay for less
        long.
    dense_layers : int or sequence of int, default 0
        Layers that attend to everything before them, at a cost that grows with the text: so many first ones, or these.
        They have neither scores nor memory sets, and are not among `kv.layers`. Needs "single_pass".
    Raises
    ------
    ValueError
        If a value has the wrong type or is out of range.

    References
    ----------
    Zhang et al. 2023, "H2O: Heavy-Hitter Oracle for Efficient Generative Inference of Large Language Models",
    arXiv:2306.14048.
    """

    local_window: int = 60
    heavy_budget: int = _CHOSEN
    sink_tokens: int = 4
    scorer: str = SCORERS[0]
    schedule: Literal["single_pass", "two_phase"] = "single_pass"
    decode: Literal["full", "memory"] = _CHOSEN
    evict: bool = False
    lookup_budget: int = _CHOSEN
    tile: int = 4
    dense_layers: int | Sequence[int] = ()
    retrieval: Literal["ngrams", "index"] = "ngrams"
    cold_store: str | os.PathLike[str] | None = None
    block_tokens: int = 16
    ema_alpha: float = 0.5
    shared_heads: bool = False
    keep_ratio: float | None = None

    def __post_init__(self) -> None:
        evict = _check.flag(_OWNER, "evict", self.evict)
        self._check_cold_store(evict)
        defaults = _KEEPING if not evict else _EVICTING if self.cold_store is None else _STORING
        self._check_ratio()
        for name, value in defaults.items():
            if getattr(self, name) is _CHOSEN and not (name == "heavy_budget" and self.keep_ratio is not None):
                object.__setattr__(self, name, value)
        least = dict.fromkeys(("local_window", "heavy_budget", "sink_tokens", "lookup_budget"), 0)
        least |= {"tile": 1, "block_tokens": 1}
        for name, low in least.items():
            # NumPy integers become int, so that equal configurations look equal.
            if name != "heavy_budget" or self.heavy_budget is not None:
                object.__setattr__(self, name, _check.integer(_OWNER, name, getattr(self, name), low))
        _check.choice(_OWNER, "scorer", self.scorer, SCORERS)
        self._check_blocks()
        if not (self.heavy_budget is None or self.memory_size >= 1) or self.memory_size > _check.INT32_MAX:
            raise ValueError(
                f"[{_OWNER}] local_window + heavy_budget + sink_tokens must be from 1 to {_check.INT32_MAX}, "
                f"got {self.memory_size}; for dense attention pass h2o=None to Llama"
            )
        _check.choice(_OWNER, "schedule", self.schedule, ("single_pass", "two_phase"))
        object.__setattr__(self, "dense_layers", _layers(self.dense_layers))
        if self.dense_layers and self.schedule != "single_pass":
            raise ValueError(f"[{_OWNER}] dense_layers need schedule='single_pass', got {self.schedule!r}")
        _check.choice(_OWNER, "decode", self.decode, ("full", "memory"))
        _check.choice(_OWNER, "retrieval", self.retrieval, ("ngrams", "index"))
        needed: dict[str, Any] = {"schedule": "single_pass", "decode": "memory"}
        if self.cold_store is None:
            needed["lookup_budget"] = 0
        elif self.lookup_budget > 0:
            needed["retrieval"] = "ngrams"
        for name, value in needed.items():
            if evict and getattr(self, name) != value:
                hint = ", unless there is a cold_store" if name == "lookup_budget" else ""
                raise ValueError(
                    f"[{_OWNER}] evict=True needs {name}={value!r}{hint}, got {getattr(self, name)!r}: what is evicted "
                    "cannot be attended to any more"
                )

    @classmethod
    def for_chunk_size(cls, n_ubatch: int, **given: Any) -> H2OConfig:
        """With these parameters. Sizes that are not given are the defaults, in proportion for chunks of under 1,024."""
        default, share = cls(**given), min(n_ubatch / _DEFAULT_CHUNK, 1.0)
        sizes = {
            "local_window": int(share * default.local_window),
            "heavy_budget": None if default.heavy_budget is None else max(1, int(share * default.heavy_budget)),
            "sink_tokens": min(default.sink_tokens, n_ubatch // 8),
            "lookup_budget": int(share * default.lookup_budget),
        }
        return cls(**(sizes | given))

    @property
    def has_bounded_memory(self) -> bool:
        """Whether a text may be of any length: nothing that is kept grows with it."""
        return self.evict and not self.dense_layers

    def for_context(self, n_ctx: int) -> H2OConfig:
        """With the size that `keep_ratio` comes to."""
        if self.heavy_budget is not None or self.keep_ratio is None:
            return self
        n_kept = math.ceil(self.keep_ratio * n_ctx)
        return replace(self, heavy_budget=max(0, n_kept - self.local_window - self.sink_tokens))

    def _check_ratio(self) -> None:
        if self.keep_ratio is None:
            return
        object.__setattr__(self, "keep_ratio", _check.real(_OWNER, "keep_ratio", self.keep_ratio, 0.0, 1.0))
        if self.keep_ratio == 0:
            raise _check.bad_argument(_OWNER, "keep_ratio", "above 0 and at most 1", self.keep_ratio)

    def _check_blocks(self) -> None:
        object.__setattr__(self, "shared_heads", _check.flag(_OWNER, "shared_heads", self.shared_heads))
        object.__setattr__(self, "ema_alpha", _check.real(_OWNER, "ema_alpha", self.ema_alpha, 0.0, 1.0))
        if self.ema_alpha == 1:
            raise _check.bad_argument(_OWNER, "ema_alpha", "at least 0 and below 1", self.ema_alpha)
        if not self.ranks_blocks:
            return
        for name in ("local_window", "heavy_budget", "sink_tokens"):
            if (size := getattr(self, name)) is not None:
                object.__setattr__(self, name, -(-size // self.block_tokens) * self.block_tokens)

    def _check_cold_store(self, evict: bool) -> None:
        if self.cold_store is None:
            return
        if not isinstance(self.cold_store, str | os.PathLike) or not str(self.cold_store):
            raise ValueError(
                f"[{_OWNER}] cold_store must be 'memory', the path of a folder or None, got {self.cold_store!r}"
            )
        if not evict:
            raise ValueError(f"[{_OWNER}] cold_store is for what is evicted: it needs evict=True")
        object.__setattr__(self, "cold_store", os.fspath(self.cold_store))

    @property
    def has_key_index(self) -> bool:
        """Whether a copy of the keys is kept, to find positions by."""
        return self.retrieval == "index" and self.lookup_budget > 0

    @property
    def memory_size(self) -> int:
        """M, the number of positions in a full memory set.

        With `keep_ratio` and no `heavy_budget`, `Llama.h2o` has it; before, it is without heavy hitters.
        """
        return self.local_window + (self.heavy_budget or 0) + self.sink_tokens

    @property
    def ranks_blocks(self) -> bool:
        """Whether whole blocks of positions are kept."""
        return self.scorer == "block_ema"


def _layers(value: int | Sequence[int]) -> tuple[int, ...]:
    """The first n layers, or those that are named, ascending."""
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return tuple(sorted({_check.integer(_OWNER, "dense_layers", layer, 0, _MAX_LAYERS - 1) for layer in value}))
    return tuple(range(_check.integer(_OWNER, "dense_layers", value, 0, _MAX_LAYERS)))
